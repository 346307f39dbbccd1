"""Listening sockets: both address families on one port where the machine has both."""

from __future__ import annotations

import errno
import socket

from endpick.transport.server import ListenError, ListenSettings

__all__ = ["listening_socket"]

_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listening_socket(settings: ListenSettings) -> socket.socket:
    """A bound socket, not yet listening.

    Raises:
        ListenError: the address cannot be bound.
    """
    host = settings.host or "::"
    try:
        return _bound(settings, host, both_families=not settings.host)
    except OSError as error:
        if settings.host or error.errno not in _NO_IPV6:
            raise _not_bound(settings, error) from error
    try:
        return _bound(settings, "0.0.0.0", both_families=False)  # noqa: S104
    except OSError as error:
        raise _not_bound(settings, error) from error


def _bound(settings: ListenSettings, host: str, *, both_families: bool) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both_families))
        bound.bind(address)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def _not_bound(settings: ListenSettings, error: OSError) -> ListenError:
    return ListenError(f"cannot listen on {settings.host or 'any address'}, port {settings.port}: {error.strerror}")
