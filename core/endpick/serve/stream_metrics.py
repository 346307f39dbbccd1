"""llm-d's metrics of ext_proc streams: sessions that report when they begin and end, for operators who ask for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from endpick.extproc.stream import (
    GrpcStatus,
    PassingBody,
    ProtocolError,
    SessionFactory,
    StreamSession,
)
from endpick.requests.model import CloseCause
from endpick.serve.metrics import StreamMetrics

CODE_OF: dict[CloseCause, str] = {
    CloseCause.END: "OK",
    CloseCause.RESET: "Canceled",
    CloseCause.DISCONNECT: "Canceled",
    CloseCause.ERROR: "Internal",
    CloseCause.DRAIN: "Unavailable",
}
"""The code of gRPC, as llm-d spells it, by how a stream ended; one that ended for breaking the protocol has the status that it got."""

_NAME_OF = {GrpcStatus.OK: "OK"}


def name_of(status: GrpcStatus) -> str:
    """A gRPC status as llm-d spells it: `InvalidArgument`."""
    return _NAME_OF.get(status) or "".join(word.capitalize() for word in status.name.split("_"))


class MeasuredSession:
    """Another session, and what is counted of it."""

    __slots__ = ("_clock", "_code", "_metrics", "_opened_at", "_session")

    def __init__(self, session: StreamSession, metrics: StreamMetrics, clock: Callable[[], float]) -> None:
        self._session = session
        self._metrics = metrics
        self._clock = clock
        self._code = ""
        self._opened_at = clock()
        metrics.inflight.value += 1.0

    @property
    def waiting(self) -> Awaitable[object] | None:
        """See `StreamSession.waiting`."""
        return self._session.waiting

    @property
    def finished(self) -> bool:
        """See `StreamSession.finished`."""
        return self._session.finished

    def connect(self, interrupt: Callable[[object], None], let_pass: Callable[[PassingBody | None], None] | None = None) -> None:
        """Pass on what the transport can do, if the session wants to know."""
        connect = getattr(self._session, "connect", None)
        if connect is not None:
            connect(interrupt, let_pass)

    def receive(self, message: bytes) -> Sequence[bytes]:
        """See `StreamSession.receive`."""
        try:
            return self._session.receive(message)
        except ProtocolError as problem:
            self._code = name_of(problem.status)
            raise

    def resume(self, result: object) -> Sequence[bytes]:
        """See `StreamSession.resume`."""
        try:
            return self._session.resume(result)
        except ProtocolError as problem:
            self._code = name_of(problem.status)
            raise

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """See `StreamSession.fail`."""
        return self._session.fail(exception)

    def close(self, cause: CloseCause) -> None:
        """See `StreamSession.close`; counted once."""
        if self._opened_at >= 0.0:
            self._metrics.inflight.value -= 1.0
            self._metrics.duration.observe(self._clock() - self._opened_at)
            # Once it was answered, a gateway resets a stream that it needs no more: that is no cancellation.
            done = "OK" if self._session.finished else CODE_OF[cause]
            self._metrics.ended.labels(self._code or done).inc()
            self._opened_at = -1.0
        self._session.close(cause)


def measured(factory: SessionFactory, metrics: StreamMetrics, clock: Callable[[], float]) -> SessionFactory:
    """A factory of sessions that are counted; `clock` gives monotonic seconds."""

    def session() -> StreamSession:
        return MeasuredSession(factory(), metrics, clock)

    return session
