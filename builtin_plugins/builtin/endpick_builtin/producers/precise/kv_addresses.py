"""Addresses as ZeroMQ writes them, and the sockets that dial them or listen at them."""

from __future__ import annotations

import asyncio
import errno
import socket
from pathlib import Path
from typing import Any, TypeAlias

_Where: TypeAlias = tuple[Any, ...] | str

_CONNECT_SECONDS = 5.0
_BACKLOG = 128


async def connected_to(address: str) -> socket.socket:
    """A connection, non-blocking.

    Raises:
        OSError: there is none.
    """
    loop = asyncio.get_running_loop()
    family, where = await _looked_up(address)
    connected = socket.socket(family, socket.SOCK_STREAM)
    try:
        connected.setblocking(False)
        async with asyncio.timeout(_CONNECT_SECONDS):
            await loop.sock_connect(connected, where)
    except BaseException:
        connected.close()
        raise
    return connected


async def _looked_up(address: str) -> tuple[int, _Where]:
    """Raises OSError: the address is none."""
    host, port = parts_of(address)
    if not port:
        return socket.AF_UNIX, host
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return found[0][0], found[0][4]


def listening_at(address: str) -> tuple[socket.socket, Path | None]:
    """A socket that listens there, and its file if it has one.

    Raises:
        OSError: the address is taken, or none.
    """
    host, port = parts_of(address)
    path = None
    if not port:
        path = None if host.startswith("\0") else Path(host)
        if path is not None and path.is_socket():
            path.unlink()
        family: int = socket.AF_UNIX
        where: _Where = host
    elif host == "*":
        family, where = (socket.AF_INET6, ("::", int(port))) if socket.has_dualstack_ipv6() else (socket.AF_INET, ("", int(port)))
    else:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listening.bind(where)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except BaseException:
        listening.close()
        raise
    return listening, path


def parts_of(address: str) -> tuple[str, str]:
    """Host and port, or the path of a socket and nothing.

    Raises:
        OSError: it is no address of ZeroMQ that can be spoken with here.
    """
    kind, _, rest = address.partition("://")
    if kind == "ipc" and rest:
        return ("\0" + rest[1:] if rest.startswith("@") else rest), ""
    host, _, port = rest.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    port = "0" if port == "*" else port
    if kind != "tcp" or not host or not (port.isascii() and port.isdigit() and int(port) <= 65_535):
        raise OSError(errno.EINVAL, "Invalid argument")
    return host, port
