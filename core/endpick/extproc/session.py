"""One ext_proc stream, which is one HTTP request: which message comes when, and when the director decides."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc import replies
from endpick.extproc.counters import SessionCounters
from endpick.extproc.delivery import delivery_of
from endpick.extproc.memory import MemoryBudget
from endpick.extproc.metadata import served_endpoint, subset_hint
from endpick.extproc.request_phase import NO_MEMORY, RequestPhase, UnroutableError
from endpick.extproc.response_phase import ResponsePhase
from endpick.extproc.stream import CloseCause, ProtocolError, SessionFactory, Status
from endpick.observability.throttle import Throttle
from endpick.requests.decision import Decision, Director, Exchange, Refused, Routed
from endpick.requests.incoming import Delivery, IncomingRequest

logger = logging.getLogger(__name__)

_parsed = ProcessingRequest.FromString


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What an operator may choose about every stream."""

    max_request_body_bytes: int = 32 * 1024 * 1024
    """A larger request body is refused with 413; what arrives while a decision is awaited may not be more either."""
    max_held_bytes: int = 512 * 1024 * 1024
    """Headers and undecided bodies of all requests together; requests beyond are refused with 503."""


DEFAULT_SETTINGS = SessionSettings()
COMPLAINT_INTERVAL_SECONDS = 30.0
"""How often a gateway that breaks the protocol is complained of in the log; the counter counts every time."""
_MESSAGE_BYTES = 512
"""What a parsed message costs beside its bytes, about."""


class Session:
    """The state machine; `StreamSession` says what a transport does with it, `Director` who decides."""

    __slots__ = (
        "_clock",
        "_close_cause",
        "_complaints",
        "_counters",
        "_director",
        "_exchange",
        "_memory",
        "_queue",
        "_queued_bytes",
        "_received_at",
        "_request",
        "_response",
        "_settings",
        "_subset",
        "delivery",
        "finished",
        "waiting",
    )

    _request: RequestPhase
    _response: ResponsePhase

    def __init__(
        self,
        director: Director,
        settings: SessionSettings = DEFAULT_SETTINGS,
        counters: SessionCounters | None = None,
        clock: Callable[[], float] = time.monotonic,
        complaints: Throttle | None = None,
        memory: MemoryBudget | None = None,
    ) -> None:
        self._director = director
        self._settings = settings
        self._counters = SessionCounters() if counters is None else counters
        self._clock = clock
        self._complaints = Throttle(clock, COMPLAINT_INTERVAL_SECONDS) if complaints is None else complaints
        self._memory = MemoryBudget(settings.max_held_bytes) if memory is None else memory
        self._exchange: Exchange | None = None
        self._queue: list[ProcessingRequest] = []
        self._queued_bytes = 0
        self._subset: tuple[str, ...] | None = None
        self._received_at = 0.0
        self._close_cause: CloseCause | None = None
        self.delivery: Delivery | None = None
        """Which bodies the gateway sends; None before the first message."""
        self.waiting: Awaitable[object] | None = None
        self.finished = False

    def receive(self, message: bytes) -> Sequence[bytes]:
        """See `StreamSession.receive`."""
        if self.finished:
            return ()
        try:
            request = _parsed(message)
            if self.waiting is None:
                return self._accept(request)
            self._keep(request, len(message))
        except DecodeError as error:
            raise self._counted(ProtocolError(Status.INVALID_ARGUMENT, "not an ext_proc message")) from error
        except ProtocolError as error:
            raise self._counted(error) from None
        return ()

    def resume(self, result: object) -> Sequence[bytes]:
        """See `StreamSession.resume`."""
        self.waiting = None
        if self._close_cause is not None:
            if isinstance(result, Routed):
                self._exchange = result.exchange
                self._finish(self._close_cause)
            return ()
        if not isinstance(result, (Routed, Refused)):
            return self.fail(TypeError(f"a decision is Routed or Refused, not {type(result).__name__}"))
        answers = self._answer(result)
        kept, self._queue = self._queue, []
        try:
            for request in kept:
                if self.finished:
                    break
                answers += self._accept(request)
        except ProtocolError as error:
            raise self._counted(error) from None
        return answers

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        """See `StreamSession.fail`."""
        self.waiting = None
        return self._internal_error(exception) if self._close_cause is None else ()

    def close(self, cause: CloseCause) -> None:
        """See `StreamSession.close`."""
        if self._close_cause is not None:
            return
        self._close_cause = self._meaning_of(cause)
        self.finished = True
        self.waiting = None
        self._queue.clear()
        if self.delivery is not None:
            self._request.release()
        self._finish(self._close_cause)

    def _accept(self, message: ProcessingRequest) -> list[bytes]:
        if self.delivery is None:
            delivery = delivery_of(message)
            self._request = RequestPhase(delivery, self._settings.max_request_body_bytes, self._memory)
            self._response = ResponsePhase(delivery.response_body, self._counters)
            self.delivery = delivery
        response = self._response
        match message.WhichOneof("request"):
            case "response_body":
                answers = response.on_body(message.response_body)
            case "response_headers":
                answers = response.on_headers(message.response_headers, self._exchange, served_endpoint(message))
            case "response_trailers":
                answers = response.on_trailers()
            case None:
                raise ProtocolError(Status.INVALID_ARGUMENT, "a message carries neither headers, body nor trailers")
            case kind:
                return self._accept_request_part(kind, message)
        if response.complete:
            self._finish(CloseCause.END)
        return answers

    def _accept_request_part(self, kind: str, message: ProcessingRequest) -> list[bytes]:
        request = self._request
        if self._response.started and not request.routed:
            return []  # the gateway answered the client itself; what is left of the request leads nowhere
        if self._subset is None:
            self._subset = subset_hint(message)
        try:
            if kind == "request_headers":
                self._counters.requests += 1
                self._received_at = self._clock()
                answers = request.on_headers(message.request_headers, message.ByteSize())
            elif kind == "request_body":
                answers = request.on_body(message.request_body)
            else:
                answers = request.on_trailers()
        except UnroutableError as error:
            self._counters.unroutable += 1
            self._counters.buffer_exhaustions += error.refused is NO_MEMORY
            return self._refuse(error.refused)
        if request.ready and not request.routed:
            answers += self._decide()
        return answers

    def _decide(self) -> list[bytes]:
        assert self.delivery is not None
        assert self._request.headers is not None
        incoming = IncomingRequest(self._request.headers, self._request.read_body(), self._subset, self._received_at, self.delivery)
        try:
            decision = self._director.decide(incoming)
        except Exception as error:
            return self._internal_error(error)
        if isinstance(decision, (Routed, Refused)):
            return self._answer(decision)
        self.waiting = decision
        return []

    def _answer(self, decision: Decision) -> list[bytes]:
        if isinstance(decision, Refused):
            return self._refuse(decision)
        self._exchange = decision.exchange
        try:
            return self._request.route(decision)
        except Exception as error:
            return self._internal_error(error)

    def _refuse(self, refused: Refused) -> list[bytes]:
        self.finished = True
        return [replies.immediate(refused)]

    def _internal_error(self, exception: BaseException) -> list[bytes]:
        self._counters.decision_faults += 1
        logger.error("a request could not be decided", exc_info=exception)
        self._finish(CloseCause.ERROR)
        return self._refuse(Refused(500, "Internal", "the request could not be routed"))

    def _keep(self, message: ProcessingRequest, size: int) -> None:
        self._queued_bytes += size
        if self._queued_bytes > self._settings.max_request_body_bytes:
            raise ProtocolError(Status.RESOURCE_EXHAUSTED, "too much came while the decision was being awaited")
        if not self._request.hold(size + _MESSAGE_BYTES):
            self._counters.buffer_exhaustions += 1
            raise ProtocolError(Status.RESOURCE_EXHAUSTED, NO_MEMORY.message)
        self._queue.append(message)

    def _meaning_of(self, cause: CloseCause) -> CloseCause:
        """What the end of the stream says about the request.

        A gateway half-closes or resets a stream that it needs no more: because its client is gone, or, where it keeps
        response bodies, because the response is over.
        """
        if (cause is not CloseCause.END and cause is not CloseCause.RESET) or self.delivery is None:
            return cause
        over = self._response.started and not self.delivery.sees_response_body
        return CloseCause.END if over else CloseCause.RESET

    def _finish(self, cause: CloseCause) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is None:
            return
        try:
            exchange.finish(cause)
        except Exception:
            self._counters.exchange_faults += 1
            logger.exception("finish of the exchange failed")

    def _counted(self, error: ProtocolError) -> ProtocolError:
        status = Status(error.status)
        self._counters.protocol_errors[status] += 1
        suppressed = self._complaints.admit(error.message)
        if suppressed is not None:
            logger.warning("a stream was ended with %s: %s", status.name, error.message, extra={"suppressed": suppressed})
        return error


def session_factory(
    director: Director, settings: SessionSettings = DEFAULT_SETTINGS, counters: SessionCounters | None = None
) -> SessionFactory:
    """What a transport needs: a function that makes the session of a new stream."""
    shared = SessionCounters() if counters is None else counters
    complaints = Throttle(time.monotonic, COMPLAINT_INTERVAL_SECONDS)
    memory = MemoryBudget(settings.max_held_bytes)
    return lambda: Session(director, settings, shared, complaints=complaints, memory=memory)
