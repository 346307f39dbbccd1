"""One ext_proc stream, which is one HTTP request: which message comes when, and when the director decides."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from google.protobuf.message import DecodeError

from endpick._proto.ext_proc_pb2 import ProcessingRequest
from endpick.extproc import replies
from endpick.extproc.headers import read_headers, served_endpoint, subset_hint
from endpick.extproc.heads import RESPONSE_HEADERS, header_message
from endpick.extproc.modes import body_modes_of, last_read
from endpick.extproc.pieces import REQUEST_BODY, RESPONSE_BODY, body_piece
from endpick.extproc.replies import passage
from endpick.extproc.request_phase import NO_MEMORY, RequestPhase, UnroutableError
from endpick.extproc.response_phase import LONGEST_SHOWN_BYTES, ResponsePhase
from endpick.extproc.states import SESSION_TRANSITIONS, MessageState, SessionState
from endpick.extproc.stream import GrpcStatus, LetPass, LongMessage, Message, ProtocolError, Reply, SessionCounters, SessionFactory
from endpick.host.throttle import Throttle
from endpick.requests.long_body import LongBody, in_pieces
from endpick.requests.memory import MemoryAccount, MemoryBudget
from endpick.requests.model import EVICTED, LONG_NAME, BodyModes, CloseCause, Decider, Decision, IncomingRequest, Refused, Routed

logger = logging.getLogger(__name__)

_parsed: Final = ProcessingRequest.FromString


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What an operator may choose about every stream."""

    max_request_body_bytes: int = 32 * 1024 * 1024
    """A larger request body is refused with 413; what arrives while a decision is awaited may not be more either."""
    max_held_bytes: int = 512 * 1024 * 1024
    """Headers and undecided bodies of all requests together; requests beyond are refused with 503."""
    max_early_messages: int = 64
    """Of one stream, while its decision is awaited: by then a gateway has sent all but trailers. They are acted on at once afterwards."""
    respects_subset: bool = True
    """Whether the gateway may narrow the candidates by its subset hint."""


DEFAULT_SETTINGS: Final = SessionSettings()
COMPLAINT_INTERVAL_SECONDS: Final = 30.0
"""How often a gateway that breaks the protocol is complained of in the log; the counter counts every time."""
_LONG_PIECE_BYTES: Final = 4096
"""A piece of a request body that is no shorter is not copied out of its message."""
_MESSAGE_BYTES: Final = 64
"""What a message that waits costs beside its bytes, about."""
_ENTRY_BYTES: Final = 64
"""What an entry of the subset hint costs, of which a message may have a hundred thousand."""


# Globals, because a member of an enumeration costs several times as much to look up, and each message looks up some.
_RECEIVING: Final = SessionState.RECEIVING
_BYPASSED: Final = SessionState.BYPASSED
_DECIDING: Final = SessionState.DECIDING
_ROUTED: Final = SessionState.ROUTED
_CLOSED: Final = SessionState.CLOSED
_DONE: Final = MessageState.DONE


class Session:
    """One stream in one `SessionState`; `StreamSession` says what a transport does with it, `Decider` who decides."""

    __slots__ = (
        "_clock",
        "_close_cause",
        "_complaints",
        "_counters",
        "_director",
        "_interrupt",
        "_let_pass",
        "_memory",
        "_queue",
        "_queued_bytes",
        "_received_at",
        "_request",
        "_response",
        "_settings",
        "_streaming",
        "_subset",
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
        memory: MemoryBudget | None = None,
    ) -> None:
        self._director = director
        self._settings = settings
        self._counters = SessionCounters() if counters is None else counters
        self._clock = clock
        self._complaints = Throttle(clock, COMPLAINT_INTERVAL_SECONDS) if complaints is None else complaints
        self._memory = MemoryBudget(settings.max_held_bytes) if memory is None else memory
        self._interrupt: Callable[[object], None] | None = None
        self._let_pass: LetPass | None = None
        self._queue: list[Message] = []
        """As they came: decoded, one with metadata takes twenty times as much."""
        self._queued_bytes = 0
        self._subset: tuple[str, ...] | None = None
        self._received_at = 0.0
        self._close_cause: CloseCause | None = None
        self.body_modes: BodyModes | None = None
        """Which bodies the gateway sends; None before the first message."""
        self._streaming: ResponsePhase | None = None
        """The response, once its headers came: the pieces of its body may take the short way while it `streams`."""
        self.state = SessionState.RECEIVING
        self.waiting: Awaitable[object] | None = None
        """The decision, while the state is DECIDING."""
        self.finished = False
        """Whether the state is ANSWERED or CLOSED: a transport asks after each message, too often for a property."""

    def connect(self, interrupt: Callable[[object], None], let_pass: LetPass | None = None) -> None:
        """What a transport can do: call `resume` with what it is given, also while nothing is awaited; answer pieces that pass itself."""
        self._interrupt = interrupt
        self._let_pass = let_pass

    def receive(self, message: bytes) -> Sequence[Reply]:
        """See `StreamSession.receive`."""
        if self.finished:
            return ()
        streaming = self._streaming
        try:
            if streaming is not None and streaming.streams:  # a streamed answer comes in some eighty messages, all but a few like this
                before, size, instead = passage(len(message))
                if instead and message.startswith(before):
                    return streaming.on_streamed(message[size:], instead)
            state = self.state
            if state is _DECIDING:
                _parsed(message)  # what is none ends the stream now, and not when the decision has been made
                return self._keep(message)
            tag = message[0] if message else 0
            if tag == REQUEST_BODY:
                piece = body_piece(message) if state is _RECEIVING and self.body_modes is not None else None
                if piece is not None:
                    start, stop, end = piece
                    # A long piece of a request is copied once, when the body is whole.
                    is_long = stop - start >= _LONG_PIECE_BYTES
                    chunk = memoryview(message)[start:stop] if is_long else message[start:stop]
                    return self._decide() if self._request.on_body(chunk, end) else ()
            elif tag == RESPONSE_BODY:
                piece = body_piece(message) if self.body_modes is not None else None
                if piece is not None:
                    start, stop, end = piece
                    if stop - start > LONGEST_SHOWN_BYTES:
                        return self._response.on_long_body(in_pieces(memoryview(message)[start:stop]), end)
                    return self._response.on_body(message[start:stop], end)
            else:
                head = header_message(message)
                if head is not None:
                    headers, end, rest = head
                    if self.body_modes is None:
                        self._begin(rest)
                    if tag == RESPONSE_HEADERS:
                        return self._accept_response_headers(headers, end, rest)
                    return self._accept_request_headers(headers, end, rest, len(message))
            return self._accept(_parsed(message))
        except (UnroutableError, DecodeError, ProtocolError) as problem:
            return self._stopped(problem)

    def receive_long(self, message: LongMessage) -> Sequence[Reply]:
        """See `LongBodySession.receive_long`."""
        if self.finished:
            return ()
        try:
            return self._keep(message) if self.state is _DECIDING else self._accept(_parsed(message.rest), message.body)
        except (UnroutableError, DecodeError, ProtocolError) as problem:
            return self._stopped(problem)

    def resume(self, result: object) -> Sequence[Reply]:
        """See `StreamSession.resume`."""
        self.waiting = None
        if self._close_cause is not None:
            if isinstance(result, Routed):
                self._response.exchange = result.exchange
                self._response.finish(self._meaning_of(self._close_cause))
            return ()
        if self.state is _ROUTED:
            return self._taken_back(result)
        if not isinstance(result, (Routed, Refused)):
            return self.fail(TypeError(f"a decision is Routed or Refused, not {type(result).__name__}"))
        answers: list[Reply] = [*self._answer(result)]
        kept, self._queue = self._queue, []
        try:
            for message in kept:
                if self.finished:
                    break
                answers += (
                    self._accept(_parsed(message.rest), message.body)
                    if isinstance(message, LongMessage)
                    else self._accept(_parsed(message))
                )
        except ProtocolError as error:
            raise self._counted(error) from None
        return answers

    def fail(self, exception: BaseException) -> Sequence[Reply]:
        """See `StreamSession.fail`."""
        self.waiting = None
        return () if self.state is _CLOSED else self._internal_error(exception)

    def close(self, cause: CloseCause) -> None:
        """See `StreamSession.close`."""
        if self.state is _CLOSED:
            return
        self._close_cause = cause
        self.state, self.finished = _CLOSED, True  # it may follow each of the others
        self.waiting = None
        self._queue.clear()
        if self.body_modes is not None:
            self._request.release()
            if self._response.exchange is not None:
                self._response.finish(self._meaning_of(cause))

    def _begin(self, message: ProcessingRequest) -> None:
        """The first message says how bodies come."""
        modes = last_read.modes if message is last_read.message else body_modes_of(message)
        self._request = RequestPhase(modes, self._settings.max_request_body_bytes, self._memory)
        self._response = ResponsePhase(modes.response_body, self._counters, self._let_pass)
        self.body_modes = modes

    def _accept(self, message: ProcessingRequest, long: LongBody | None = None) -> Sequence[Reply]:
        """A message as protobuf reads it; `long` is its body where that was taken out of it."""
        if self.body_modes is None:
            self._begin(message)
        match message.WhichOneof("request"):
            case "request_headers":
                head, size = message.request_headers, message.ByteSize()
                return self._accept_request_headers(read_headers(head.headers), head.end_of_stream, message, size)
            case "request_body":
                self._note_subset(message)
                body = message.request_body
                if self.state is _RECEIVING:
                    return self._decide() if self._request.on_body(body.body if long is None else long, body.end_of_stream) else []
                return self._request.pass_body(body.end_of_stream) if self.state is _ROUTED else []
            case "request_trailers":
                self._note_subset(message)
                if self.state is _RECEIVING:
                    self._request.on_trailers()
                    return self._decide()
                return self._request.pass_trailers() if self.state is _ROUTED else []
            case "response_headers":
                head = message.response_headers
                return self._accept_response_headers(read_headers(head.headers), head.end_of_stream, message)
            case "response_body":
                piece, end = message.response_body.body, message.response_body.end_of_stream
                if len(piece) > LONGEST_SHOWN_BYTES:
                    long = in_pieces(piece)
                return self._response.on_body(piece, end) if long is None else self._response.on_long_body(long, end)
            case "response_trailers":
                return self._response.on_trailers()
        raise ProtocolError(GrpcStatus.INVALID_ARGUMENT, "a message carries neither headers, body nor trailers")

    def _accept_request_headers(self, headers: dict[str, str], end: bool, message: ProcessingRequest, size: int) -> Sequence[Reply]:
        if self.state is _BYPASSED:
            return []
        if message.HasField("metadata_context"):
            self._note_subset(message)
        self._counters.requests += 1
        self._received_at = self._clock()
        answers = self._request.on_headers(headers, end, size)
        return self._decide() if self._request.ready else answers

    def _accept_response_headers(self, headers: dict[str, str], end: bool, message: ProcessingRequest) -> Sequence[Reply]:
        if self.state is _RECEIVING:
            self._enter(SessionState.BYPASSED)
        self._streaming = self._response
        served = served_endpoint(message) if message.HasField("metadata_context") else None
        return self._response.on_headers(headers, end, served)

    def _note_subset(self, message: ProcessingRequest) -> None:
        if self._subset is None and self._settings.respects_subset and message.HasField("metadata_context"):
            self._subset = subset_hint(message)
            if self._subset and not self._request.hold(_ENTRY_BYTES * len(self._subset)):
                raise UnroutableError(NO_MEMORY)

    def _stopped(self, problem: Exception) -> Sequence[Reply]:
        """The refusal that answers a message, or the error that ends its stream."""
        if isinstance(problem, UnroutableError):
            return self._unroutable(problem)
        if isinstance(problem, ProtocolError):
            try:
                raise self._counted(problem) from None
            finally:
                del problem  # its traceback refers to this call, and so to the stream: both would wait for the garbage collector
        raise self._counted(ProtocolError(GrpcStatus.INVALID_ARGUMENT, "not an ext_proc message")) from problem

    def _unroutable(self, error: UnroutableError) -> Sequence[Reply]:
        self._counters.unroutable += 1
        self._counters.bodies_too_large += error.refused.status == 413
        self._counters.buffer_exhaustions += error.refused is NO_MEMORY
        return self._refuse(error.refused)

    def _decide(self) -> Sequence[Reply]:
        assert self.body_modes is not None
        subset, self._subset = self._subset, ()  # a hundred thousand entries are not kept while the model answers
        incoming = IncomingRequest(self._request.headers, self._request.body, subset, self._received_at, self.body_modes)
        try:
            decision = self._director.decide(incoming)
        except Exception as error:
            return self._internal_error(error)
        self._request.body = incoming.body  # which may have become another object
        if isinstance(decision, (Routed, Refused)):
            return self._answer(decision)
        self._enter(SessionState.DECIDING)
        self.waiting = decision
        return []

    def _answer(self, decision: Decision) -> Sequence[Reply]:
        if isinstance(decision, Refused):
            return self._refuse(decision)
        self._response.exchange = decision.exchange
        self._enter(SessionState.ROUTED)
        if decision.flight is not None and self._interrupt is not None:
            decision.flight.connect(partial(self._interrupt, EVICTED))
        try:
            return self._request.route(decision)
        except Exception as error:
            return self._internal_error(error)

    def _taken_back(self, result: object) -> Sequence[Reply]:
        """Answer the client of a request that was routed, unless its response is over. One that has begun is cut off by the gateway."""
        if not isinstance(result, Refused) or self._response.state >= _DONE:
            return []
        return self._refuse(result)

    def _refuse(self, refused: Refused) -> Sequence[Reply]:
        self._counters.names_too_long += refused is LONG_NAME
        self._enter(SessionState.ANSWERED)
        return [replies.immediate(refused)]

    def _internal_error(self, exception: BaseException) -> Sequence[Reply]:
        self._counters.decision_faults += 1
        logger.error("a request could not be decided", exc_info=exception)
        self._response.finish(CloseCause.ERROR)
        return self._refuse(Refused(500, "Internal", "the request could not be routed"))

    def _enter(self, state: SessionState) -> None:
        assert state in SESSION_TRANSITIONS[self.state], f"{self.state.name} to {state.name}"
        self.state = state
        self.finished = state >= SessionState.ANSWERED

    def _keep(self, message: Message) -> Sequence[Reply]:
        size = len(message)
        self._queued_bytes += size
        if self._queued_bytes > self._settings.max_request_body_bytes:
            self._counters.bodies_too_large += 1
            raise ProtocolError(GrpcStatus.RESOURCE_EXHAUSTED, "too much came while the decision was being awaited")
        if len(self._queue) >= self._settings.max_early_messages:
            self._counters.messages_too_early += 1
            raise ProtocolError(GrpcStatus.RESOURCE_EXHAUSTED, "too many messages came while the decision was being awaited")
        if not self._request.hold(size + _MESSAGE_BYTES):
            self._counters.buffer_exhaustions += 1
            raise ProtocolError(GrpcStatus.RESOURCE_EXHAUSTED, NO_MEMORY.message)
        self._queue.append(message)
        return ()

    def _meaning_of(self, cause: CloseCause) -> CloseCause:
        """What the end of the stream says about the request.

        A gateway half-closes or resets a stream that it needs no more: because its client is gone, or, where it keeps
        response bodies, because the response is over.
        """
        if (cause is not CloseCause.END and cause is not CloseCause.RESET) or self.body_modes is None:
            return cause
        over = self._response.state is not MessageState.IDLE and not self.body_modes.sees_response_body
        return CloseCause.END if over else CloseCause.RESET

    def _counted(self, error: ProtocolError) -> ProtocolError:
        self._counters.protocol_errors[error.status] += 1
        suppressed = self._complaints.admit(error.message)
        if suppressed is not None:
            logger.warning("a stream was ended with %s: %s", error.status.name, error.message, extra={"suppressed": suppressed})
        return error


def session_factory(
    director: Decider,
    settings: SessionSettings = DEFAULT_SETTINGS,
    counters: SessionCounters | None = None,
    account: MemoryAccount | None = None,
) -> SessionFactory:
    """What a transport needs: a function that makes the session of a new stream."""
    shared = SessionCounters() if counters is None else counters
    complaints = Throttle(time.monotonic, COMPLAINT_INTERVAL_SECONDS)
    return partial(Session, director, settings, shared, complaints=complaints, memory=MemoryBudget(settings.max_held_bytes, account))
