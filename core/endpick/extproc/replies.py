"""Builds serialised replies of the ext_proc protocol."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import lru_cache
from typing import Final

from google.protobuf.struct_pb2 import Struct

from endpick._proto.ext_proc_pb2 import (
    BodyMutation,
    BodyResponse,
    CommonResponse,
    HeaderMutation,
    HeadersResponse,
    HttpStatus,
    ImmediateResponse,
    ProcessingMode,
    ProcessingResponse,
    StatusCode,
    TrailersResponse,
)
from endpick.api.request import DirectResponse
from endpick.extproc.messages import (
    DESTINATION_HEADER,
    DROPPED_REASON_HEADER,
    NO_HEAD,
    REQUEST_BODY,
    REQUEST_TRAILERS,
    RESPONSE_BODY,
    destination_metadata,
    mutation,
    option,
    response_piece_head,
    varint,
)
from endpick.requests.model import BodyMode, BodyModes, Refused

_MAX_CACHED: Final = 512
MAX_CHUNK_BYTES: Final = 62_000  # some gateways limit a message to 64 KiB


class Direction(bytes, Enum):
    """Tags in `ProcessingResponse`; bytes hash fastest."""

    REQUEST = b"\x1a"
    RESPONSE = b"\x22"


CONTINUE_REQUEST_HEADERS: Final = ProcessingResponse(request_headers=HeadersResponse()).SerializeToString()
CONTINUE_REQUEST_BODY: Final = ProcessingResponse(request_body=BodyResponse()).SerializeToString()
CONTINUE_REQUEST_TRAILERS: Final = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
CONTINUE_RESPONSE_HEADERS: Final = ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()
CONTINUE_RESPONSE_BODY: Final = ProcessingResponse(response_body=BodyResponse()).SerializeToString()
CONTINUE_RESPONSE_TRAILERS: Final = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()

_FINAL_STATUSES: Final = frozenset(number for number in StatusCode.values() if number >= StatusCode.OK)

_FULL_DUPLEX: Final = BodyMode.FULL_DUPLEX_STREAMED
_END: Final = b"\x10\x01"


def request_headers(headers: HeaderMutation, metadata: Struct) -> bytes:
    """Build the answer to request headers, which sets the destination and may change headers."""
    response = CommonResponse(header_mutation=headers, clear_route_cache=True)
    return ProcessingResponse(request_headers=HeadersResponse(response=response), dynamic_metadata=metadata).SerializeToString()


def destination_only(destination: str) -> bytes:
    """Build the answer to request headers that sets the destination and changes nothing else."""
    return _cached_destination(destination) if len(destination) <= _MAX_CACHED else _destination(destination)


def _destination(destination: str) -> bytes:
    return request_headers(mutation({DESTINATION_HEADER: destination}, {}), destination_metadata(destination, {}))


_cached_destination: Final = lru_cache(maxsize=4096)(_destination)


def buffered_request_body(headers: HeaderMutation, metadata: Struct, body: bytes | None) -> bytes:
    """Build the answer to a buffered request body, which sets the destination."""
    response = CommonResponse(header_mutation=headers, body_mutation=replacement(body), clear_route_cache=True)
    return ProcessingResponse(request_body=BodyResponse(response=response), dynamic_metadata=metadata).SerializeToString()


def replaced_request_body(body: bytes) -> bytes:
    """Build the answer that replaces the body of one request message."""
    return ProcessingResponse(request_body=BodyResponse(response=CommonResponse(body_mutation=replacement(body)))).SerializeToString()


def response_headers(changes: tuple[tuple[str, str | None], ...]) -> bytes:
    """Build the answer to response headers from their changes; the value None removes a header."""
    if not changes:
        return CONTINUE_RESPONSE_HEADERS
    size = sum([len(name) + len(value or "") for name, value in changes])
    return _cached_response_headers(changes) if size <= _MAX_CACHED else _response_headers(changes)


def _response_headers(changes: tuple[tuple[str, str | None], ...]) -> bytes:
    wanted = {name: value for name, value in changes if value is not None}
    response = CommonResponse(header_mutation=mutation({}, wanted, [name for name, value in changes if value is None]))
    return ProcessingResponse(response_headers=HeadersResponse(response=response)).SerializeToString()


_cached_response_headers: Final = lru_cache(maxsize=1024)(_response_headers)


def replaced_response_body(body: bytes, headers: HeaderMutation | None) -> bytes:
    """Build the answer that replaces the body of one response message, and sets headers."""
    response = CommonResponse(header_mutation=headers, body_mutation=replacement(body))
    return ProcessingResponse(response_body=BodyResponse(response=response)).SerializeToString()


def replacement(body: bytes | None) -> BodyMutation | None:
    """Build a body mutation, or None for no change; an empty body needs `clear_body`."""
    if body is None:
        return None
    return BodyMutation(body=body) if body else BodyMutation(clear_body=True)


def with_metadata(reply: bytes, metadata: Struct) -> bytes:
    """Append dynamic metadata to a serialised reply, as protobuf merges concatenated messages."""
    return reply + ProcessingResponse(dynamic_metadata=metadata).SerializeToString()


WITHOUT_BODIES: Final = ProcessingResponse(mode_override=ProcessingMode(response_trailer_mode=ProcessingMode.SEND)).SerializeToString()
"""Appended to a reply to request headers. Trailers keep the stream open until the end."""


def to_late(tag: int, modes: BodyModes) -> list[bytes]:
    """Answer a message after the end, unchanged; gateways await no answer to a full-duplex body."""
    if tag == REQUEST_BODY:
        return [] if modes.request_body is _FULL_DUPLEX else [CONTINUE_REQUEST_BODY]
    if tag == RESPONSE_BODY:
        return [] if modes.response_body is _FULL_DUPLEX else [CONTINUE_RESPONSE_BODY]
    return [CONTINUE_REQUEST_TRAILERS if tag == REQUEST_TRAILERS else CONTINUE_RESPONSE_TRAILERS]


def streamed(direction: Direction, body: bytes, end: bool) -> list[bytes]:
    """Build the full-duplex replies for a body or chunk, split into `MAX_CHUNK_BYTES`."""
    size = len(body)
    if size <= MAX_CHUNK_BYTES:
        if end:
            return [b"".join((streamed_head(direction, size, True), body, _END))]
        return [streamed_head(direction, size, False) + body] if body else []
    last = (size - 1) // MAX_CHUNK_BYTES
    return [streamed_chunk(direction, chunk, end and position == last) for position, chunk in enumerate(_chunks(body))]


def streamed_chunk(direction: Direction, body: bytes | memoryview, end: bool) -> bytes:
    """Build one full-duplex reply for a chunk of at most `MAX_CHUNK_BYTES`."""
    head = streamed_head(direction, len(body), end)
    return b"".join((head, body, _END)) if end else b"".join((head, body))


def direct(answer: DirectResponse) -> bytes:
    """Build the reply that makes the gateway answer with a plugin's response."""
    response = ImmediateResponse(
        status=_status(answer.status), headers=mutation({}, answer.headers), body=answer.body, details="endpick_direct_response"
    )
    return ProcessingResponse(immediate_response=response).SerializeToString()


def _status(number: int) -> HttpStatus:
    return HttpStatus(code=StatusCode.Name(number if number in _FINAL_STATUSES else 500))


def immediate(refused: Refused) -> bytes:
    """Build the reply that makes the gateway answer with an error."""
    response = ImmediateResponse(
        status=_status(refused.status),
        body=f"inference error: {refused.code} - {refused.message}".encode(errors="replace"),
        details=f"endpick_{refused.reason or refused.code}",
    )
    if refused.reason is not None:
        response.headers.set_headers.append(option(DROPPED_REASON_HEADER, refused.reason))
    return ProcessingResponse(immediate_response=response).SerializeToString()


def _chunks(body: bytes) -> Iterator[memoryview]:
    view = memoryview(body)
    for start in range(0, len(body), MAX_CHUNK_BYTES):
        yield view[start : start + MAX_CHUNK_BYTES]


@lru_cache(maxsize=4096)
def streamed_head(direction: Direction, length: int, end: bool) -> bytes:
    """Return the bytes before a chunk in a reply; token lengths nearly always hit the cache."""
    head = b"\x0a" + varint(length)
    size = len(head) + length + (len(_END) if end else 0)
    for tag in (b"\x1a", b"\x1a", b"\x0a", direction.value):
        level = tag + varint(size)
        head = level + head
        size += len(level)
    return head


@lru_cache(maxsize=4096)
def piece_heads(length: int) -> tuple[bytes, int, bytes]:
    """Return the head of a response message, its size, and the head of the reply; empty if unknown."""
    before = response_piece_head(length)
    size = length - len(before)
    if before == NO_HEAD or size > MAX_CHUNK_BYTES:
        return b"", 0, b""
    return before, len(before), streamed_head(Direction.RESPONSE, size, False)
