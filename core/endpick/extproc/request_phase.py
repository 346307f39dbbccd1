"""The request half of a stream."""

from __future__ import annotations

from typing import Final

from endpick.extproc import replies
from endpick.extproc.messages import DESTINATION_HEADER, ONE_MESSAGE_MODES, STREAMING_MODES, destination_metadata, mutation
from endpick.extproc.replies import Direction
from endpick.extproc.stream import MESSAGE_TRANSITIONS, MessagePart, MessageState, misplaced, next_state, out_of_order
from endpick.requests.memory import NO_MEMORY, OVERLOADED, Memory, OverloadStage
from endpick.requests.model import CODE_OF, BodyMode, BodyModes, Refused, RequestRefused, Routed, is_upgrade

LARGE_BODY_BYTES: Final = 1024 * 1024  # memory is measured before parsing larger bodies
_JOINED_CHUNKS: Final = 1024  # chunks are joined: an object has 40 bytes of overhead

# Globals: an enum lookup is several times slower.
_HEADERS: Final = MessagePart.HEADERS
_LAST_HEADERS: Final = MessagePart.LAST_HEADERS
_BODY_PART: Final = MessagePart.BODY
_LAST_BODY: Final = MessagePart.LAST_BODY
_TRAILERS: Final = MessagePart.TRAILERS
_TRAILED: Final = MessageState.TRAILED
_REFUSING: Final = OverloadStage.REFUSING
_NONE: Final = BodyMode.NONE
_BUFFERED_PARTIAL: Final = BodyMode.BUFFERED_PARTIAL
_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED


class RequestPhase:
    """Collects a request until it is `ready`; `route` answers it, and later messages pass unchanged."""

    __slots__ = (
        "_buffered",
        "_chunks",
        "_held_bytes",
        "_joined",
        "_max_body_bytes",
        "_memory",
        "_messages",
        "_mode",
        "_sees_body",
        "_streams_nothing",
        "body",
        "headers",
        "ready",
        "state",
        "unread",
    )

    def __init__(self, modes: BodyModes, max_body_bytes: int, memory: Memory) -> None:
        self._mode = modes.request_body
        self._sees_body = modes.sees_request_body
        self._streams_nothing = modes.request_body not in STREAMING_MODES or modes.response_body not in STREAMING_MODES
        self._max_body_bytes = max_body_bytes
        self._memory = memory
        self._held_bytes = 0
        self._chunks: list[bytes] = []
        self._joined = 0
        self._messages = 0
        self._buffered = False  # the decision answers the body, not the headers
        self.headers: dict[str, str] = {}
        self.body: bytes | None = None  # the whole body, once `ready`
        self.state = MessageState.IDLE
        self.ready = False
        self.unread = False  # the body passes after `route`

    def release(self) -> None:
        """Release the body and the memory that is reserved for it."""
        self._memory.held_bytes -= self._held_bytes
        self._held_bytes = 0
        self._chunks.clear()
        self.body = None

    def on_headers(self, headers: dict[str, str], end: bool, wants_body: bool) -> list[bytes]:
        """Handle the request headers; returns replies. Raises ProtocolError, RequestRefused."""
        self.state = next_state("request", self.state, _LAST_HEADERS if end else _HEADERS)
        self._refuse_if_short_of_memory()
        self.headers = headers
        if end or not self._sees_body:
            self.ready = True
        elif not wants_body:
            self.ready = self.unread = True
        elif self._mode in ONE_MESSAGE_MODES:
            self._buffered = True
            return [replies.CONTINUE_REQUEST_HEADERS]
        return []

    def on_body(self, chunk: bytes, end: bool) -> bool:
        """Handle a chunk of the body; returns `ready`. Raises ProtocolError, RequestRefused."""
        last = end or self._mode in ONE_MESSAGE_MODES
        part = _LAST_BODY if last else _BODY_PART
        following = MESSAGE_TRANSITIONS.get((self.state, part))
        if following is None:
            raise misplaced("request", self.state, part)
        self.state = following
        self._messages += 1
        self.hold(len(chunk))
        if chunk:
            self._chunks.append(chunk)
            if len(self._chunks) - self._joined >= _JOINED_CHUNKS:
                self._chunks[self._joined :] = [b"".join(self._chunks[self._joined :])]
                self._joined += 1
        if last:
            self._complete(is_whole=end or self._mode is not _BUFFERED_PARTIAL)
        return last

    def hold(self, size: int) -> None:
        """Reserve memory for `size` more bytes; raises RequestRefused beyond a limit."""
        self._held_bytes += size
        if self._held_bytes > self._max_body_bytes:
            limit = f"the request body is larger than the limit of {self._max_body_bytes} bytes"
            self._held_bytes -= size
            raise RequestRefused(Refused(413, CODE_OF[413], limit))
        if not self._memory.hold(size):
            raise RequestRefused(NO_MEMORY)

    def on_trailers(self) -> None:
        """Handle trailers, which end the body. Raises ProtocolError, RequestRefused."""
        self.state = next_state("request", self.state, _TRAILERS)
        if self._buffered:
            raise RequestRefused(Refused(400, CODE_OF[400], "a request has trailers but no body"))
        self._complete(is_whole=True)

    def route(self, routed: Routed) -> list[bytes]:
        """Answer all messages so far with the decision, and release the body."""
        body = self.body
        replaced = routed.body if body is not None else None
        destination = ",".join(routed.destinations)
        changed = routed.set_headers or routed.dynamic_metadata or routed.remove_headers or routed.scores
        if self._buffered or replaced is not None or changed:
            answers = [self._changed_head(routed, destination, replaced)]
        else:
            answers = [replies.destination_only(destination)]
        if body is not None and not self._buffered:
            if self._mode is _FULL_DUPLEX:
                answers += replies.streamed(Direction.REQUEST, body if replaced is None else replaced, self.state is not _TRAILED)
            elif replaced is None:
                answers += [replies.CONTINUE_REQUEST_BODY] * self._messages
            elif self._messages:
                answers.append(replies.replaced_request_body(replaced))
                answers += [replies.replaced_request_body(b"")] * (self._messages - 1)
        if self._streams_nothing and is_upgrade(self.headers):
            answers[0] += replies.WITHOUT_BODIES
        if self.state is _TRAILED:
            answers.append(replies.CONTINUE_REQUEST_TRAILERS)
        self.release()
        return answers

    def pass_body(self, chunk: bytes, end: bool) -> list[bytes]:
        """Answer a chunk that arrives after `route`. Raises ProtocolError."""
        self.state = next_state("request", self.state, _LAST_BODY if end or self._mode in ONE_MESSAGE_MODES else _BODY_PART)
        if self._mode is _FULL_DUPLEX:
            return replies.streamed(Direction.REQUEST, chunk, end)
        if self._mode is _NONE:
            raise out_of_order("a request body came although request_body_mode is NONE")
        return [replies.CONTINUE_REQUEST_BODY]

    def pass_trailers(self) -> list[bytes]:
        """Answer trailers that arrive after `route`. Raises ProtocolError."""
        self.state = next_state("request", self.state, _TRAILERS)
        return [replies.CONTINUE_REQUEST_TRAILERS]

    def _complete(self, *, is_whole: bool) -> None:
        if self._held_bytes > LARGE_BODY_BYTES:
            self._memory.measure()
            self._refuse_if_short_of_memory()
        if is_whole:
            self.body = b"".join(self._chunks)
        self._chunks.clear()
        self.ready = True

    def _refuse_if_short_of_memory(self) -> None:
        if self._memory.stage is _REFUSING:
            self._memory.refused += 1
            raise RequestRefused(OVERLOADED)

    def _changed_head(self, routed: Routed, destination: str, body: bytes | None) -> bytes:
        own = {DESTINATION_HEADER: destination}
        if body is not None and "content-length" in self.headers:
            own["content-length"] = str(len(body))
        headers = mutation(own, routed.set_headers, routed.remove_headers)
        metadata = destination_metadata(destination, routed.dynamic_metadata, routed.scores)
        if self._buffered:
            return replies.buffered_request_body(headers, metadata, body)
        return replies.request_headers(headers, metadata)
