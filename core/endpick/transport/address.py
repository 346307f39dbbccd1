"""Where a port listens: its settings, the socket that follows from them, and why there may be none."""

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
    """IPv4 or IPv6 address; empty: every interface, both families."""
    port: int = 9002
    """0: any free port; `Server.start` returns it."""
    tls: TlsSettings | None = None
    """None: plain text (HTTP/2 with prior knowledge)."""
    reuse_port: bool = False
    """Let several processes listen on the same port (SO_REUSEPORT)."""
    limits: Limits = field(default_factory=Limits)


PORTS: set[int] = set()
"""That this process listens on, or has: a child that is forked is to have none of their sockets."""

_ADVICE = {
    errno.EADDRINUSE: "stop what listens there, or choose another port",
    errno.EADDRNOTAVAIL: "choose an address that this machine has",
    errno.EAFNOSUPPORT: "choose an address of a kind that this machine has",
    errno.EACCES: "choose a port from 1024 on, or let the process bind lower ones",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "close files of other processes, or raise what the system may have open (fs.file-max)",
    errno.ENOBUFS: "the system is short of memory for sockets: end what takes it",
    errno.ENOMEM: "the system is short of memory: end what takes it",
}
_OTHER_ADVICE = "choose another address or port"


class ListenError(Exception):
    """The address cannot be bound; the message names it and says why.

    Attributes:
        advice: What to do about it.
    """

    advice = _OTHER_ADVICE

    @classmethod
    def at(cls, host: str, port: int, error: OSError) -> Self:
        """What the system said about an address; `host` empty means every interface."""
        made = cls(f"cannot listen on {host or 'any address'}, port {port}: {_reason(error)}")
        made.advice = _advice(error)
        return made


def _advice(error: OSError) -> str:
    is_of_names = isinstance(error, socket.gaierror)  # whose numbers mean something else
    return _OTHER_ADVICE if is_of_names else _ADVICE.get(error.errno or 0, _OTHER_ADVICE)


def _reason(error: OSError) -> str:
    """The system's own words. An event loop wraps them in a sentence of its own, and a name that is unknown has no errno."""
    if isinstance(error, socket.gaierror) or error.errno is None:
        return error.strerror or str(error)
    return os.strerror(error.errno)


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
            raise ListenError.at(settings.host, settings.port, error) from error
    try:
        return _bound(settings, "0.0.0.0", both_families=False)  # noqa: S104
    except OSError as error:
        raise ListenError.at(settings.host, settings.port, error) from error


def _bound(settings: ListenSettings, host: str, *, both_families: bool) -> socket.socket:
    name = host.encode() if host.isascii() else host  # as text it would import tables of Unicode
    family, kind, protocol, _, address = socket.getaddrinfo(name, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if settings.reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(not both_families))
        bound.bind(address)
        bound.setblocking(False)
        PORTS.add(bound.getsockname()[1])
    except OSError:
        bound.close()
        raise
    return bound
