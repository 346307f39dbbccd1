"""How the limits of following an API server are made to act once; each function gives the registry that counts it."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextlib import asynccontextmanager, suppress
from random import Random

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter
from unit.builtin.limits_of_sources import acted, context_of, hundred_certificates

from endpick.api import Limits, ModelRewrite, ModelTarget
from endpick_builtin.kubernetes import client, following, objects
from endpick_builtin.kubernetes.access import Access
from endpick_builtin.kubernetes.client import CLIENT_LIMITS, ApiClient, ApiError
from endpick_builtin.kubernetes.comeback import Comeback
from endpick_builtin.kubernetes.patience import Patience
from endpick_builtin.kubernetes.picture import told_rules
from unit.builtin.kv_publisher import until
from unit.builtin.pages import serving


def api_server_that(handler, limited=None):
    async def act(monkeypatch, tmp_path):
        registry = CollectorRegistry()
        async with serving(handler) as port:
            access = Access(f"http://127.0.0.1:{port}", None, None, "", None, "", "the test")
            api = ApiClient(access, Patience(grace_seconds=0.05), 1.0, Limits(context_of(registry), CLIENT_LIMITS), 2000, 1000)
            api.open()
            with pytest.raises(ApiError):
                await (limited or (lambda api: api.watch("/pods", {}, "1", 1, lambda events: None)))(api)
            await api.close()
        return registry

    return act


async def long_json(request):
    return web.Response(body=b" " * 5000, content_type="application/json")


async def endless_watch(request):
    response = web.StreamResponse(headers={"content-type": "application/json"})
    await response.prepare(request)
    with suppress(ConnectionError):
        await asyncio.Event().wait()


@asynccontextmanager
async def follower_of(page, registry, most_objects):
    """It follows a collection of which the server gives the same page at each look."""

    async def listing(request):
        return web.json_response(page)

    async with serving(listing) as port:
        access = Access(f"http://127.0.0.1:{port}", None, None, "", None, "", "the test")
        limits = Limits(context_of(registry), (*CLIENT_LIMITS, *following.FOLLOWING_LIMITS))
        api = ApiClient(access, Patience(), 1.0, limits)
        api.open()
        back, logger, steps = Comeback("http://127.0.0.1", Random(1)), logging.getLogger("tests.limits"), steps_counter()
        shared = following.Following(api, back, Random(1), logger, limits, steps, 1, 60, Patience(), most_objects=most_objects)
        follower = following.Follower(following.Collection("pods", "/pods", lambda item: item), shared, lambda: None)
        running = asyncio.create_task(follower.run())
        yield follower
        running.cancel()
        await api.close()


def steps_counter():
    return Counter("steps", "Of the test.", ("collection", "outcome"), registry=None)


async def crowd_of_pods(monkeypatch, tmp_path):
    pods = [{"metadata": {"name": f"p{number}"}} for number in range(4)]
    registry = CollectorRegistry()
    async with follower_of({"metadata": {"resourceVersion": "1"}, "items": pods}, registry, most_objects=3) as follower:
        await until(lambda: acted(registry), "objects that are left out")
        await until(lambda: follower.objects, "a list")
        assert list(follower.objects) == ["p0", "p1", "p2"]
    return registry


async def endless_list(monkeypatch, tmp_path):
    monkeypatch.setattr(following, "_MOST_PAGES", 3)
    registry = CollectorRegistry()
    async with follower_of({"metadata": {"resourceVersion": "1", "continue": "on"}, "items": []}, registry, most_objects=80) as follower:
        await until(lambda: acted(registry), "a list that is given up")
        assert not follower.synced
    return registry


async def crowd_of_rules(monkeypatch, tmp_path):
    registry = CollectorRegistry()
    limits = Limits(context_of(registry), (*CLIENT_LIMITS, *following.FOLLOWING_LIMITS))
    logger, steps = logging.getLogger("tests.limits"), steps_counter()
    shared = following.Following(None, None, Random(1), logger, limits, steps, 1, 1, Patience(), most_rule_parts=3)
    rule = ModelRewrite(("m",), (ModelTarget("n", 1),))
    rewrites = {"a": objects.DatedRewrites("1", (rule,)), "b": objects.DatedRewrites("2", (rule,))}
    assert told_rules(rewrites, shared, "rewrites") == (rule,)
    return registry


async def long_handshake_of_an_api_server(monkeypatch, tmp_path):
    registry = CollectorRegistry()
    tls = ssl.create_default_context()
    async with hundred_certificates(tmp_path) as port:
        access = Access(f"https://127.0.0.1:{port}", tls, None, "", None, "", "the test")
        api = ApiClient(access, Patience(), 1.0, Limits(context_of(registry), CLIENT_LIMITS))
        api.open()
        with pytest.raises(ApiError):
            await api.page("/pods", {}, lambda item: None)
        await api.close()
    return registry


ACTS = {
    client._LONG_PAGE: api_server_that(long_json, lambda api: api.page("/pods", {}, lambda item: None)),
    client._LONG_OBJECT: api_server_that(long_json),
    client._LONG_WATCH: api_server_that(endless_watch),
    client._LONG_HANDSHAKE: long_handshake_of_an_api_server,
    following.MANY_OBJECTS: crowd_of_pods,
    following.MANY_PAGES: endless_list,
    following.MANY_RULES: crowd_of_rules,
}
