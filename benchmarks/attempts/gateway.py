"""What attempts send as a gateway that means harm: frames and ext_proc messages, right or wrong, over plain sockets."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

from benchmarks.extproc.phased import encoded_requests
from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderValue, HttpBody, HttpHeaders, HttpTrailers, ProcessingRequest
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import FRAME_HEAD, FrameType

MEBIBYTE = 1 << 20
MAX_FRAME = 16_384
WINDOW = 2**30
HELLO = frames.PREFACE + frames.settings({4: WINDOW}) + frames.window_update(0, WINDOW)
USUAL = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json"}


def headers_message(headers: Mapping[str, str] | None = None, *, end: bool = False) -> ProcessingRequest:
    """The headers of a request as ext_proc tells them; those that all have, and these."""
    pairs = {**USUAL, **(headers or {})}
    told = HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode("utf-8", "surrogateescape")) for key, value in pairs.items()])
    return ProcessingRequest(request_headers=HttpHeaders(headers=told, end_of_stream=end))


def body_messages(body: bytes, piece_bytes: int = 60_000) -> list[ProcessingRequest]:
    """The body of a request in pieces, to its end."""
    pieces = [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)] or [b""]
    return [ProcessingRequest(request_body=HttpBody(body=piece, end_of_stream=at == len(pieces))) for at, piece in enumerate(pieces, 1)]


def answer_messages(body: bytes, headers: Mapping[str, str], piece_bytes: int = 60_000) -> list[ProcessingRequest]:
    """The answer of a model server: its headers and body, to its end."""
    told = HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode()) for key, value in {":status": "200", **headers}.items()])
    pieces = [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)] or [b""]
    bodies = [ProcessingRequest(response_body=HttpBody(body=piece, end_of_stream=at == len(pieces))) for at, piece in enumerate(pieces, 1)]
    return [ProcessingRequest(response_headers=HttpHeaders(headers=told)), *bodies]


def trailers_message() -> ProcessingRequest:
    return ProcessingRequest(request_trailers=HttpTrailers())


def grpc(messages: Iterable[ProcessingRequest]) -> bytes:
    """Messages as gRPC puts them into the body of a request."""
    return b"".join(struct.pack(">BI", 0, message.ByteSize()) + message.SerializeToString() for message in messages)


def request(body: bytes, headers: Mapping[str, str] | None = None) -> bytes:
    """A whole request: headers and body, as gRPC messages."""
    return grpc([headers_message(headers), *body_messages(body)])


def opened(stream_id: int, *, first: bool | None = None) -> bytes:
    """HEADERS of a stream of ext_proc. `first`: whether it is the first of its connection, which HPACK's table is filled by."""
    block, later = encoded_requests()
    return frames.headers(stream_id, block if (stream_id == 1 if first is None else first) else later, end_stream=False)


def data(stream_id: int, payload: bytes, frame_bytes: int = MAX_FRAME) -> bytes:
    """DATA of one stream, whatever the window says."""
    out = []
    for at in range(0, len(payload), frame_bytes):
        piece = payload[at : at + frame_bytes]
        out.append(FRAME_HEAD.pack(len(piece) >> 8, len(piece) & 0xFF, FrameType.DATA, 0, stream_id) + piece)
    return b"".join(out)


def frame(kind: int, payload: bytes = b"", stream_id: int = 0, flags: int = 0) -> bytes:
    """One frame of any kind, however little sense it makes."""
    return FRAME_HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, kind, flags, stream_id) + payload


@asynccontextmanager
async def connected(
    port: int, host: str = "127.0.0.1", source: str | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that is closed at once at the end, from an address of 127/8 if `source` says so."""
    reader, writer = await asyncio.open_connection(host, port, local_addr=None if source is None else (source, 0))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answered(reader: asyncio.StreamReader, seconds: float, most: int = MEBIBYTE) -> bytes:
    """What comes within so long, until the connection ends or nothing comes for as long; at most so much."""
    received = bytearray()
    with suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(seconds):
            while len(received) < most and (piece := await reader.read(65_536)):
                received += piece
    return bytes(received)


async def send_flow_controlled(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stream_id: int, payload: bytes, seconds: float = 10.0
) -> None:
    """HELLO, HEADERS and the whole payload of one stream as its windows allow, so that long bodies arrive in full."""
    writer.write(HELLO + opened(stream_id))
    connection = stream = 65_535
    sent, buffer, initial = 0, b"", 65_535
    async with asyncio.timeout(seconds):
        while sent < len(payload):
            room = min(connection, stream, len(payload) - sent, 1 << 18)
            if room > 0:
                writer.write(data(stream_id, payload[sent : sent + room]))
                sent, connection, stream = sent + room, connection - room, stream - room
                await writer.drain()
                continue
            if not (piece := await reader.read(65_536)):
                return
            buffer += piece
            while len(buffer) >= 9 and len(buffer) >= 9 + (length := int.from_bytes(buffer[:3], "big")):
                kind, flags, of, content = buffer[3], buffer[4], int.from_bytes(buffer[5:9], "big"), buffer[9 : 9 + length]
                buffer = buffer[9 + length :]
                if kind == FrameType.WINDOW_UPDATE and of == 0:
                    connection += int.from_bytes(content, "big")
                elif kind == FrameType.WINDOW_UPDATE and of == stream_id:
                    stream += int.from_bytes(content, "big")
                elif kind == FrameType.SETTINGS and not flags & 1:
                    for at in range(0, len(content), 6):
                        if content[at : at + 2] == b"\0\x04":
                            grown = int.from_bytes(content[at + 2 : at + 6], "big")
                            stream, initial = stream + grown - initial, grown
                    writer.write(frames.SETTINGS_ACK)
                elif kind in (FrameType.GOAWAY, FrameType.RST_STREAM):
                    return
