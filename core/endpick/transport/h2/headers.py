"""Header blocks: assembled, decoded (HPACK, RFC 7541), validated (RFC 9113) and read as gRPC requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from jh2._hazmat import Decoder, HPACKError, OversizedHeaderListError

from endpick.transport.h2.frames import (
    END_HEADERS,
    END_STREAM,
    HEADERS,
    MAX_STREAM_ID,
    PADDED,
    PRIORITY_FIELDS,
    ErrorCode,
    H2ConnectionError,
)
from endpick.transport.limits import Limits

Fields = list[tuple[bytes, bytes, bool]]  # name, value, never indexed

CodedString = tuple[int, int, int, int]  # field number, 0 for a name or 1 for a value, end position, encoded length

EMPTY_TABLE: Final = b"\x20"  # sets our dynamic table to zero, in the first block

_LONGEST_REPEATED_BYTES: Final = 1024  # kept per connection
_MAX_INTEGER_SHIFT: Final = 28
_CODE_BITS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "14161414161616171617171717171817181816171817171717151617161717181615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
"""Bits in the Huffman code of each byte (RFC 7541, appendix B)."""
_code_bits: Final = _CODE_BITS.__getitem__


class MalformedBlockError(Exception):
    """Raised if a header block breaks a rule that jh2 does not enforce."""


class HeaderDecoder:
    """Decodes all blocks of a connection, in order: later ones refer to earlier ones."""

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)
        self.repeatable = b""  # the last block, if it left the dynamic table unchanged
        self.repeated: Fields = []

    def decode(self, block: bytes) -> Fields:
        """Decode a block that differs from `repeatable`; raises `H2ConnectionError`."""
        try:
            # jh2 panics on cut literals, and accepts late table resizes and zero padding.
            coded, keeps_table = scan(block)
            fields: Fields = self._decoder.decode(block, True)
            _check_padding(block, coded, fields)
        except OversizedHeaderListError as error:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the header list is too long", "header_floods") from error
        except (HPACKError, MalformedBlockError) as malformed:
            raise H2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(malformed)) from malformed
        if keeps_table and len(block) <= _LONGEST_REPEATED_BYTES:
            self.repeatable, self.repeated = block, fields
        else:
            self.repeatable, self.repeated = b"", []  # an empty block has no fields
        return fields


def scan(block: bytes) -> tuple[list[CodedString], bool]:
    """Return the Huffman-coded strings of a block, and whether the dynamic table stays unchanged."""
    coded: list[CodedString] = []
    keeps_table = True
    position = field = 0
    end = len(block)
    while position < end:
        first = block[position]
        position += 1
        if first >= 0x80 and first != 0xFF:
            field += 1
            continue
        if 0x20 <= first < 0x80:
            keeps_table = False
        mask, strings = _representation(first)
        if first & mask == mask:
            _, position = _continued_integer(block, position)
        if first & 0xE0 == 0x20:
            if field:
                raise MalformedBlockError("the table is resized after a field")
            continue
        for part in range(2 - strings, 2):
            if position >= end:
                raise MalformedBlockError("a field does not end")
            head = block[position]
            length = head & 0x7F
            position += 1
            if length == 0x7F:
                more, position = _continued_integer(block, position)
                length += more
            position += length
            if head & 0x80 and length:
                coded.append((field, part, position, length))
        field += 1
    if position > end:
        raise MalformedBlockError("a field does not end")
    return coded, keeps_table


def _representation(first: int) -> tuple[int, int]:
    if first >= 0x80:
        return 0x7F, 0
    if first >= 0x40:
        return 0x3F, 2 if first == 0x40 else 1
    if first >= 0x20:
        return 0x1F, 0
    return 0x0F, 1 if first & 0x0F else 2


def _check_padding(block: bytes, coded: list[CodedString], fields: Fields) -> None:
    for field, part, stop, length in coded:
        text = fields[field][1] if part else fields[field][0]
        padding = (1 << 8 * length - sum(map(_code_bits, text))) - 1
        if block[stop - 1] & padding != padding:
            raise MalformedBlockError("a Huffman code is padded with other bits than ones")


def _continued_integer(block: bytes, position: int) -> tuple[int, int]:
    """Value and end: beyond the block if cut or too large."""
    value = shift = 0
    while position < len(block) and shift <= _MAX_INTEGER_SHIFT:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return value, len(block) + 1


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode fields as literals without indexing, which are valid on every connection."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    length -= 0x7F
    prefix = bytearray((0x7F,))
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + text


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
        self.stream_id = 0  # the stream of an incomplete block; 0: none
        self._started_at = 0.0

    def add(self, kind: int, flags: int, stream_id: int, payload: bytes, now: float) -> Fields | None:
        """Add a frame; returns the fields of a complete block, the same list if it repeats, or None."""
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
        """Raise H2ConnectionError if a block is overdue."""
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
    """Return start and stop of a payload without its padding; raises `H2ConnectionError`."""
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
    """Raised for an invalid request, whose stream is reset with PROTOCOL_ERROR."""


@dataclass(slots=True)
class RequestHead:
    """The fields of a request that the transport needs; requests with equal headers share them."""

    method: bytes = b""
    path: str = ""
    is_grpc: bool = False
    timeout_seconds: float | None = None
    traceparent: str = ""
    content_length: int | None = None
    refusal: tuple[bytes, bytes] | None = None  # header block and body for a request that is not gRPC


def read_head(fields: Fields) -> RequestHead:
    """Validate the header fields of a request, and read its head; raises `MalformedError`."""
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
        elif name == b"traceparent":
            head.traceparent = value.decode("latin-1")
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
    # One search costs a tenth of one per value.
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


_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNIT_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}


def parse_timeout(value: bytes) -> float | None:
    """Return a `grpc-timeout` in seconds, or None if it is malformed."""
    match = _TIMEOUT.fullmatch(value)
    return None if match is None else int(match[1]) * _UNIT_SECONDS[match[2]]
