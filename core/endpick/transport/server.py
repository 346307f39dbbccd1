"""What every transport offers to the one who serves: methods in, a bound port out, and two ways to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from endpick.extproc.stream import SessionFactory
from endpick.transport.counters import TransportCounters
from endpick.transport.limits import Limits
from endpick.transport.tls import TlsSettings

__all__ = [
    "EXT_PROC_PATH",
    "EXT_PROC_SERVICE",
    "ListenError",
    "ListenSettings",
    "Method",
    "Methods",
    "Server",
    "ext_proc_methods",
]

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_PROC_PATH = f"/{EXT_PROC_SERVICE}/Process"


class ListenError(Exception):
    """The address cannot be bound; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method: how to open a session for a stream of it."""

    open_session: SessionFactory
    holds_drain: bool = True
    """False: a stream that never ends by itself (a health watch); drain ends it at once rather than waiting for it."""


Methods = Mapping[str, Method]
"""gRPC methods by path, `/package.Service/Method`."""


@dataclass(frozen=True, slots=True)
class ListenSettings:
    """One listening port."""

    host: str = ""
    """IPv4 or IPv6 address; empty: every interface, both families."""
    port: int = 9002
    """0: any free port; `Server.start` says which."""
    tls: TlsSettings | None = None
    """None: plain text (HTTP/2 with prior knowledge)."""
    reuse_port: bool = False
    """Let several processes listen on the same port (SO_REUSEPORT)."""
    limits: Limits = field(default_factory=Limits)


class Server(Protocol):
    """One port that serves gRPC methods. Runs on the event loop it was started on."""

    @property
    def counters(self) -> TransportCounters:
        """Live counts."""

    async def start(self) -> int:
        """Bind and serve; the bound port.

        Raises:
            ListenError: the address is in use or not ours.
            TlsError: the certificate cannot be read or used.
        """

    async def drain(self, grace_seconds: float) -> None:
        """Take nothing new, let streams under way end for up to `grace_seconds`, then close everything."""

    async def stop(self) -> None:
        """Close everything now; idempotent, also after `drain`."""


def ext_proc_methods(open_session: SessionFactory) -> dict[str, Method]:
    """The ext_proc service."""
    return {EXT_PROC_PATH: Method(open_session)}
