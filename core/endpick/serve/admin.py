"""The admin port: metrics, and whether requests are served, also while other clients hold the port's connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from http import HTTPStatus

from prometheus_client.registry import Collector

from endpick.serve.admin_http import AdminConnection, BusySeats, HeldPages, Page, Pages
from endpick.serve.admin_limits import AdminCounters, AdminLimits
from endpick.serve.text_page import CONTENT_TYPE, page_of
from endpick.transport.address import ListenSettings, listening_socket
from endpick.transport.listener import Listener
from endpick.transport.tls import CertificateWatch, TlsSettings

_TICK_SECONDS = 1.0


class _SharedScrape:
    """The page that is being written: scrapers that ask meanwhile get the same, so that many cost what one does."""

    def __init__(self, exposed: Collector) -> None:
        self._exposed = exposed
        self._writing: asyncio.Task[Page] | None = None

    async def page(self) -> Page:
        if self._writing is None or self._writing.done():
            self._writing = asyncio.ensure_future(self._write())
        return await asyncio.shield(self._writing)

    async def _write(self) -> Page:
        return Page(await page_of(self._exposed), CONTENT_TYPE)


def admin_pages(exposed: Collector, report: Callable[[], tuple[bool, str]]) -> Pages:
    """`/metrics`, and `/healthz`: 200 while `report` says that the process is ready, else 503; with the text that it gives."""

    async def healthz() -> Page:
        ready, text = report()
        return Page(text.encode(), status=HTTPStatus.OK if ready else HTTPStatus.SERVICE_UNAVAILABLE)

    return {"/metrics": _SharedScrape(exposed).page, "/healthz": healthz}


class AdminServer:
    """Serves pages on one port, beside the data plane."""

    def __init__(self, pages: Pages, host: str, port: int, limits: AdminLimits | None = None, tls: TlsSettings | None = None) -> None:
        """`host` empty: every interface; `port` 0: any free one; without `tls` plain text."""
        self._pages = pages
        self._address = ListenSettings(host, port, tls)
        self._certificate: CertificateWatch | None = None
        self._connections: set[AdminConnection] = set()
        self._limits = limits or AdminLimits()
        self._busy = BusySeats(max(1, self._limits.max_connections // 2))
        self._held = HeldPages(self._limits.max_held_bytes)
        self.counters = AdminCounters()
        self._listener: Listener | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def start(self) -> int:
        """Bind and serve; returns the bound port.

        Raises:
            ListenError: the address is in use, or not one of this host.
            TlsError: the certificate cannot be read or used.
        """
        if self._address.tls is not None:
            self._certificate = CertificateWatch(self._address.tls)
        bound = listening_socket(self._address)
        port: int = bound.getsockname()[1]
        limits = self._limits
        self._listener = Listener(
            bound, limits.max_connections, limits.header_seconds, self.counters, self._new_connection, self._certificate
        )
        self._listener.start()
        self._sweep()
        return port

    async def stop(self) -> None:
        """Close the port and its connections; a page that is being written is not sent."""
        if self._listener is not None:
            self._listener.close()
        if self._timer is not None:
            self._timer.cancel()
        await asyncio.gather(*(connection.end() for connection in tuple(self._connections)))

    def _new_connection(self) -> AdminConnection:
        return AdminConnection(self._pages, self._limits, self.counters, self._busy, self._held, self._opened, self._closed)

    def _opened(self, connection: AdminConnection) -> None:
        self._connections.add(connection)

    def _closed(self, connection: AdminConnection) -> None:
        self._connections.discard(connection)
        if self._listener is not None:
            self._listener.connection_closed()

    def _sweep(self) -> None:
        now = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(_TICK_SECONDS, self._sweep)
        for connection in tuple(self._connections):
            connection.tick(now)
        if self._certificate is not None:
            self._certificate.refresh(self.counters)
