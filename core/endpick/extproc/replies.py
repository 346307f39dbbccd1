"""The messages we send, serialised: built once where they never differ, and around the bytes where they carry a body."""

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
    ProcessingResponse,
    StatusCode,
    TrailersResponse,
)
from endpick.extproc.headers import DESTINATION_HEADER, DROPPED_REASON_HEADER, destination_metadata, mutation, option
from endpick.extproc.pieces import NO_HEAD, response_piece_head, varint
from endpick.extproc.stream import LongReply, Reply
from endpick.requests.long_body import Body, LongBody
from endpick.requests.model import Refused

_FEW_TIMES: Final = 64
_LONGEST_KNOWN: Final = 512
"""Characters of what a remembered reply says: longer ones are made each time, because thousands of them would be megabytes."""
MAX_CHUNK_BYTES: Final = 62_000
"""The most body bytes in one streamed reply: some gateways limit a message to 64 KiB."""


class Direction(bytes, Enum):
    """Which body a streamed reply belongs to; the value is the tag of its field in `ProcessingResponse`.

    Bytes, because they are hashed in C: that is most of what finding a head in the cache costs.
    """

    REQUEST = b"\x1a"
    RESPONSE = b"\x22"


CONTINUE_REQUEST_HEADERS: Final = ProcessingResponse(request_headers=HeadersResponse()).SerializeToString()
CONTINUE_REQUEST_BODY: Final = ProcessingResponse(request_body=BodyResponse()).SerializeToString()
CONTINUE_REQUEST_TRAILERS: Final = ProcessingResponse(request_trailers=TrailersResponse()).SerializeToString()
CONTINUE_RESPONSE_HEADERS: Final = ProcessingResponse(response_headers=HeadersResponse()).SerializeToString()
CONTINUE_RESPONSE_BODY: Final = ProcessingResponse(response_body=BodyResponse()).SerializeToString()
CONTINUE_RESPONSE_TRAILERS: Final = ProcessingResponse(response_trailers=TrailersResponse()).SerializeToString()

_FINAL_STATUSES: Final = frozenset(number for number in StatusCode.values() if number >= StatusCode.OK)

_END: Final = b"\x10\x01"
"""`end_of_stream: true` of a StreamedBodyResponse."""


def request_headers(headers: HeaderMutation, metadata: Struct) -> bytes:
    """Answer the request headers with a destination; the route may depend on it, so the gateway looks it up again."""
    response = CommonResponse(header_mutation=headers, clear_route_cache=True)
    return ProcessingResponse(request_headers=HeadersResponse(response=response), dynamic_metadata=metadata).SerializeToString()


def destination_only(destination: str) -> bytes:
    """Answer the request headers when there is nothing to add but the destination: nearly every request."""
    return _known_destination(destination) if len(destination) <= _LONGEST_KNOWN else _destination(destination)


def _destination(destination: str) -> bytes:
    return request_headers(mutation({DESTINATION_HEADER: destination}, {}), destination_metadata(destination, {}))


_known_destination: Final = lru_cache(maxsize=4096)(_destination)


def buffered_request_body(headers: HeaderMutation, metadata: Struct, body: Body | None) -> Reply:
    """Answer a buffered request body with a destination: its headers have not left the gateway yet."""
    if isinstance(body, LongBody):
        return _with_long_body(Direction.REQUEST, CommonResponse(header_mutation=headers, clear_route_cache=True), body, metadata)
    response = CommonResponse(header_mutation=headers, body_mutation=replacement(body), clear_route_cache=True)
    return ProcessingResponse(request_body=BodyResponse(response=response), dynamic_metadata=metadata).SerializeToString()


def replaced_request_body(body: Body) -> Reply:
    """Answer one message of a request body with other bytes."""
    if isinstance(body, LongBody):
        return _with_long_body(Direction.REQUEST, CommonResponse(), body, Struct())
    return ProcessingResponse(request_body=BodyResponse(response=CommonResponse(body_mutation=replacement(body)))).SerializeToString()


def response_headers(changes: tuple[tuple[str, str | None], ...]) -> bytes:
    """Answer the response headers, setting some, and removing those without a value; this differs little from one response to the next."""
    if not changes:
        return CONTINUE_RESPONSE_HEADERS
    size = sum([len(name) + len(value or "") for name, value in changes])
    return _known_response_headers(changes) if size <= _LONGEST_KNOWN else _response_headers(changes)


def _response_headers(changes: tuple[tuple[str, str | None], ...]) -> bytes:
    wanted = {name: value for name, value in changes if value is not None}
    response = CommonResponse(header_mutation=mutation({}, wanted, [name for name, value in changes if value is None]))
    return ProcessingResponse(response_headers=HeadersResponse(response=response)).SerializeToString()


_known_response_headers: Final = lru_cache(maxsize=1024)(_response_headers)


def replaced_response_body(body: Body, headers: HeaderMutation | None) -> Reply:
    """Answer one message of a response body with other bytes, and its headers with a mutation where they still wait."""
    if isinstance(body, LongBody):
        return _with_long_body(Direction.RESPONSE, CommonResponse(header_mutation=headers), body, Struct())
    response = CommonResponse(header_mutation=headers, body_mutation=replacement(body))
    return ProcessingResponse(response_body=BodyResponse(response=response)).SerializeToString()


def replacement(body: bytes | None) -> BodyMutation | None:
    """A mutation to `body`; to nothing where it is empty, because an empty `body` changes nothing."""
    if body is None:
        return None
    return BodyMutation(body=body) if body else BodyMutation(clear_body=True)


def with_metadata(reply: Reply, metadata: Struct) -> Reply:
    """The reply with dynamic metadata: a field at the end of a message may be appended to its bytes."""
    field = ProcessingResponse(dynamic_metadata=metadata).SerializeToString()
    return LongReply([*reply.parts, field]) if isinstance(reply, LongReply) else reply + field


def streamed(direction: Direction, body: bytes, end: bool) -> list[bytes]:
    """A body, or a piece of one, as full-duplex replies; with `end` the last one ends it, even when it is empty."""
    size = len(body)
    if size <= MAX_CHUNK_BYTES:
        if end:
            return [b"".join((streamed_head(direction, size, True), body, _END))]
        return [streamed_head(direction, size, False) + body] if body else []
    last = (size - 1) // MAX_CHUNK_BYTES
    return [streamed_chunk(direction, chunk, end and position == last) for position, chunk in enumerate(_chunks(body))]


def repeated(reply: Reply, times: int) -> list[Reply]:
    """The same reply so many times: a body may come in a million messages, each of which is owed one."""
    if times <= _FEW_TIMES or not isinstance(reply, bytes):
        return [reply] * times
    return [LongReply([reply], times)]


def streamed_long(direction: Direction, body: LongBody, end: bool) -> list[Reply]:
    """The same of a long body, without a copy of it."""
    answers: list[Reply] = []
    parts: list[bytes | memoryview] = []
    room, left = MAX_CHUNK_BYTES, len(body)
    for piece in body.pieces:
        view = memoryview(piece)
        while view:
            part = view[:room]
            parts.append(part)
            view = view[len(part) :]
            room -= len(part)
            left -= len(part)
            if not room or not left:
                is_last = end and not left
                head = streamed_head(direction, MAX_CHUNK_BYTES - room, is_last)
                answers.append(LongReply([head, *parts, _END] if is_last else [head, *parts]))
                parts, room = [], MAX_CHUNK_BYTES
    return answers


def _with_long_body(direction: Direction, rest: CommonResponse, body: LongBody, metadata: Struct) -> LongReply:
    """A reply to a body that replaces it: ProcessingResponse > BodyResponse > CommonResponse > BodyMutation, the body last."""
    common = rest.SerializeToString()
    head = b"\x0a" + varint(len(body))
    size = len(head) + len(body)
    for tag, before in ((b"\x1a", common), (b"\x0a", b""), (direction.value, b"")):
        head = before + tag + varint(size) + head
        size = len(head) + len(body)
    tail = ProcessingResponse(dynamic_metadata=metadata).SerializeToString() if metadata.fields else b""
    return LongReply([head, *[memoryview(piece) for piece in body.pieces], tail])


def streamed_chunk(direction: Direction, body: bytes | memoryview, end: bool) -> bytes:
    """One full-duplex reply; the body is copied once."""
    head = streamed_head(direction, len(body), end)
    return b"".join((head, body, _END)) if end else b"".join((head, body))


def immediate(refused: Refused) -> bytes:
    """The end of a request: the gateway answers the client with this error."""
    response = ImmediateResponse(
        status=HttpStatus(code=StatusCode.Name(refused.status if refused.status in _FINAL_STATUSES else 500)),
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
    """What precedes the bytes: ProcessingResponse > BodyResponse > CommonResponse > BodyMutation > StreamedBodyResponse.

    Each level is a tag and a length. Tokens of one model serialise to few different lengths, so the cache nearly always hits.
    """
    head = b"\x0a" + varint(length)
    size = len(head) + length + (len(_END) if end else 0)
    for tag in (b"\x1a", b"\x1a", b"\x0a", direction.value):
        level = tag + varint(size)
        head = level + head
        size += len(level)
    return head


@lru_cache(maxsize=4096)
def passage(length: int) -> tuple[bytes, int, bytes]:
    """How a piece of a streamed response passes, by the length of its message.

    Returns:
        What such a message begins with, how long that is, and what to put in its place for the reply that leaves the piece as it is; all
        of it is empty where no message of this length is such a piece.
    """
    before = response_piece_head(length)
    size = length - len(before)
    if before == NO_HEAD or size > MAX_CHUNK_BYTES:
        return b"", 0, b""
    return before, len(before), streamed_head(Direction.RESPONSE, size, False)
