"""As much is taken from the API server as the parameters allow: what the default refuses, a larger one takes."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import nullcontext
from random import Random

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter

from endpick.api import Limits, PluginContext
from endpick_builtin.kubernetes.access import Access
from endpick_builtin.kubernetes.client import CLIENT_LIMITS, MOST_PAGE_BYTES, ApiClient, ApiError, Page
from endpick_builtin.kubernetes.comeback import Comeback
from endpick_builtin.kubernetes.following import MANY_OBJECTS, MOST_OBJECTS, Collection, Follower, Following
from endpick_builtin.kubernetes.patience import Patience
from unit.builtin.pages import serving

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(
    ("size", "most", "is_taken"),
    [
        (1001, 1000, False),
        (1001, 1001, True),
        (MOST_PAGE_BYTES + 1, MOST_PAGE_BYTES, False),
        (MOST_PAGE_BYTES + 1, MOST_PAGE_BYTES + 1, True),
    ],
)
async def test_an_answer_has_as_many_bytes_as_max_list_bytes_allows(size, most, is_taken):
    async def handler(request):
        return web.Response(body=b"{}".ljust(size), content_type="application/json")

    async with serving(handler) as port:
        access = Access(f"http://127.0.0.1:{port}", None, None, "", None, "", "the test")
        api = ApiClient(access, Patience(), 1.0, Limits(PluginContext(), CLIENT_LIMITS), most)
        api.open()
        try:
            if is_taken:
                assert await api.write("POST", "/leases", {}) == {}
            else:
                with pytest.raises(ApiError, match=f"the answer is longer than {most} bytes"):
                    await api.write("POST", "/leases", {})
        finally:
            await api.close()


class Listing:
    """Has so many Pods."""

    def __init__(self, count):
        self.count = count

    async def page(self, path, query, take, rest=""):
        for number in range(self.count):
            take({"metadata": {"name": f"p{number}"}})
        return Page("1", "")

    async def watch(self, *_):
        await asyncio.Event().wait()


@pytest.mark.parametrize(("most", "taken"), [(3, 3), (MOST_OBJECTS, MOST_OBJECTS), (MOST_OBJECTS + 1, MOST_OBJECTS + 1)])
async def test_as_many_objects_of_a_collection_are_kept_as_max_objects_allows(most, taken):
    limits, steps = Limits(PluginContext(), (MANY_OBJECTS,)), Counter("steps", "Of the test.", ("collection", "outcome"), registry=None)
    back, logger = Comeback("http://127.0.0.1", Random(1)), logging.getLogger("tests.limits")
    shared = Following(Listing(MOST_OBJECTS + 1), back, Random(1), logger, limits, steps, 1, 1, Patience(), most_objects=most)
    changed = asyncio.Event()
    follower = Follower(Collection("pods", "/pods", lambda item: item), shared, changed.set)
    running = asyncio.create_task(follower.run())
    await changed.wait()
    running.cancel()
    assert len(follower.objects) == taken


@pytest.mark.parametrize(("length", "is_taken"), [(1000, True), (1001, False)])
async def test_an_object_and_an_event_have_as_many_bytes_as_max_object_bytes_allows(length, is_taken):
    pod, registry = b'{"metadata":{"name":"p"}}', CollectorRegistry()
    beginning, end = b'{"type":"ADDED","object":', b"}"
    event = beginning + pod.ljust(length - len(beginning) - len(end)) + end

    async def handler(request):
        body = event + b"\n" if "watch" in request.query else b'{"metadata":{"resourceVersion":"1"},"items":[' + longest + b"]}"
        return web.Response(body=body, content_type="application/json")

    longest = b'{"metadata":{"name":"' + b"p" * (length - len(b'{"metadata":{"name":""}}')) + b'"}}'
    taken = []
    async with serving(handler) as port:
        access = Access(f"http://127.0.0.1:{port}", None, None, "", None, "", "the test")
        limits = Limits(PluginContext(registry=registry, clock=time.monotonic), CLIENT_LIMITS)
        api = ApiClient(access, Patience(), 1.0, limits, most_object_bytes=1000)
        api.open()
        try:
            for ask in (api.page("/pods", {}, taken.append), api.watch("/pods", {}, "1", 1, taken.extend)):
                with nullcontext() if is_taken else pytest.raises(ApiError, match=r"longer than 1000 bytes"):
                    await ask
        finally:
            await api.close()
    assert len(taken) == 2 * is_taken
    samples = [sample for family in registry.collect() for sample in family.samples if sample.labels.get("limit") == "maxObjectBytes"]
    assert sum(sample.value for sample in samples if sample.name.endswith("_total")) == (0 if is_taken else 2)
