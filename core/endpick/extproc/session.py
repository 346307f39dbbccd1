"""One ext_proc stream: a state machine fed with serialised messages."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.api.request import DirectResponse
from endpick.extproc import replies
from endpick.extproc.messages import (
    REQUEST_BODY,
    RESPONSE_BODY,
    RESPONSE_HEADERS,
    MessageContext,
    body_piece,
    context_of,
    header_message,
    read_headers,
)
from endpick.extproc.replies import piece_heads
from endpick.extproc.request_phase import RequestPhase
from endpick.extproc.response_phase import ResponsePhase
from endpick.extproc.stream import (
    SESSION_TRANSITIONS,
    GrpcStatus,
    LateMessage,
    MessageState,
    ProtocolError,
    SessionCounters,
    SessionFactory,
    SessionState,
    SetPassThrough,
)
from endpick.host.telemetry import Throttle
from endpick.requests.memory import NO_MEMORY, Memory
from endpick.requests.model import (
    EVICTED,
    LONG_NAME,
    BodyModes,
    CloseCause,
    Decider,
    Decision,
    IncomingRequest,
    Refused,
    RequestRefused,
    Routed,
    is_upgrade,
)

logger = logging.getLogger(__name__)

_message_of: Final = ProcessingRequest.FromString


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Limits of a session: larger bodies get 413; `respects_subset` lets the gateway restrict candidates."""

    max_request_body_bytes: int = 32 * 1024 * 1024
    respects_subset: bool = True


DEFAULT_SETTINGS: Final = SessionSettings()
COMPLAINT_INTERVAL_SECONDS: Final = 30.0
_QUEUED_BYTES: Final = 64  # of a message besides its content
MAX_EARLY_MESSAGES: Final = 64  # while the decision is awaited; only trailers are expected then

# Globals: an enum lookup is several times slower.
_RECEIVING: Final = SessionState.RECEIVING
_BYPASSED: Final = SessionState.BYPASSED
_DECIDING: Final = SessionState.DECIDING
_ROUTED: Final = SessionState.ROUTED
_CLOSED: Final = SessionState.CLOSED
_DONE: Final = MessageState.DONE


class Session:
    """The `StreamSession` of one HTTP request."""

    __slots__ = (
        "_clock",
        "_close_cause",
        "_complaints",
        "_counters",
        "_director",
        "_interrupt",
        "_memory",
        "_queue",
        "_received_at",
        "_request",
        "_response",
        "_set_pass_through",
        "_settings",
        "_streaming",
        "_subset",
        "_traceparent",
        "body_modes",
        "finished",
        "state",
        "waiting",
    )

    _request: RequestPhase
    _response: ResponsePhase

    def __init__(
        self,
        director: Decider,
        settings: SessionSettings = DEFAULT_SETTINGS,
        counters: SessionCounters | None = None,
        clock: Callable[[], float] = time.monotonic,
        complaints: Throttle | None = None,
        memory: Memory | None = None,
    ) -> None:
        self._director = director
        self._settings = settings
        self._counters = SessionCounters() if counters is None else counters
        self._clock = clock
        self._complaints = Throttle(clock, COMPLAINT_INTERVAL_SECONDS) if complaints is None else complaints
        self._memory = Memory() if memory is None else memory
        self._interrupt: Callable[[object], None] | None = None
        self._set_pass_through: SetPassThrough | None = None
        self._queue: list[bytes] = []
        self._subset: tuple[str, ...] | None = None
        self._traceparent = ""
        self._received_at = 0.0
        self._close_cause: CloseCause | None = None
        self.body_modes: BodyModes | None = None  # None before the first message
        self._streaming: ResponsePhase | None = None  # the response, after its headers
        self.state = SessionState.RECEIVING
        self.waiting: Awaitable[object] | None = None
        self.finished = False

    def connect(self, interrupt: Callable[[object], None], set_pass_through: SetPassThrough | None = None, traceparent: str = "") -> None:
        """`interrupt` makes the transport call `resume` while nothing is awaited; `traceparent` names the gateway's span."""
        self._interrupt = interrupt
        self._set_pass_through = set_pass_through
        self._traceparent = traceparent

    def receive(self, message: bytes) -> Sequence[bytes]:
        if self.finished:
            return ()
        streaming = self._streaming
        try:
            if streaming is not None and streaming.streams:  # nearly all messages
                message_head, size, reply_head = piece_heads(len(message))
                if reply_head and message.startswith(message_head):
                    return streaming.on_streamed(message[size:], reply_head)
            state = self.state
            if state is _DECIDING:
                return self._enqueue(message)
            tag = message[0] if message else 0
            if tag == REQUEST_BODY:
                piece = body_piece(message) if state <= _ROUTED and self.body_modes is not None else None
                if piece is not None:
                    start, stop, end = piece
                    return self._accept_request_body(message[start:stop], end)
            elif tag == RESPONSE_BODY:
                piece = body_piece(message) if self.body_modes is not None else None
                if piece is not None:
                    start, stop, end = piece
                    return self._response.on_body(message[start:stop], end)
            else:
                head = header_message(message)
                if head is not None:
                    headers, end, context = head
                    if tag == RESPONSE_HEADERS:
                        return self._accept_response_headers(headers, end, context)
                    return self._accept_request_headers(headers, end, context)
            return self._accept(_message_of(message))
        except RequestRefused as refusal:
            return self._unroutable(refusal.refused)
        except LateMessage as late:
            return self._ignored(message[0], late)
        except ProtocolError as error:
            raise self._counted(error) from None
        except DecodeError as malformed:
            raise self._counted(ProtocolError(GrpcStatus.INVALID_ARGUMENT, "not an ext_proc message")) from malformed

    def resume(self, result: object) -> Sequence[bytes]:
        self.waiting = None
        if self._close_cause is not None:
            if isinstance(result, Routed):
                self._response.exchange = result.exchange
                self._response.finish(self._effective_cause(self._close_cause))
            return ()
        if self.state is _ROUTED:
            return self._evicted(result)
        if not isinstance(result, (Routed, Refused, DirectResponse)):
            return self.fail(TypeError(f"a decision is Routed, Refused or DirectResponse, not {type(result).__name__}"))
        answers = [*self._answer(result)]
        queued, self._queue = self._queue, []
        for message in queued:
            answers += self.receive(message)
        return answers

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        self.waiting = None
        return () if self.state is _CLOSED else self._internal_error(exception)

    def close(self, cause: CloseCause) -> None:
        if self.state is _CLOSED:
            return
        self._close_cause = cause
        self._enter(_CLOSED)
        self.waiting = None
        self._queue.clear()
        if self.body_modes is not None:
            self._request.release()
            if self._response.exchange is not None:
                self._response.finish(self._effective_cause(cause))

    def _begin(self, modes: BodyModes) -> None:
        self._request = RequestPhase(modes, self._settings.max_request_body_bytes, self._memory)
        self._response = ResponsePhase(modes.response_body, self._counters, self._set_pass_through)
        self.body_modes = modes

    def _accept(self, message: ProcessingRequest) -> Sequence[bytes]:
        context = context_of(message)
        if self.body_modes is None:
            self._begin(context.modes)
        match message.WhichOneof("request"):
            case "request_headers":
                head = message.request_headers
                return self._accept_request_headers(read_headers(head.headers), head.end_of_stream, context)
            case "request_body":
                self._note_subset(context)
                return self._accept_request_body(message.request_body.body, message.request_body.end_of_stream)
            case "request_trailers":
                self._note_subset(context)
                if self.state is _RECEIVING:
                    self._request.on_trailers()
                    return self._decide()
                return self._request.pass_trailers() if self.state is _ROUTED else ()
            case "response_headers":
                head = message.response_headers
                return self._accept_response_headers(read_headers(head.headers), head.end_of_stream, context)
            case "response_body":
                return self._response.on_body(message.response_body.body, message.response_body.end_of_stream)
            case "response_trailers":
                return self._response.on_trailers()
        raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "a message carries neither headers, body nor trailers")

    def _accept_request_headers(self, headers: dict[str, str], end: bool, context: MessageContext) -> Sequence[bytes]:
        if self.body_modes is None:
            self._begin(context.modes)
        if self.state is _BYPASSED:
            return ()
        self._note_subset(context)
        if self._traceparent:
            headers["traceparent"] = self._traceparent  # the gateway's span, which continues the client's trace
        self._counters.requests += 1
        self._received_at = self._clock()
        answers = self._request.on_headers(headers, end, end or self._director.wants_body(headers))
        return self._decide() if self._request.ready else answers

    def _accept_request_body(self, chunk: bytes, end: bool) -> Sequence[bytes]:
        if self.state is _RECEIVING:
            return self._decide() if self._request.on_body(chunk, end) else ()
        return self._request.pass_body(chunk, end) if self.state is _ROUTED else ()

    def _accept_response_headers(self, headers: dict[str, str], end: bool, context: MessageContext) -> Sequence[bytes]:
        if self.body_modes is None:
            self._begin(context.modes)
        if self.state is _RECEIVING:
            self._enter(_BYPASSED)
        self._streaming = self._response
        return self._response.on_headers(headers, end, context.served, context.gateway_error)

    def _note_subset(self, context: MessageContext) -> None:
        if self._subset is None and self._settings.respects_subset:
            self._subset = context.subset

    def _unroutable(self, refused: Refused) -> Sequence[bytes]:
        self._counters.unroutable += 1
        self._counters.bodies_too_large += refused.status == 413
        self._counters.buffer_exhaustions += refused is NO_MEMORY
        return self._refuse(refused)

    def _decide(self) -> Sequence[bytes]:
        assert self.body_modes is not None
        request = self._request
        incoming = IncomingRequest(request.headers, request.body, self._subset, self._received_at, self.body_modes, request.unread)
        try:
            decision = self._director.decide(incoming)
        except Exception as error:
            return self._internal_error(error)
        if isinstance(decision, (Routed, Refused, DirectResponse)):
            return self._answer(decision)
        self._enter(_DECIDING)
        self.waiting = decision
        return ()

    def _answer(self, decision: Decision) -> Sequence[bytes]:
        if isinstance(decision, Refused):
            return self._refuse(decision)
        if isinstance(decision, DirectResponse):
            return self._end(replies.direct(decision))
        self._response.exchange = decision.exchange
        self._enter(_ROUTED)
        if decision.flight is not None and self._interrupt is not None:
            decision.flight.connect(partial(self._interrupt, EVICTED))
        try:
            return self._request.route(decision)
        except Exception as error:
            return self._internal_error(error)

    def _evicted(self, result: object) -> Sequence[bytes]:
        """Refuse, unless the response is complete; the gateway aborts a partial one."""
        if not isinstance(result, Refused) or self._response.state >= _DONE:
            return ()
        return self._refuse(result)

    def _refuse(self, refused: Refused) -> Sequence[bytes]:
        self._counters.names_too_long += refused is LONG_NAME
        return self._end(replies.immediate(refused))

    def _end(self, reply: bytes) -> Sequence[bytes]:
        self.waiting = None
        self._request.release()
        self._enter(SessionState.ANSWERED)
        return [reply]

    def _internal_error(self, exception: BaseException) -> Sequence[bytes]:
        self._counters.decision_faults += 1
        logger.error("a request could not be decided", exc_info=exception)
        self._response.finish(CloseCause.ERROR)
        return self._refuse(Refused(500, "Internal", "the request could not be routed"))

    def _enter(self, state: SessionState) -> None:
        assert state in SESSION_TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state
        self.finished = state >= SessionState.ANSWERED

    def _enqueue(self, message: bytes) -> Sequence[bytes]:
        _message_of(message)  # raises if invalid
        if self._request.unread:
            self._request.hold(len(message) + _QUEUED_BYTES)
        elif len(self._queue) >= MAX_EARLY_MESSAGES:
            raise ProtocolError(GrpcStatus.RESOURCE_EXHAUSTED, "too many messages came while the decision was being awaited")
        self._queue.append(message)
        return ()

    def _effective_cause(self, cause: CloseCause) -> CloseCause:
        """A gateway ends a stream if the client left, or after the response. Upgrades have no other end."""
        if (cause is not CloseCause.END and cause is not CloseCause.RESET) or self.body_modes is None:
            return cause
        has_no_end = not self.body_modes.sees_response_body or is_upgrade(self._request.headers)
        return CloseCause.END if has_no_end and self._response.state is not MessageState.IDLE else CloseCause.RESET

    def _ignored(self, tag: int, late: LateMessage) -> Sequence[bytes]:
        self._counters.messages_after_end += 1
        suppressed = self._complaints.admit(late.message)
        if suppressed is not None:
            logger.warning("%s, and was ignored", late.message, extra={"suppressed": suppressed})
        assert self.body_modes is not None
        return replies.to_late(tag, self.body_modes)

    def _counted(self, error: ProtocolError) -> ProtocolError:
        self._counters.protocol_errors[error.status] += 1
        suppressed = self._complaints.admit(error.message)
        if suppressed is not None:
            logger.warning("a stream was ended with %s: %s", error.status.name, error.message, extra={"suppressed": suppressed})
        return error


def session_factory(
    director: Decider, settings: SessionSettings = DEFAULT_SETTINGS, counters: SessionCounters | None = None, memory: Memory | None = None
) -> SessionFactory:
    """Return a factory of sessions, which share counters, memory and the throttle of log messages."""
    shared = SessionCounters() if counters is None else counters
    complaints = Throttle(time.monotonic, COMPLAINT_INTERVAL_SECONDS)
    return partial(Session, director, settings, shared, complaints=complaints, memory=Memory() if memory is None else memory)
