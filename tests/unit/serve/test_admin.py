"""The metrics port."""

from __future__ import annotations

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from endpick.serve.admin import AdminServer, MetricsPages
from endpick.transport.listener import ListenError

pytestmark = pytest.mark.asyncio


class Site:
    """A running server and a client of it."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self.client = client
        self.registry = CollectorRegistry()
        self.ready = True
        pages = MetricsPages(self.registry, lambda: None, lambda: (self.ready, "text\n"))
        self.server = AdminServer(pages.application(), "127.0.0.1", 0)
        self.url = ""

    async def get(self, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, str]:
        async with self.client.get(f"{self.url}{path}", headers=headers) as response:
            return response, await response.text()


@pytest_asyncio.fixture
async def site():
    async with aiohttp.ClientSession() as client:
        site = Site(client)
        Counter("asked", "Requests.", registry=site.registry).inc(3)
        site.url = f"http://127.0.0.1:{await site.server.start()}"
        yield site
        await site.server.stop()


async def test_metrics_are_served_in_text_format(site):
    response, text = await site.get("/metrics")

    assert response.content_type == "text/plain"
    assert {sample.name: sample.value for family in text_string_to_metric_families(text) for sample in family.samples}["asked_total"] == 3


async def test_metrics_are_served_as_openmetrics_if_asked(site):
    response, text = await site.get("/metrics", Accept="application/openmetrics-text; version=1.0.0")

    assert response.content_type == "application/openmetrics-text"
    assert "asked" in {family.name for family in openmetrics(text)}


async def test_metrics_are_compressed_if_the_client_takes_it(site):
    compressed, _ = await site.get("/metrics", **{"Accept-Encoding": "gzip"})
    plain, _ = await site.get("/metrics", **{"Accept-Encoding": "identity"})

    assert compressed.headers["Content-Encoding"] == "gzip"
    assert "Content-Encoding" not in plain.headers


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
async def test_healthz_reports_readiness(site, ready, status):
    site.ready = ready
    response, text = await site.get("/healthz")

    assert (response.status, text) == (status, "text\n")


async def test_other_paths_are_not_found(site):
    assert (await site.get("/secret"))[0].status == 404


async def test_a_port_in_use_is_refused(site):
    port = int(site.url.rpartition(":")[2])
    with pytest.raises(ListenError, match=f"port {port}"):
        await AdminServer(web.Application(), "127.0.0.1", port).start()
