"""The admin port: Prometheus metrics and liveness over plain HTTP."""

from __future__ import annotations

import os
from collections.abc import Callable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from endpick.transport.server import ListenError

_READY_TEXT = "ok\n"


def admin_application(exposed: Collector, not_ready: Callable[[], str | None]) -> web.Application:
    """`/metrics`, and `/healthz`: 200 while serving, else 503 with the reason that `not_ready` gives."""

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(exposed), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def healthz(_request: web.Request) -> web.Response:
        reason = not_ready()
        if reason is None:
            return web.Response(text=_READY_TEXT)
        return web.Response(text=f"{reason}\n", status=503)

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
            ListenError: the address is in use or not ours.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host or None, self._port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ListenError(f"cannot listen on {self._host or 'any address'}, port {self._port}: {reason}") from error
        port: int = self._runner.addresses[0][1]
        return port

    async def stop(self) -> None:
        """Close the port and its connections."""
        await self._runner.cleanup()
