"""The metrics port: `/metrics` in Prometheus' formats and `/healthz`, served by aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from endpick.transport.limits import TransportCounters
from endpick.transport.listener import ListenError, ListenSettings, listening_socket
from endpick.transport.tls import CertificateWatch, TlsSettings

_SHUTDOWN_SECONDS = 1.0
_REFRESH_SECONDS = 1.0

Report = Callable[[], tuple[bool, str]]


class AdminServer:
    """Serves metrics and health on one port."""

    def __init__(self, collector: Collector, report: Report, host: str, port: int, tls: TlsSettings | None = None) -> None:
        """Nothing listens until `start`.

        Args:
            collector: All metric families of the page. Collected in a thread.
            report: Whether the process is ready, and the text of `/healthz`.
            host: Empty for every interface.
            port: 0 for any free port.
            tls: None for plain text.
        """
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(collector)
        self._report = report
        self._address = ListenSettings(host, port, tls)
        application = web.Application()
        application.router.add_get("/metrics", self._metrics)
        application.router.add_get("/healthz", self._healthz)
        self._refreshing: asyncio.Task[None] | None = None
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_SECONDS)

    async def start(self) -> int:
        """Bind and serve; returns the bound port.

        Raises:
            ListenError: the address is in use, or not one of this host.
            TlsError: the certificate cannot be read or used.
        """
        certificate = None if self._address.tls is None else CertificateWatch(self._address.tls)
        if certificate is not None:
            self._refreshing = asyncio.create_task(self._refresh(certificate))
        bound = listening_socket(self._address)
        port: int = bound.getsockname()[1]
        await self._runner.setup()
        try:
            await web.SockSite(self._runner, bound, ssl_context=None if certificate is None else certificate.context).start()
        except OSError as error:
            await self.stop()
            raise ListenError.at(self._address.host, port, error) from error
        return port

    async def stop(self) -> None:
        """Close the port and its connections."""
        if self._refreshing is not None:
            self._refreshing.cancel()
        await self._runner.cleanup()

    async def _refresh(self, certificate: CertificateWatch) -> None:
        counters = TransportCounters()
        while True:
            await asyncio.sleep(_REFRESH_SECONDS)
            certificate.refresh(counters)

    async def _metrics(self, request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        # A thread, because a page of a megabyte takes 50 ms to write.
        body = await asyncio.to_thread(encode, self._registry)
        response = web.Response(body=body, headers={"Content-Type": content_type})
        response.enable_compression()
        return response

    async def _healthz(self, _request: web.Request) -> web.Response:
        ready, text = self._report()
        return web.Response(text=text, status=200 if ready else 503)
