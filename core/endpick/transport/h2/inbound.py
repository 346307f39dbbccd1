"""What HEADERS, CONTINUATION and padding add up to before anybody looks at their meaning."""

from __future__ import annotations

from dataclasses import dataclass

from endpick.transport.h2.faults import ErrorCode, H2ConnectionError
from endpick.transport.h2.frames import END_HEADERS, END_STREAM, HEADERS, MAX_STREAM_ID, PADDED, PRIORITY_FIELDS
from endpick.transport.h2.hpack import Fields, HeaderDecoder
from endpick.transport.limits import Limits

__all__ = ["HeaderBlock", "HeaderBlocks", "unpad"]

_PRIORITY_BYTES = 5


@dataclass(slots=True)
class HeaderBlock:
    """A whole header block, decoded."""

    fields: Fields
    ends_stream: bool
    depends_on_itself: bool


class HeaderBlocks:
    """Puts header blocks together, bounded in bytes and frames."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._decoder = HeaderDecoder(limits.max_header_bytes)
        self._block = bytearray()
        self._continuations = 0
        self._ends_stream = False
        self._depends_on_itself = False
        self.stream_id = 0
        """The stream whose block is unfinished; 0: none is."""
        self.started_at = 0.0

    def add(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> HeaderBlock | None:
        """Take a HEADERS or CONTINUATION frame; the block if that was its last.

        Raises:
            H2ConnectionError: the frame is out of place or malformed, the block is too long or cannot be decoded.
        """
        if stream_id == 0:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block on stream 0")
        if kind == HEADERS:
            payload = self._begin(flags, stream_id, payload)
            if flags & END_HEADERS:
                self._check_length(len(payload))
                return HeaderBlock(self._decoder.decode(payload), self._ends_stream, self._depends_on_itself)
            self.stream_id = stream_id
            self.started_at = now
            self._continuations = 0
            self._block.clear()
        elif not self.stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        else:
            self._continuations += 1
            if self._continuations > self._limits.max_continuation_frames:
                raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block in too many frames", "header_floods")
        self._check_length(len(self._block) + len(payload))
        self._block += payload
        if kind == HEADERS or not flags & END_HEADERS:
            return None
        self.stream_id = 0
        return HeaderBlock(self._decoder.decode(bytes(self._block)), self._ends_stream, self._depends_on_itself)

    def _begin(self, flags: int, stream_id: int, payload: bytes) -> bytes:
        """Take padding and priority off a HEADERS frame."""
        self._ends_stream = bool(flags & END_STREAM)
        self._depends_on_itself = False
        if flags & PADDED:
            start, stop = unpad(payload, 0, len(payload))
            payload = payload[start:stop]
        if flags & PRIORITY_FIELDS:
            if len(payload) < _PRIORITY_BYTES:
                raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without room for its priority")
            self._depends_on_itself = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id
            payload = payload[_PRIORITY_BYTES:]
        return payload

    def _check_length(self, length: int) -> None:
        if length > self._limits.max_header_bytes:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too long", "header_floods")


def unpad(buffer: bytes, start: int, stop: int) -> tuple[int, int]:
    """Where the payload of a padded frame starts and stops without its padding.

    Raises:
        H2ConnectionError: the padding is longer than the payload.
    """
    if start == stop:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a pad length")
    padding = buffer[start]
    if padding >= stop - start:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return start + 1, stop - padding
