"""The two halves of a stream: the request until it has been routed, the response until its end, each in the gateway's dialect."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from endpick._proto.ext_proc_pb2 import HeaderMutation, HttpHeaders
from endpick.extproc import replies
from endpick.extproc.headers import DESTINATION_HEADER, as_struct, destination_metadata, mutation, read_headers
from endpick.extproc.replies import Direction
from endpick.extproc.stream import GrpcStatus, ProtocolError, SessionCounters
from endpick.requests.memory import OVERLOADED, MemoryBudget, OverloadStage
from endpick.requests.model import BodyMode, BodyModes, Exchange, Refused, Routed

logger = logging.getLogger(__name__)

_ONE_MESSAGE: Final = frozenset({BodyMode.BUFFERED, BodyMode.BUFFERED_PARTIAL})
_PIECE_BYTES: Final = 64
"""What a piece of a body costs beside its bytes: a body may come byte by byte."""
NO_MEMORY: Final = Refused(503, "ServiceUnavailable", "the requests under way hold all the memory that there is for them")


class MessageState(IntEnum):
    """How much of one HTTP message, the request or the response, the gateway has sent."""

    IDLE = 0
    BODY = 1
    """Its headers came; its body or trailers follow."""
    DONE = 2
    """Its body is over; only trailers may follow."""
    TRAILED = 3
    """Its trailers came, the last that there is."""


class MessagePart(IntEnum):
    """One ext_proc message about an HTTP message; LAST_… ends the body."""

    HEADERS = 0
    LAST_HEADERS = 1
    BODY = 2
    LAST_BODY = 3
    TRAILERS = 4


MESSAGE_TRANSITIONS: Final[Mapping[tuple[int, int], MessageState]] = {
    (MessageState.IDLE, MessagePart.HEADERS): MessageState.BODY,
    (MessageState.IDLE, MessagePart.LAST_HEADERS): MessageState.DONE,
    (MessageState.BODY, MessagePart.BODY): MessageState.BODY,
    (MessageState.BODY, MessagePart.LAST_BODY): MessageState.DONE,
    (MessageState.BODY, MessagePart.TRAILERS): MessageState.TRAILED,
    (MessageState.DONE, MessagePart.TRAILERS): MessageState.TRAILED,
}
"""What is not here, the gateway may not send. A gateway that buffers a body sends trailers after a body that is over."""

# Globals, because a member of an enumeration costs several times as much to look up, and each message looks up some.
_BODY: Final = MessageState.BODY
_DONE: Final = MessageState.DONE
_TRAILED: Final = MessageState.TRAILED
_BODY_PART: Final = MessagePart.BODY
_LAST_BODY: Final = MessagePart.LAST_BODY
_TRAILERS: Final = MessagePart.TRAILERS
_TO_SERVER: Final = Direction.REQUEST
_TO_CLIENT: Final = Direction.RESPONSE
_REFUSING: Final = OverloadStage.REFUSING
_NONE: Final = BodyMode.NONE
_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED

_PLURAL: Final = {MessagePart.HEADERS: "headers", MessagePart.LAST_HEADERS: "headers", MessagePart.TRAILERS: "trailers"}


def misplaced(message: str, state: MessageState, part: MessagePart) -> ProtocolError:
    """The gateway sent a part of a `request` or `response` that cannot come in this state."""
    what = f"{message} {_PLURAL[part]}" if part in _PLURAL else f"a {message} body"
    if part <= MessagePart.LAST_HEADERS or (part is MessagePart.TRAILERS and state is MessageState.TRAILED):
        return out_of_order(f"{what} came twice")
    if state is MessageState.IDLE:
        return out_of_order(f"{what} came before the {message} headers")
    return out_of_order(f"{what} came after the end of the {message}")


def out_of_order(what: str) -> ProtocolError:
    """The gateway sent something that cannot come here."""
    return ProtocolError(GrpcStatus.INVALID_ARGUMENT, f"{what}; the messages of a stream must follow one HTTP request")


class UnroutableError(Exception):
    """The request is refused before the director has seen it."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class RequestPhase:
    """One request until it has been routed, and the rest of its body after that.

    A method that takes a message returns the replies that may go at once. When `ready` turns True the director has all it
    will get, and `route` answers everything that is still open.
    """

    __slots__ = (
        "_chunks",
        "_head_bytes",
        "_headers_answered",
        "_held_bytes",
        "_max_body_bytes",
        "_memory",
        "_messages",
        "_mode",
        "_readable",
        "_sees_body",
        "_size",
        "headers",
        "ready",
        "state",
    )

    def __init__(self, modes: BodyModes, max_body_bytes: int, memory: MemoryBudget) -> None:
        self._mode = modes.request_body
        self._sees_body = modes.sees_request_body
        self._max_body_bytes = max_body_bytes
        self._memory = memory
        self._head_bytes = 0
        self._held_bytes = 0
        self._chunks: list[bytes] = []
        self._size = 0
        self._messages = 0
        self._readable = False
        """Whether plugins may read the body: not before its end where the gateway may cut it off."""
        self._headers_answered = False
        """The gateway buffers the body, and hands it over once the headers are answered: the decision then answers the body."""
        self.headers: dict[str, str] = {}
        self.state = MessageState.IDLE
        self.ready = False
        """Nothing that the director needs is still to come: derived from `state` and the mode."""

    def read_body(self) -> bytes | None:
        """The body as far as it came, joined once; None if there is none to read."""
        if not self._readable:
            return None
        if len(self._chunks) != 1:
            self._chunks = [b"".join(self._chunks)]
        return self._chunks[0]

    def hold(self, size: int) -> bool:
        """Account for bytes that are kept until the decision; False if all requests together keep too many."""
        self._held_bytes += size
        return self._memory.hold(size)

    def release(self) -> None:
        """The stream is over: nothing is kept any more."""
        self._memory.hold(-self._held_bytes)
        self._head_bytes = self._held_bytes = 0

    def on_headers(self, message: HttpHeaders, size: int) -> list[bytes]:
        """The beginning of the request, kept as long as the stream; `size` in bytes.

        Raises:
            ProtocolError: the headers came before.
            UnroutableError: there is no memory left, or nearly none for the whole process.
        """
        part = MessagePart.LAST_HEADERS if message.end_of_stream else MessagePart.HEADERS
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("request", self.state, part)
        self.state = following
        self._head_bytes = size
        self._held_bytes += size
        if not self._memory.hold(size):
            raise UnroutableError(NO_MEMORY)
        account = self._memory.account
        if account.stage >= _REFUSING:
            account.refused += 1
            raise UnroutableError(OVERLOADED)
        self.headers = read_headers(message.headers)
        self._readable = self.state is MessageState.BODY and self._sees_body
        self.ready = not self._readable
        if self._readable and self._mode in _ONE_MESSAGE:
            self._headers_answered = True
            return [replies.CONTINUE_REQUEST_HEADERS]
        return []

    def on_body(self, chunk: bytes, end: bool, *, routed: bool) -> list[bytes]:
        """A piece of the body, the last one if `end`; `routed` when `route` has been called.

        Raises:
            ProtocolError: no body can come here.
            UnroutableError: with this piece it is more than `max_body_bytes`, or there is no memory left.
        """
        mode = self._mode
        last = end or mode in _ONE_MESSAGE
        part = _LAST_BODY if last else _BODY_PART
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("request", self.state, part)
        self.state = following
        if mode is _NONE:
            raise out_of_order("a request body came although request_body_mode is NONE")
        if routed:
            return [replies.CONTINUE_REQUEST_BODY]
        self._readable = mode is not BodyMode.BUFFERED_PARTIAL or end
        self.ready = last
        self._messages += 1
        # Where each piece is owed an answer, even an empty one has to be remembered.
        if not chunk and mode is _FULL_DUPLEX:
            return []
        self._size += len(chunk)
        if self._size > self._max_body_bytes:
            self._chunks.clear()
            limit = f"the request body is larger than the limit of {self._max_body_bytes} bytes"
            raise UnroutableError(Refused(413, "PayloadTooLarge", limit))
        self._held_bytes += len(chunk) + _PIECE_BYTES
        if not self._memory.hold(len(chunk) + _PIECE_BYTES):
            self._chunks.clear()
            raise UnroutableError(NO_MEMORY)
        self._chunks.append(chunk)
        return []

    def on_trailers(self, *, routed: bool) -> list[bytes]:
        """Trailers end the body; no message of it has said so. `routed` when `route` has been called.

        Raises:
            ProtocolError: no trailers can come here.
            UnroutableError: a gateway that buffers bodies has none to hand over, and its headers can be changed no more.
        """
        part = _TRAILERS
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("request", self.state, part)
        self.state = following
        if routed:
            return [replies.CONTINUE_REQUEST_TRAILERS]
        if self._headers_answered:
            raise UnroutableError(Refused(400, "BadRequest", "a request has trailers but no body"))
        self.ready = True
        return []

    def route(self, routed: Routed) -> list[bytes]:
        """Answer all that came so far with the decision."""
        body = routed.body if self._readable else None
        answers = [self._routing_answer(routed, body)]
        if not self._headers_answered:
            answers += self._body_answers(body)
        if self.state is _TRAILED:
            answers.append(replies.CONTINUE_REQUEST_TRAILERS)
        self._chunks.clear()
        self._memory.hold(self._head_bytes - self._held_bytes)
        self._held_bytes = self._head_bytes
        return answers

    def _routing_answer(self, routed: Routed, body: bytes | None) -> bytes:
        destination = ",".join(routed.destinations)
        changed = routed.set_headers or routed.dynamic_metadata or routed.remove_headers or routed.scores
        if not (self._headers_answered or body is not None or changed):
            return replies.destination_only(destination)
        own = {DESTINATION_HEADER: destination}
        if body is not None and "content-length" in self.headers:
            own["content-length"] = str(len(body))
        headers = mutation(own, routed.set_headers, routed.remove_headers)
        metadata = destination_metadata(destination, routed.dynamic_metadata, routed.scores)
        if self._headers_answered:
            return replies.buffered_request_body(headers, metadata, body)
        return replies.request_headers(headers, metadata)

    def _body_answers(self, replaced: bytes | None) -> list[bytes]:
        body = self.read_body()
        if body is None:
            return []
        if self._mode is _FULL_DUPLEX:
            return replies.streamed(_TO_SERVER, body if replaced is None else replaced, end=self.state is not _TRAILED)
        if replaced is None:
            return [replies.CONTINUE_REQUEST_BODY] * self._messages
        pieces = (replaced if position == 0 else b"" for position in range(self._messages))
        return [replies.replaced_request_body(piece) for piece in pieces]


class ResponsePhase:
    """One response, from its headers to its end.

    Without an exchange (the gateway answered by itself, or shows us responses only) everything passes as it is.
    """

    __slots__ = ("_counters", "_exchange", "_has_length", "_mode", "_replaced", "_wants_chunks", "state")

    def __init__(self, mode: BodyMode, counters: SessionCounters) -> None:
        self._mode = mode
        self._counters = counters
        self._exchange: Exchange | None = None
        self._wants_chunks = False
        self._replaced = False
        self._has_length = False
        self.state = MessageState.IDLE

    def on_headers(self, message: HttpHeaders, exchange: Exchange | None, served: str | None) -> list[bytes]:
        """The beginning of the response.

        Raises:
            ProtocolError: the headers came before.
        """
        part = MessagePart.LAST_HEADERS if message.end_of_stream else MessagePart.HEADERS
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("response", self.state, part)
        self.state = following
        self._exchange = exchange
        headers = read_headers(message.headers)
        self._has_length = "content-length" in headers
        answer = replies.CONTINUE_RESPONSE_HEADERS if exchange is None else self._headers_answer(exchange, headers, served)
        if not message.end_of_stream:
            return [answer]
        self._instead_of(b"", end=True)
        return [self._with_closing_metadata(answer)]

    def on_body(self, chunk: bytes, end: bool) -> list[bytes]:
        """A piece of the body; the last one if `end`.

        Raises:
            ProtocolError: no body can come here, or one that is being rewritten cannot be rewritten to its end.
        """
        end = end or self._mode in _ONE_MESSAGE
        if end or self.state is not _BODY:  # else it stays as it is, as for nearly every piece
            part = _LAST_BODY if end else _BODY_PART
            following = MESSAGE_TRANSITIONS.get((self.state, part))
            if following is None:
                raise misplaced("response", self.state, part)
            self.state = following
        if self._mode is _NONE:
            raise out_of_order("a response body came although response_body_mode is NONE")
        instead = self._instead_of(chunk, end)
        if self._mode is _FULL_DUPLEX:
            answers = replies.streamed(_TO_CLIENT, chunk if instead is None else instead, end)
        elif instead is None:
            answers = [replies.CONTINUE_RESPONSE_BODY]
        else:
            answers = [replies.replaced_response_body(instead, self._length_of(instead))]
        if end:
            answers[-1] = self._with_closing_metadata(answers[-1])
        return answers

    def on_trailers(self) -> list[bytes]:
        """Trailers; they end the body if no message of it has said so.

        Raises:
            ProtocolError: no trailers can come here, or there is no place left for the end of the body.
        """
        before, part = self.state, _TRAILERS
        following = MESSAGE_TRANSITIONS.get((before, part))
        if following is None:
            raise misplaced("response", before, part)
        self.state = following
        if before is _DONE:
            return [replies.CONTINUE_RESPONSE_TRAILERS]
        held_back = self._instead_of(b"", end=True) or b""
        if held_back and self._mode is not _FULL_DUPLEX:
            raise ProtocolError(GrpcStatus.INTERNAL, "the end of a response was held back until there was no place for it")
        answers = replies.streamed(_TO_CLIENT, held_back, end=False)
        return [*answers, self._with_closing_metadata(replies.CONTINUE_RESPONSE_TRAILERS)]

    def _headers_answer(self, exchange: Exchange, headers: Mapping[str, str], served: str | None) -> bytes:
        try:
            added = exchange.response_headers(headers, served)
            self._wants_chunks = exchange.wants_chunks
            return replies.response_headers(tuple(added.items()))
        except Exception as error:
            self._fault("response_headers", error)
            return replies.CONTINUE_RESPONSE_HEADERS

    def _instead_of(self, chunk: bytes, end: bool) -> bytes | None:
        """What the exchange wants sent in place of the chunk; None: the chunk."""
        unseen = self._mode is _NONE or not (end or self._wants_chunks)
        if unseen or self._exchange is None:
            return None
        try:
            instead = self._exchange.response_chunk(chunk, end)
        except Exception as error:
            self._fault("response_chunk", error)
            if self._replaced:
                raise ProtocolError(GrpcStatus.INTERNAL, "a response could not be rewritten to its end") from error
            return None
        self._replaced = self._replaced or instead is not None
        return instead

    def _length_of(self, body: bytes) -> HeaderMutation | None:
        """The new content-length of a buffered body, without which the gateway refuses it; it drops that of others itself."""
        if self._mode is BodyMode.BUFFERED and self._has_length:
            return mutation({"content-length": str(len(body))}, {})
        return None

    def _with_closing_metadata(self, reply: bytes) -> bytes:
        if self._exchange is None or self._mode is _NONE:
            return reply
        try:
            metadata = self._exchange.response_metadata()
            return replies.with_metadata(reply, as_struct(metadata)) if metadata else reply
        except Exception as error:
            self._fault("response_metadata", error)
            return reply

    def _fault(self, method: str, error: Exception) -> None:
        """An exchange that raised is not asked again; its request goes on."""
        self._counters.exchange_faults += 1
        logger.error("%s of the exchange failed; the response passes as it is", method, exc_info=error)
        self._exchange = None
