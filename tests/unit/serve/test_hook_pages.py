"""Pages and filters that hook objects add to the metrics port."""

from __future__ import annotations

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from endpick.api import hookimpl
from endpick.host.hooks import Hooks
from endpick.serve.admin import FilteredMetrics
from endpick.serve.admin_api import AdminAPI
from endpick.serve.hook_objects import HistoryPages, HookFaults, HookPages
from endpick.serve.metrics import EndpickMetrics


class Adding:
    """Adds these pages."""

    def __init__(self, **answers):
        self._answers = answers

    @hookimpl
    def endpick_admin_pages(self, pages):
        for name, answer in self._answers.items():
            pages.add("/" + name.replace("_", "/"), f"Page {name}.", answer)


def failing():
    raise SystemExit(3)


def added(*hook_objects) -> HookPages:
    hooks = Hooks()
    for number, hook_object in enumerate(hook_objects):
        hooks.register(hook_object, f"pages-{number}")
    pages = HookPages(HookFaults(EndpickMetrics(CollectorRegistry()), lambda: 0.0))
    assert hooks.call("endpick_admin_pages", pages=pages) == ()
    return pages


async def answers(pages: HookPages, *paths: str) -> list[tuple[int, object]]:
    application = web.Application()
    AdminAPI(None, pages.routes).add_to(application)
    async with TestClient(TestServer(application)) as client:
        return [((response := await client.get(path)).status, await response.json()) for path in paths]


@pytest.mark.asyncio
async def test_pages_are_answered_and_described():
    pages = added(Adding(acme_budget=lambda: {"left": 3}))

    (answered, (_, described)) = await answers(pages, "/acme/budget", "/openapi.json")

    assert answered == (200, {"left": 3})
    assert described["paths"]["/acme/budget"]["get"]["summary"] == "Page acme_budget."
    assert "/config" in described["paths"]


@pytest.mark.asyncio
@pytest.mark.parametrize(("answer", "reason"), [(failing, "SystemExit: 3"), (lambda: {"a": object()}, "TypeError: "), (7, "TypeError: ")])
async def test_page_that_fails_is_an_error_of_its_own(answer, reason):
    ((status, body), (other, _)) = await answers(added(Adding(acme=answer, fine=lambda: 1)), "/acme", "/fine")

    assert (status, other) == (500, 200)
    assert f"failed in endpick_admin_pages: {reason}" in body["error"]


@pytest.mark.parametrize("path", ["config", "healthz", "metrics", "decisions_x", "log", "openapi.json", "{id}", ""])
def test_path_that_is_taken_or_malformed_is_ignored(path, caplog):
    stranger, own = Adding(**{path: dict}), HistoryPages(tuple)

    assert [route.path for route in added(stranger, own).routes] == ["/reloads", "/log"]
    assert "the hook object 'pages-0' from endpick" in caplog.text
    assert f"cannot add the page /{path.replace('_', '/')}: " in caplog.text


def test_second_page_of_a_path_is_ignored(caplog):
    assert len(added(Adding(acme=dict), Adding(acme=list)).routes) == 1
    assert "'pages-0' from endpick" in caplog.text, "the last registered is called first"


def test_page_that_comes_too_late_is_ignored(caplog):
    pages = added()
    pages.add("/acme", "A page.", dict)

    assert pages.routes == []
    assert "cannot add the page /acme: it is too late" in caplog.text


class Page(Collector):
    def collect(self):
        yield GaugeMetricFamily("fine", "A family.", 1)


class Raising(Collector):
    def __init__(self, collector):
        self._collector = collector

    def collect(self):
        yield from self._collector.collect()
        raise SystemExit(4)


def test_filter_that_raises_is_left_out(caplog):
    twice = FilteredMetrics(FilteredMetrics(Page(), Raising), failing)

    assert [family.name for family in twice.collect()] == ["fine"]
    assert caplog.text.count("a filter of the metrics is left out") == 2
