"""Opens ports, or refuses the start."""

from __future__ import annotations

import socket
from typing import Protocol

from endpick.diagnostics import Code, Diagnostic
from endpick.engine.instances import StartRefused
from endpick.transport.listener import ListenError, ListenSettings, listening_socket
from endpick.transport.tls import TlsError

_ABOUT_TLS = "tls.crt and tls.key under --cert-path, and the --client-ca-file, must be PEM files that belong together"


class Startable(Protocol):
    """A server that binds one port when it starts."""

    async def start(self) -> int:
        """Start to serve, and return the bound port. Raises ListenError, TlsError."""


async def started_port(server: Startable) -> int:
    """Start a server, and return its port. Raises StartRefused if it cannot listen."""
    try:
        return await server.start()
    except ListenError as error:
        raise _refused(error) from error
    except TlsError as error:
        raise StartRefused(Diagnostic(Code.E0802, str(error), help=_ABOUT_TLS)) from error


def bound_port(settings: ListenSettings) -> socket.socket:
    """Return a listening socket. Raises StartRefused if the port cannot be bound."""
    try:
        return listening_socket(settings)
    except ListenError as error:
        raise _refused(error) from error


def _refused(error: ListenError) -> StartRefused:
    return StartRefused(Diagnostic(Code.E0801, str(error), help=error.advice))
