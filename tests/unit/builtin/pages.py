"""Servers of pages, and a source that asks them."""

from __future__ import annotations

import logging
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

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


def make_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1, and its key."""
    cert, key = folder / f"{name}.pem", folder / f"{name}-key.pem"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    paths = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run(["openssl", "req", "-x509", *curve, *names, *paths], check=True, capture_output=True)
    return cert, key
