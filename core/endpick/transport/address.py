"""The settings of a listening port, its socket, and the errors of binding it."""

from __future__ import annotations

import errno
import os
import socket
from dataclasses import dataclass, field
from typing import Self

from endpick.transport.limits import Limits
from endpick.transport.tls import TlsSettings


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """One listening port."""

    host: str = ""
    """IPv4 or IPv6 address; empty: all interfaces of both families."""
    port: int = 9002
    """0: any free port; `Server.start` returns it."""
    tls: TlsSettings | None = None
    """None: plain text (HTTP/2 with prior knowledge)."""
    reuse_port: bool = False
    """Share the port with other processes (SO_REUSEPORT)."""
    limits: Limits = field(default_factory=Limits)


PORTS: set[int] = set()
"""Ports that this process has bound; forked children close their sockets."""
_BACKLOG = 1024

_ADVICE = {
    errno.EADDRINUSE: "stop what listens there, or choose another port",
    errno.EADDRNOTAVAIL: "choose an address of this machine",
    errno.EAFNOSUPPORT: "choose an address of a family that this machine supports",
    errno.EACCES: "choose a port from 1024 on, or allow the process to bind lower ones",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files of other processes, or raise the system limit (fs.file-max)",
    errno.ENOBUFS: "the system is short of memory for sockets: end other processes",
    errno.ENOMEM: "the system is short of memory: end other processes",
}
_OTHER_ADVICE = "choose another address or port"


class ListenError(Exception):
    """The address cannot be bound.

    Attributes:
        advice: The way out, for the diagnostic.
    """

    advice = _OTHER_ADVICE

    @classmethod
    def at(cls, host: str, port: int, error: OSError) -> Self:
        """The error of binding an address; an empty `host` means all interfaces."""
        made = cls(f"cannot listen on {host or 'any address'}, port {port}: {_reason(error)}")
        made.advice = _advice(error)
        return made


def _advice(error: OSError) -> str:
    if isinstance(error, socket.gaierror):  # its numbers are not those of errno
        return _OTHER_ADVICE
    return _ADVICE.get(error.errno or 0, _OTHER_ADVICE)


def _reason(error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


def listening_socket(settings: ListenSettings) -> socket.socket:
    """A bound socket that listens; raises `ListenError`."""
    host = settings.host or "::"
    try:
        return _bound(settings, host, both_families=not settings.host)
    except OSError as error:
        if settings.host or error.errno not in _NO_IPV6:
            raise ListenError.at(settings.host, settings.port, error) from error
    try:
        return _bound(settings, "0.0.0.0", both_families=False)  # noqa: S104
    except OSError as error:
        raise ListenError.at(settings.host, settings.port, error) from error


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
        bound.listen(_BACKLOG)
        bound.setblocking(False)
        PORTS.add(bound.getsockname()[1])
    except OSError:
        bound.close()
        raise
    return bound
