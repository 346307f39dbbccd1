"""Servers of pages, and a source that asks them."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web

from endpick.api import Endpoint, PluginContext
from endpick_builtin.collection.sources import MetricsDataSource, MetricsSourceParameters

PAGE = b"vllm:num_requests_waiting 3\n"


@asynccontextmanager
async def serving(handler: Callable, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on a port of its own."""
    server = web.Server(handler)
    runner = web.ServerRunner(server, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield site._server.sockets[0].getsockname()[1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def started(source):
    await source.start()
    try:
        yield source
    finally:
        await source.stop()


def metrics_source(logger: str = "tests.sources", **parameters) -> MetricsDataSource:
    context = PluginContext(logger=logging.getLogger(logger))
    return MetricsDataSource("metrics", MetricsSourceParameters.model_validate(parameters), context)


def at(port: int) -> Endpoint:
    return Endpoint("default/a", "127.0.0.1", port)
