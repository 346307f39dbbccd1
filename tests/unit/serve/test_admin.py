"""The admin port."""

from __future__ import annotations

import asyncio
import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from endpick.observability.exposition import EventCounts
from endpick.serve.admin import AdminServer, admin_application
from endpick.transport.server import ListenError, ListenSettings, open_server


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


@pytest.mark.asyncio
async def test_metrics_and_readiness_are_told_over_http():
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    registry.register(EventCounts("events", "Events.", lambda: {"reset": 7}))
    report = [(False, "starting\n")]
    server = AdminServer(admin_application(registry, lambda: report[0]), "127.0.0.1", 0)
    port = await server.start()
    try:
        assert await fetch(port, "/healthz") == (503, "starting\n")
        report[0] = (True, "ok\n")
        assert await fetch(port, "/healthz") == (200, "ok\n")
        status, page = await fetch(port, "/metrics")
    finally:
        await server.stop()

    assert status == 200
    assert "things_total 3.0" in page
    assert 'events_total{event="reset"} 7.0' in page


@pytest.mark.asyncio
async def test_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server = AdminServer(admin_application(CollectorRegistry(), lambda: (True, "")), "127.0.0.1", port)

        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1, port {port}: Address already in use"):
            await server.start()


@pytest.mark.asyncio
async def test_host_that_has_no_address_is_told_in_the_systems_words_by_every_port():
    host = "no-such-host.invalid"
    ports = AdminServer(admin_application(CollectorRegistry(), lambda: (True, "")), host, 9), open_server("h2", ListenSettings(host, 9), {})
    try:
        socket.getaddrinfo(host, 9)
    except socket.gaierror as error:
        reason = error.strerror
    told = []
    for port in ports:
        with pytest.raises(ListenError) as refusal:
            await port.start()
        told.append(str(refusal.value))

    assert told == [f"cannot listen on {host}, port 9: {reason}"] * 2


class CountedCollector(Collector):
    """Notes how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def collect(self):
        self.asked += 1
        yield GaugeMetricFamily("asked", "How often. " * 5000, self.asked)


@pytest.mark.asyncio
async def test_scrapers_that_come_together_share_a_page_and_take_it_compressed():
    collector = CountedCollector()
    server = AdminServer(admin_application(collector, lambda: (True, "")), "127.0.0.1", 0)
    port = await server.start()
    try:
        async with aiohttp.ClientSession() as session:

            async def scrape(encoding: str) -> tuple[str | None, int, str]:
                async with session.get(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": encoding}) as response:
                    length = int(response.headers["Content-Length"])
                    return response.headers.get("Content-Encoding"), length, await response.text()

            pages = await asyncio.gather(*(scrape("gzip") for _ in range(20)))
            plain = await scrape("identity")
    finally:
        await server.stop()

    assert {encoding for encoding, _, _ in pages} == {"gzip"}
    assert all(length < len(page) / 20 for _, length, page in pages)
    assert plain[0] is None
    assert plain[1] == len(plain[2])
    assert collector.asked < 20
