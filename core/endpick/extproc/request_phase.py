"""The first half of a stream: the request until it has been routed, in the gateway's dialect."""

from __future__ import annotations

from typing import Final

from endpick.extproc import replies
from endpick.extproc.headers import DESTINATION_HEADER, destination_metadata, mutation
from endpick.extproc.modes import ONE_MESSAGE_MODES
from endpick.extproc.replies import Direction
from endpick.extproc.states import MESSAGE_TRANSITIONS, MessagePart, MessageState, misplaced, out_of_order
from endpick.requests.memory import OVERLOADED, MemoryBudget, OverloadStage
from endpick.requests.model import BodyMode, BodyModes, Refused, Routed

_PIECE_BYTES: Final = 64
"""What a piece of a body costs beside its bytes: a body may come byte by byte."""
_VIEW_BYTES: Final = 384
"""The same of a piece that is a view of its message, which it keeps."""
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
_BODY: Final = MessageState.BODY
_TRAILED: Final = MessageState.TRAILED
_TO_SERVER: Final = Direction.REQUEST
_REFUSING: Final = OverloadStage.REFUSING
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
        self._chunks: list[bytes | memoryview] = []
        self._size = 0
        self._messages = 0
        self._readable = False
        """Whether plugins may read the body: not before its end where the gateway may cut it off."""
        self._headers_answered = False
        """The gateway buffers the body, and hands it over once the headers are answered: the decision then answers the body."""
        self.headers: dict[str, str] = {}
        self.state = _IDLE
        self.ready = False
        """Nothing that the director needs is still to come: derived from `state` and the mode."""

    def read_body(self) -> bytes | None:
        """The body as far as it came, joined once; None if there is none to read."""
        if not self._readable:
            return None
        first = self._chunks[0] if len(self._chunks) == 1 else None
        if isinstance(first, bytes):
            return first
        body = b"".join(self._chunks)
        self._chunks = [body]
        return body

    def hold(self, size: int) -> bool:
        """Account for bytes that are kept until the decision; False if all requests together keep too many."""
        self._held_bytes += size
        return self._memory.hold(size)

    def release(self) -> None:
        """The stream is over: nothing is kept any more."""
        self._memory.hold(-self._held_bytes)
        self._head_bytes = self._held_bytes = 0

    def on_headers(self, headers: dict[str, str], end: bool, size: int) -> list[bytes]:
        """The beginning of the request, and all of it if `end`; kept as long as the stream; `size` in bytes.

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
        self._held_bytes += size
        if not self._memory.hold(size):
            raise UnroutableError(NO_MEMORY)
        account = self._memory.account
        if account.stage >= _REFUSING:
            account.refused += 1
            raise UnroutableError(OVERLOADED)
        self.headers = headers
        self._readable = self.state is _BODY and self._sees_body
        self.ready = not self._readable
        if self._readable and self._mode in ONE_MESSAGE_MODES:
            self._headers_answered = True
            return [replies.CONTINUE_REQUEST_HEADERS]
        return []

    def on_body(self, chunk: bytes | memoryview, end: bool, *, routed: bool) -> list[bytes]:
        """A piece of the body, the last one if `end`; `routed` when `route` has been called.

        A view keeps the whole message that it shows a part of, so that has to be little else.

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
        if mode is _NONE:
            raise out_of_order("a request body came although request_body_mode is NONE")
        if routed:
            return [replies.CONTINUE_REQUEST_BODY]
        self._readable = mode is not _BUFFERED_PARTIAL or end
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
        held = len(chunk) + (_PIECE_BYTES if isinstance(chunk, bytes) else _VIEW_BYTES)
        self._held_bytes += held
        if not self._memory.hold(held):
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
