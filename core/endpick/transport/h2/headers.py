"""Request headers: assembled from frames, validated against RFC 9113, and read as gRPC."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from endpick.transport.h2.errors import ErrorCode, H2ConnectionError
from endpick.transport.h2.frames import END_HEADERS, END_STREAM, HEADERS, MAX_STREAM_ID, PADDED, PRIORITY_FIELDS
from endpick.transport.h2.grpc import parse_timeout
from endpick.transport.h2.hpack import Fields, HeaderDecoder, encode
from endpick.transport.limits import Limits

_PRIORITY_BYTES: Final = 5
_MAX_CONTINUATION_FRAMES: Final = 16
_BLOCK_SECONDS: Final = 10.0


class HeaderBlocks:
    """Assembles header blocks from HEADERS and CONTINUATION frames."""

    def __init__(self, limits: Limits) -> None:
        self._max_bytes = limits.max_header_bytes
        self._decoder = HeaderDecoder(limits.max_header_bytes)
        self._block = bytearray()
        self._continuations = 0
        self.ends_stream = False
        self.depends_on_itself = False
        self.stream_id = 0
        """The stream of an incomplete block; 0: none."""
        self._started_at = 0.0

    def add(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> Fields | None:
        """Take a HEADERS or CONTINUATION frame and return the decoded fields once the block is complete.

        A repeated block returns the same list object.
        """
        if stream_id == 0:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "a header block on stream 0")
        if kind == HEADERS:
            self.ends_stream = bool(flags & END_STREAM)
            self.depends_on_itself = False
            if flags & PADDED:
                start, stop = unpad(payload, 0, len(payload))
                payload = payload[start:stop]
            if flags & PRIORITY_FIELDS:
                payload = self._take_priority(stream_id, payload)
            if flags & END_HEADERS:
                decoder = self._decoder
                if payload == decoder.repeatable:
                    return decoder.repeated
                if len(payload) > self._max_bytes:
                    raise _too_long()
                return decoder.decode(payload)
            self.stream_id = stream_id
            self._started_at = now
            self._continuations = 0
            self._block.clear()
        elif not self.stream_id:
            raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without HEADERS")
        else:
            self._continuations += 1
            if self._continuations > _MAX_CONTINUATION_FRAMES:
                raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block in too many frames", "header_floods")
        if len(self._block) + len(payload) > self._max_bytes:
            raise _too_long()
        self._block += payload
        if kind == HEADERS or not flags & END_HEADERS:
            return None
        self.stream_id = 0
        return self._decoder.decode(bytes(self._block))

    def require_end(self, now: float) -> None:
        """Raise `H2ConnectionError` if an incomplete header block is overdue."""
        if self.stream_id and now - self._started_at > _BLOCK_SECONDS:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "a header block does not end", "header_timeouts")

    def _take_priority(self, stream_id: int, payload: bytes) -> bytes:
        if len(payload) < _PRIORITY_BYTES:
            raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without room for its priority")
        self.depends_on_itself = int.from_bytes(payload[:4], "big") & MAX_STREAM_ID == stream_id
        return payload[_PRIORITY_BYTES:]


def _too_long() -> H2ConnectionError:
    return H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the header block is too long", "header_floods")


def unpad(buffer: bytes, start: int, stop: int) -> tuple[int, int]:
    """The bounds of a padded payload without its padding."""
    if start == stop:
        raise H2ConnectionError(ErrorCode.FRAME_SIZE_ERROR, "a padded frame without a pad length")
    padding = buffer[start]
    if padding >= stop - start:
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "padding longer than its frame")
    return start + 1, stop - padding


_NAME: Final = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_FORBIDDEN_IN_VALUE: Final = re.compile(rb"[\x00\r\n]")
_CONNECTION_SPECIFIC: Final = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))


class MalformedError(Exception):
    """The header fields are not a valid request; the stream is reset with PROTOCOL_ERROR."""


@dataclass(slots=True)
class RequestHead:
    """A request without its body. Requests with equal headers share one object: never change it."""

    method: bytes = b""
    path: str = ""
    is_grpc: bool = False
    timeout_seconds: float | None = None
    content_length: int | None = None
    refusal: tuple[bytes, bytes] | None = None
    """Header block and body of the answer to a request that is not gRPC."""


def read_head(fields: Fields) -> RequestHead:
    """Read and validate the header fields of a request; raises `MalformedError`."""
    head = RequestHead()
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value, _ in fields:
        if name[:1] == b":":
            if regular or name in pseudo:
                raise MalformedError(f"pseudo-header {name!r} repeated or after a regular one")
            pseudo[name] = value
            continue
        regular = True
        if name == b"content-type":
            head.is_grpc = (
                value.startswith(b"application/grpc")
                and value[16:17] in (b"", b"+", b";")
                and not value.startswith(b"application/grpc+json")
            )
        elif name == b"te":
            if value != b"trailers":
                raise MalformedError("the header te may only be 'trailers'")
        elif name == b"grpc-timeout":
            head.timeout_seconds = parse_timeout(value)
        elif name == b"content-length":
            head.content_length = _content_length(value, head.content_length)
        else:
            _check_name(name)
    _check_values(fields)
    method, path = pseudo.pop(b":method", b""), pseudo.pop(b":path", b"")
    scheme = pseudo.pop(b":scheme", b"")
    pseudo.pop(b":authority", None)
    if pseudo:
        raise MalformedError(f"pseudo-headers {list(pseudo)} are none of a request")
    if not method or (method != b"CONNECT" and not (path and scheme)):
        raise MalformedError(":method, :scheme or :path is missing")
    head.method = method
    head.path = path.decode("latin-1")
    head.refusal = _refusal(method, is_grpc=head.is_grpc)
    return head


def check_trailers(fields: Fields) -> None:
    """Validate the trailers of a request; raises `MalformedError`."""
    for name, _, _ in fields:
        _check_name(name)
    _check_values(fields)


def _check_name(name: bytes) -> None:
    if name in _CONNECTION_SPECIFIC or _NAME.fullmatch(name) is None:
        raise MalformedError(f"the header {name!r} is not allowed in HTTP/2")


def _check_values(fields: Fields) -> None:
    # One search through all values costs a tenth of one search per value.
    if _FORBIDDEN_IN_VALUE.search(b"".join([value for _, value, _ in fields])) is not None:
        raise MalformedError("a header value contains a line break or a zero byte")


def _content_length(value: bytes, before: int | None) -> int:
    if not value.isdigit() or len(value) > 18 or before not in (None, int(value)):
        raise MalformedError(f"content-length {value!r} is not a number, or is repeated with another value")
    return int(value)


_BODY: Final = b"This port speaks gRPC: POST with content-type application/grpc.\n"


def _block(status: bytes, *more: tuple[bytes, bytes]) -> bytes:
    return encode(((b":status", status), (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_BODY)), *more))


_METHOD_NOT_ALLOWED: Final = _block(b"405", (b"allow", b"POST"))
_UNSUPPORTED_MEDIA_TYPE: Final = _block(b"415")


def _refusal(method: bytes, *, is_grpc: bool) -> tuple[bytes, bytes] | None:
    if method != b"POST":
        return _METHOD_NOT_ALLOWED, b"" if method == b"HEAD" else _BODY
    if not is_grpc:
        return _UNSUPPORTED_MEDIA_TYPE, _BODY
    return None
