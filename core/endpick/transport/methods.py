"""The gRPC methods of a port, by path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from endpick.extproc.stream import SessionFactory
from endpick.requests.model import CloseCause

EXT_PROC_SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"
EXT_PROC_PATH = f"/{EXT_PROC_SERVICE}/Process"


@dataclass(frozen=True, slots=True)
class Method:
    """One gRPC method."""

    open_session: SessionFactory
    holds_drain: bool = True  # False for endless streams, such as a health watch; a drain ends them at once


Methods = Mapping[str, Method]  # gRPC methods by path, `/package.Service/Method`


def ext_proc_methods(open_session: SessionFactory) -> dict[str, Method]:
    """The ext_proc service."""
    return {EXT_PROC_PATH: Method(open_session)}


class ReplySession:
    """Answers each message at once."""

    waiting: Awaitable[object] | None = None

    def __init__(self, reply: Callable[[bytes], bytes], *, unary: bool) -> None:
        """`reply` may raise `ProtocolError`."""
        self._reply = reply
        self._unary = unary
        self.finished = False

    def receive(self, message: bytes) -> Sequence[bytes]:
        """See `StreamSession`."""
        self.finished = self._unary
        return (self._reply(message),)

    def resume(self, result: object) -> Sequence[bytes]:
        """Never called."""
        return ()

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """Never called."""
        return ()

    def close(self, cause: CloseCause) -> None:
        """See `StreamSession`."""
