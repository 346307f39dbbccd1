"""The admin port."""

from __future__ import annotations

import socket

import aiohttp
import pytest
from prometheus_client import CollectorRegistry, Counter

from endpick.observability.counts import EventCounts
from endpick.serve.admin import AdminServer, admin_application
from endpick.transport.server import ListenError


async def fetch(port: int, path: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{port}{path}") as response:
        return response.status, await response.text()


@pytest.mark.asyncio
async def test_metrics_and_readiness_are_told_over_http():
    registry = CollectorRegistry()
    Counter("things", "Things.", registry=registry).inc(3)
    registry.register(EventCounts("events", "Events.", lambda: {"reset": 7}))
    reason: list[str | None] = ["starting"]
    server = AdminServer(admin_application(registry, lambda: reason[0]), "127.0.0.1", 0)
    port = await server.start()
    try:
        assert await fetch(port, "/healthz") == (503, "starting\n")
        reason[0] = None
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
        server = AdminServer(admin_application(CollectorRegistry(), lambda: None), "127.0.0.1", port)

        with pytest.raises(ListenError, match=rf"cannot listen on 127\.0\.0\.1, port {port}: Address already in use"):
            await server.start()
