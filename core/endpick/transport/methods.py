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
    """One gRPC method, which opens a session for each of its streams."""

    open_session: SessionFactory
    holds_drain: bool = True  # False for endless streams, such as a health watch; a drain ends them at once


Methods = Mapping[str, Method]  # gRPC methods by path, `/package.Service/Method`


def ext_proc_methods(open_session: SessionFactory) -> dict[str, Method]:
    """Return the method of Envoy's ext_proc service, by path."""
    return {EXT_PROC_PATH: Method(open_session)}


class ReplySession:
    """Answers each message at once; a unary method ends after the first."""

    waiting: Awaitable[object] | None = None

    def __init__(self, reply: Callable[[bytes], bytes], *, unary: bool) -> None:
        """`reply` computes the answer to a message, and may raise `ProtocolError`."""
        self._reply = reply
        self._unary = unary
        self.finished = False

    def receive(self, message: bytes) -> Sequence[bytes]:
        self.finished = self._unary
        return (self._reply(message),)

    def resume(self, result: object) -> Sequence[bytes]:
        """See `StreamSession`; never called, because nothing is awaited."""
        return ()

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """See `StreamSession`; never called, because nothing is awaited."""
        return ()

    def close(self, cause: CloseCause) -> None:
        """See `StreamSession`."""
