"""The first half of a stream: the request until it has been routed, in the gateway's dialect."""

from __future__ import annotations

from typing import Final

from endpick.extproc import replies
from endpick.extproc.headers import DESTINATION_HEADER, destination_metadata, mutation
from endpick.extproc.modes import ONE_MESSAGE_MODES
from endpick.extproc.replies import Direction
from endpick.extproc.states import MESSAGE_TRANSITIONS, MessagePart, MessageState, misplaced, out_of_order
from endpick.extproc.stream import Reply
from endpick.requests.long_body import LONGEST_JOINED_BYTES, Body, LongBody, Piece, gather
from endpick.requests.memory import OVERLOADED, MemoryBudget, OverloadStage
from endpick.requests.model import BodyMode, BodyModes, Refused, Routed

_PIECE_BYTES: Final = 64
"""What a piece of a body costs beside its bytes: a body may come byte by byte."""
_VIEW_BYTES: Final = 384
"""The same of a piece that is a view of its message, which it keeps."""
_FEW_PIECES: Final = 16
"""From so many on, short ones that follow each other are kept as one."""
_HEADER_BYTES: Final = 128
"""What a header costs beside its bytes, here and in the request that plugins see."""
NO_MEMORY: Final = Refused(503, "ServiceUnavailable", "the requests under way hold all the memory that there is for them")

# Globals, because a member of an enumeration costs several times as much to look up, and each message looks up some.
_HEADERS: Final = MessagePart.HEADERS
_LAST_HEADERS: Final = MessagePart.LAST_HEADERS
_BODY_PART: Final = MessagePart.BODY
_LAST_BODY: Final = MessagePart.LAST_BODY
_TRAILERS: Final = MessagePart.TRAILERS
_IDLE: Final = MessageState.IDLE
_TRAILED: Final = MessageState.TRAILED
_TO_SERVER: Final = Direction.REQUEST
_REFUSING: Final = OverloadStage.REFUSING
_CLOSING: Final = OverloadStage.CLOSING
_NONE: Final = BodyMode.NONE
_BUFFERED_PARTIAL: Final = BodyMode.BUFFERED_PARTIAL
_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED


class UnroutableError(Exception):
    """The request is refused before the director has seen it."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


class RequestPhase:
    """One request until it has been routed, and the rest of its body after that.

    A method that takes a part of the request changes what the phase knows. When `ready` turns True the director has all it will get, and
    `route` answers everything that is still open. What comes after that is for `pass_body` and `pass_trailers`.
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
        "_sees_body",
        "_size",
        "body",
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
        self._chunks: list[Piece] = []
        self._size = 0
        self._messages = 0
        self._headers_answered = False
        """The gateway buffers the body, and hands it over once the headers are answered: the decision then answers the body."""
        self.headers: dict[str, str] = {}
        self.body: Body | None = None
        """The whole body, from when the phase is `ready` until it is routed; None if there is none to read."""
        self.state = _IDLE
        self.ready = False
        """Nothing that the director needs is still to come: derived from `state` and the mode."""

    def hold(self, size: int) -> bool:
        """Account for bytes that are kept until the decision; False if all requests together keep too many."""
        self._held_bytes += size
        return self._memory.hold(size)

    def release(self) -> None:
        """The stream is over: nothing is kept any more."""
        self._memory.held_bytes -= self._held_bytes
        self._memory.account.held_bytes -= self._held_bytes
        self._head_bytes = self._held_bytes = 0

    def on_headers(self, headers: dict[str, str], end: bool, size: int) -> list[Reply]:
        """The beginning of the request, and all of it if `end`; kept as long as the stream; `size` in bytes.

        Returns:
            The replies that may go at once.

        Raises:
            ProtocolError: the headers came before.
            UnroutableError: there is no memory left, or nearly none for the whole process.
        """
        part = _LAST_HEADERS if end else _HEADERS
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("request", self.state, part)
        self.state = following
        size += _HEADER_BYTES * len(headers)
        self._head_bytes = size
        # As `hold`, here and for each piece of the body, without the calls, which each request would pay for.
        self._held_bytes += size
        memory = self._memory
        account = memory.account
        memory.held_bytes += size
        account.held_bytes += size
        if account.held_bytes > account.alarm_bytes:
            account.reconsider()
        if memory.held_bytes > memory.limit_bytes:
            raise UnroutableError(NO_MEMORY)
        if account.stage >= _REFUSING:
            account.refused += 1
            raise UnroutableError(OVERLOADED)
        self.headers = headers
        if end or not self._sees_body:
            self.ready = True
        elif self._mode in ONE_MESSAGE_MODES:
            self._headers_answered = True
            return [replies.CONTINUE_REQUEST_HEADERS]
        return []

    def on_body(self, chunk: bytes | memoryview | LongBody, end: bool) -> bool:
        """A piece of the body before the decision, the last one if `end`.

        A view keeps the whole message that it shows a part of, so that has to be little else.

        Returns:
            Whether the phase is `ready` now.

        Raises:
            ProtocolError: no body can come here.
            UnroutableError: with this piece it is more than `max_body_bytes`, or there is no memory left.
        """
        mode = self._mode
        last = end or mode in ONE_MESSAGE_MODES
        part = _LAST_BODY if last else _BODY_PART
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("request", self.state, part)
        self.state = following
        self._messages += 1
        # Where each piece is owed an answer, even an empty one has to be accounted for.
        if chunk or mode is not _FULL_DUPLEX:
            self._size += len(chunk)
            if self._size > self._max_body_bytes:
                self._chunks.clear()
                limit = f"the request body is larger than the limit of {self._max_body_bytes} bytes"
                raise UnroutableError(Refused(413, "PayloadTooLarge", limit))
            held = len(chunk) + (_PIECE_BYTES if isinstance(chunk, bytes) else _VIEW_BYTES)
            if isinstance(chunk, LongBody):
                held += _VIEW_BYTES * len(chunk.pieces)
            self._held_bytes += held
            memory = self._memory
            account = memory.account
            memory.held_bytes += held
            account.held_bytes += held
            if account.held_bytes > account.alarm_bytes:
                account.reconsider()
            if memory.held_bytes > memory.limit_bytes:
                self._chunks.clear()
                raise UnroutableError(NO_MEMORY)
            # What was let in at its headers may be a thousand bodies, and each takes three times as much once it is read.
            if account.stage is _CLOSING:
                self._chunks.clear()
                account.refused += 1
                raise UnroutableError(OVERLOADED)
            if isinstance(chunk, LongBody):
                self._chunks += chunk.pieces
            elif self._messages > _FEW_PIECES:
                gather(self._chunks, chunk)
            else:
                self._chunks.append(chunk)
        # Where the gateway may cut a body off, plugins read none but a whole one.
        if last and (end or mode is not _BUFFERED_PARTIAL):
            if self._size <= LONGEST_JOINED_BYTES:
                self.body = b"".join(self._chunks)  # one piece is not copied
                self._chunks.clear()
            else:
                self._end_long_body()
        self.ready = last
        return last

    def on_trailers(self) -> None:
        """Trailers before the decision end the body; no message of it has said so.

        Raises:
            ProtocolError: no trailers can come here.
            UnroutableError: a gateway that buffers bodies has none to hand over, and its headers can be changed no more.
        """
        self._follow(_TRAILERS)
        if self._headers_answered:
            raise UnroutableError(Refused(400, "BadRequest", "a request has trailers but no body"))
        if self._size <= LONGEST_JOINED_BYTES:
            self.body = b"".join(self._chunks)
            self._chunks.clear()
        else:
            self._end_long_body()
        self.ready = True

    def route(self, routed: Routed) -> list[Reply]:
        """Answer all that came so far with the decision."""
        body = self.body
        replaced = routed.body if body is not None else None
        destination = ",".join(routed.destinations)
        changed = routed.set_headers or routed.dynamic_metadata or routed.remove_headers or routed.scores
        if self._headers_answered or replaced is not None or changed:
            answers: list[Reply] = [self._changed_head(routed, destination, replaced)]
        else:
            answers = [replies.destination_only(destination)]
        if body is not None and not self._headers_answered:
            if self._mode is _FULL_DUPLEX:
                sent = body if replaced is None else replaced
                ends = self.state is not _TRAILED
                if isinstance(sent, LongBody):
                    answers += replies.streamed_long(_TO_SERVER, sent, ends)
                else:
                    answers += replies.streamed(_TO_SERVER, sent, ends)
            elif replaced is None:
                answers += replies.repeated(replies.CONTINUE_REQUEST_BODY, self._messages)
            elif self._messages:
                answers.append(replies.replaced_request_body(replaced))
                answers += replies.repeated(replies.replaced_request_body(b""), self._messages - 1)
        if self.state is _TRAILED:
            answers.append(replies.CONTINUE_REQUEST_TRAILERS)
        self.body = None
        self._chunks.clear()
        undecided = self._held_bytes - self._head_bytes
        self._held_bytes = self._head_bytes
        self._memory.held_bytes -= undecided
        self._memory.account.held_bytes -= undecided
        return answers

    def pass_body(self, end: bool) -> list[Reply]:
        """A piece of the body after `route`, the last one if `end`: it goes on as it is.

        Raises:
            ProtocolError: no body can come here.
        """
        self._follow(_LAST_BODY if end or self._mode in ONE_MESSAGE_MODES else _BODY_PART)
        if self._mode is _NONE:
            raise out_of_order("a request body came although request_body_mode is NONE")
        return [replies.CONTINUE_REQUEST_BODY]

    def pass_trailers(self) -> list[Reply]:
        """Trailers after `route`.

        Raises:
            ProtocolError: no trailers can come here.
        """
        self._follow(_TRAILERS)
        return [replies.CONTINUE_REQUEST_TRAILERS]

    def _end_long_body(self) -> None:
        self.body, self._chunks = LongBody(self._chunks), []

    def _follow(self, part: MessagePart) -> None:
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("request", self.state, part)
        self.state = following

    def _changed_head(self, routed: Routed, destination: str, body: Body | None) -> Reply:
        """The reply with the destination and what else is to change; `body` replaces the one that came."""
        own = {DESTINATION_HEADER: destination}
        if body is not None and "content-length" in self.headers:
            own["content-length"] = str(len(body))
        headers = mutation(own, routed.set_headers, routed.remove_headers)
        metadata = destination_metadata(destination, routed.dynamic_metadata, routed.scores)
        if self._headers_answered:
            return replies.buffered_request_body(headers, metadata, body)
        return replies.request_headers(headers, metadata)
