"""A client that sends any bytes and reads frames."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass

from endpick.transport.h2 import frames
from endpick.transport.h2.frames import END_STREAM, FRAME_HEAD, ErrorCode, FrameType
from endpick.transport.h2.headers import encode
from endpick.transport.h2.stream import MESSAGE_HEAD
from endpick.transport.methods import EXT_PROC_PATH

READ_SECONDS = 15.0
HEADERS = (
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", EXT_PROC_PATH.encode()),
    (b":authority", b"raw"),
    (b"content-type", b"application/grpc"),
    (b"te", b"trailers"),
)


@dataclass(frozen=True)
class Frame:
    """A frame from the server."""

    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> ErrorCode:
        return ErrorCode(int.from_bytes(self.payload[4:8] if self.kind == FrameType.GOAWAY else self.payload[:4], "big"))


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer

    @classmethod
    async def connect(
        cls,
        port: int,
        *,
        greet: bool = True,
        settings: dict[int, int] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> RawClient:
        client = cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls))
        if greet:
            client.send(frames.PREFACE + frames.settings(settings or {}) + frames.SETTINGS_ACK)
        return client

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def open(self, stream: int) -> None:
        self.send(frames.headers(stream, encode(HEADERS), end_stream=False))

    def message(self, stream: int, message: bytes, *, end: bool = False) -> None:
        payload = MESSAGE_HEAD.pack(0, len(message)) + message
        head = FRAME_HEAD.pack(len(payload) >> 8, len(payload) & 0xFF, FrameType.DATA, END_STREAM if end else 0, stream)
        self.send(head + payload)

    async def read(self) -> Frame | None:
        """The next frame; None at the end of the connection."""
        async with asyncio.timeout(READ_SECONDS):
            try:
                high, low, kind, flags, stream = FRAME_HEAD.unpack(await self._reader.readexactly(FRAME_HEAD.size))
                return Frame(kind, flags, stream, await self._reader.readexactly(high << 8 | low))
            except (asyncio.IncompleteReadError, ConnectionError):
                return None

    async def read_until(self, kind: int, stream: int = 0) -> Frame:
        """The next frame of this kind on this stream; others are dropped."""
        while frame := await self.read():
            if (frame.kind, frame.stream) == (kind, stream):
                return frame
        raise AssertionError(f"the connection ended before a {FrameType(kind).name} on stream {stream}")

    async def read_to_end(self) -> list[Frame]:
        """All frames until the server closes."""
        found = []
        while frame := await self.read():
            found.append(frame)
        return found

    async def echo(self, stream: int, message: bytes) -> bytes:
        """Open a stream, send a message and return the reply."""
        self.open(stream)
        self.message(stream, message)
        return (await self.read_until(FrameType.DATA, stream)).payload[MESSAGE_HEAD.size :]

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            return
