"""The port for people and scrapers: metrics, and whether requests are served."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from endpick.observability.exposition import page_of
from endpick.transport.server import ListenError

_COMPRESSED_AT_ONCE_BYTES = 16 * 1024
"""A longer page is compressed in another thread, so that no request waits for it."""


class _SharedScrape:
    """The page that is being written: scrapers that ask meanwhile get the same, so that many cost what one does."""

    def __init__(self, exposed: Collector) -> None:
        self._exposed = exposed
        self._writing: asyncio.Task[bytes] | None = None

    async def page(self) -> bytes:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(page_of(self._exposed))
        return await asyncio.shield(self._writing)


def admin_application(exposed: Collector, report: Callable[[], tuple[bool, str]]) -> web.Application:
    """`/metrics`, and `/healthz`: 200 while `report` says that the process is ready, else 503; with the text that it gives."""
    scrape = _SharedScrape(exposed)

    async def metrics(_request: web.Request) -> web.Response:
        page = await scrape.page()
        response = web.Response(body=page, headers={"Content-Type": CONTENT_TYPE_LATEST}, zlib_executor_size=_COMPRESSED_AT_ONCE_BYTES)
        response.enable_compression()
        return response

    async def healthz(_request: web.Request) -> web.Response:
        ready, text = report()
        return web.Response(text=text, status=200 if ready else 503)

    application = web.Application()
    application.router.add_get("/metrics", metrics)
    application.router.add_get("/healthz", healthz)
    return application


class AdminServer:
    """Serves an application on one port, beside the data plane."""

    def __init__(self, application: web.Application, host: str, port: int) -> None:
        """`host` empty: every interface; `port` 0: any free one."""
        self._runner = web.AppRunner(application, access_log=None, handle_signals=False)
        self._host = host
        self._port = port

    async def start(self) -> int:
        """Bind and serve; returns the bound port.

        Raises:
            ListenError: the address is in use, or not one of this host.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host or None, self._port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise ListenError.at(self._host, self._port, error) from error
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Close the port and its connections."""
        await self._runner.cleanup()
