"""A gateway that waits as Envoy does: each phase of a request is sent once the one before is answered; then the stream is reset.

h2load sends all messages of a stream at once, which spares a server most of its wake-ups; this one does not, at the price of
being Python itself: it keeps one core busy about as fast as the faster transport does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import uvloop
from jh2._hazmat import Encoder

from benchmarks.extproc.messages import Conversation, conversations
from benchmarks.extproc.serve import sessions
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import ACK, FRAME_HEAD, FRAME_HEAD_BYTES, ErrorCode, FrameType, read_frame_head
from endpick.transport.h2.stream import MESSAGE_HEAD, MESSAGE_HEAD_BYTES
from endpick.transport.methods import EXT_PROC_PATH

_WINDOW = 2**30
_MAX_FRAME = 16_384
_FIELDS = [
    (b":method", b"POST", False),
    (b":path", EXT_PROC_PATH.encode(), False),
    (b":scheme", b"http", False),
    (b":authority", b"picker", False),
    (b"te", b"trailers", False),
    (b"content-type", b"application/grpc", False),
    (b"x-envoy-internal", b"true", False),
    (b"x-forwarded-for", b"127.0.0.1", False),
]


@dataclass(frozen=True)
class Phase:
    """DATA payloads to send, and how many replies the stream must have brought before the next phase."""

    payloads: tuple[bytes, ...]
    answered_at: int


@dataclass
class Stream:
    """One request under way."""

    script: Sequence[Phase]
    opened_at: float
    window: int
    phase: int = 0
    replies: int = 0
    partial: bytes = b""
    skip: int = 0
    """Bytes of the reply under way that are still to come."""
    unsent: deque[bytes] = field(default_factory=deque)


def encoded_requests() -> tuple[bytes, bytes]:
    """Header blocks of the first request of a connection and, shorter by what the table then knows, of all later ones."""
    encoder = Encoder()
    return encoder.encode(_FIELDS), encoder.encode(_FIELDS)


def phases(conversation: Conversation, session_kind: str) -> tuple[Phase, ...]:
    """The request in one go, then the response headers, then each piece of its body, as a streaming model sends them."""
    session = sessions(session_kind)()
    groups: list[list[bytes]] = [[]]
    for message in conversation.messages:
        # Field 2 or 4 of the first byte: still the request.
        if message[0] >> 3 in (2, 4):
            groups[0].append(message)
        else:
            groups.append([message])
    total, found = 0, []
    for group in groups:
        total += sum(len(session.receive(message)) for message in group)
        wire = [MESSAGE_HEAD.pack(0, len(message)) + message for message in group]
        found.append(Phase(tuple(piece for each in wire for piece in cut(each)), total))
    return tuple(found)


def cut(payload: bytes) -> list[bytes]:
    """Into payloads of DATA frames."""
    return [payload[at : at + _MAX_FRAME] for at in range(0, len(payload), _MAX_FRAME)]


class Gateway(asyncio.Protocol):
    """One connection with a fixed number of requests under way."""

    def __init__(self, next_script: Callable[[], Sequence[Phase]], streams: int, picks: list[float]) -> None:
        self._next_script = next_script
        self._concurrency = streams
        self._picks = picks
        self._unread = b""
        self.streams: dict[int, Stream] = {}
        self._next = 1
        self._window = 65_535
        self._stream_window = 65_535
        self._granted = 0
        self._out: list[bytes] = []
        self._first_block, self._block = encoded_requests()
        self.transport: asyncio.Transport
        self.done = 0
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._out.append(frames.PREFACE + frames.settings({4: _WINDOW}) + frames.window_update(0, _WINDOW))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True

    def data_received(self, data: bytes) -> None:
        buffer, position = self._unread + data, 0
        while len(buffer) - position >= FRAME_HEAD_BYTES:
            length_and_kind, flags, stream_id = read_frame_head(buffer, position)
            start = position + FRAME_HEAD_BYTES
            stop = start + (length_and_kind >> 8)
            if stop > len(buffer):
                break
            position, kind = stop, length_and_kind & 0xFF
            if kind == FrameType.DATA:
                self._received(stream_id, buffer[start:stop])
            else:
                self.frame_received(kind, flags, stream_id, buffer[start:stop])
        self._unread = buffer[position:]
        self.flush()

    def frame_received(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Anything but DATA."""
        if kind == FrameType.SETTINGS and not flags & ACK:
            self._settings(payload)
        elif kind == FrameType.WINDOW_UPDATE:
            self._grow(stream_id, int.from_bytes(payload, "big"))
        elif kind == FrameType.PING and not flags & ACK:
            self._out.append(frames.ping(payload, ack=True))
        elif kind in (FrameType.GOAWAY, FrameType.RST_STREAM) and (kind == FrameType.GOAWAY or stream_id in self.streams):
            raise RuntimeError(f"the server ended it: {FrameType(kind).name} {payload!r}")

    def _settings(self, payload: bytes) -> None:
        for at in range(0, len(payload), 6):
            if payload[at : at + 2] == b"\0\x04":
                self._resize(int.from_bytes(payload[at + 2 : at + 6], "big"))
        self._out.append(frames.SETTINGS_ACK)
        while len(self.streams) < self._concurrency:
            self.open()

    def _resize(self, stream_window: int) -> None:
        """The window of new streams, and by as much that of those under way."""
        grown, self._stream_window = stream_window - self._stream_window, stream_window
        for stream_id, stream in self.streams.items():
            stream.window += grown
            self._push(stream_id, stream)

    def _grow(self, stream_id: int, increment: int) -> None:
        if stream_id == 0:
            self._window += increment
            waiting = [each for each in self.streams.items() if each[1].unsent]
        else:
            stream = self.streams.get(stream_id)
            waiting = []
            if stream is not None:
                stream.window += increment
                waiting = [(stream_id, stream)]
        for each in waiting:
            self._push(*each)

    def open(self) -> None:
        stream_id, self._next = self._next, self._next + 2
        self._out.append(frames.headers(stream_id, self._first_block if stream_id == 1 else self._block, end_stream=False))
        stream = self.streams[stream_id] = Stream(self._next_script(), time.perf_counter(), self._stream_window)
        self._say(stream_id, stream)
        self._advance(stream_id, stream)

    def _say(self, stream_id: int, stream: Stream) -> None:
        stream.unsent.extend(stream.script[stream.phase].payloads)
        self._push(stream_id, stream)

    def _push(self, stream_id: int, stream: Stream) -> None:
        while stream.unsent and (size := len(stream.unsent[0])) <= min(stream.window, self._window):
            stream.window -= size
            self._window -= size
            self._out.append(FRAME_HEAD.pack(size >> 8, size & 0xFF, FrameType.DATA, 0, stream_id))
            self._out.append(stream.unsent.popleft())

    def _received(self, stream_id: int, payload: bytes) -> None:
        self._granted += len(payload)
        if self._granted > _WINDOW // 2:
            self._out.append(frames.window_update(0, self._granted))
            self._granted = 0
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        self.reply_received(stream_id, stream, payload)
        if stream_id in self.streams:
            self._advance(stream_id, stream)

    def reply_received(self, stream_id: int, stream: Stream, payload: bytes) -> None:
        """A part of the replies to one request."""
        stream.replies += _count_replies(stream, payload)

    def _advance(self, stream_id: int, stream: Stream) -> None:
        """Go on to the next phase, or the next request, as far as replies allow."""
        while stream.replies >= stream.script[stream.phase].answered_at:
            if stream.phase == 0:
                self.picked(stream)
            stream.phase += 1
            if stream.phase == len(stream.script):
                self._out.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))
                del self.streams[stream_id]
                self.done += 1
                self.proceed()
                return
            self._say(stream_id, stream)

    def picked(self, stream: Stream) -> None:
        """The endpoint of a request is known."""
        self._picks.append(time.perf_counter() - stream.opened_at)

    def proceed(self) -> None:
        """A request is over: open the next."""
        self.open()

    def flush(self) -> None:
        if self._out:
            self.transport.write(b"".join(self._out))
            self._out.clear()


def _count_replies(stream: Stream, payload: bytes) -> int:
    """How many gRPC messages begin in the payload; which of them end in it does not matter here."""
    found = 0
    position = stream.skip
    if stream.partial:
        payload, stream.partial, position = stream.partial + payload, b"", 0
    while len(payload) - position >= MESSAGE_HEAD_BYTES:
        position += MESSAGE_HEAD_BYTES + MESSAGE_HEAD.unpack_from(payload, position)[1]
        found += 1
    if position < len(payload):
        stream.partial = payload[position:]
    stream.skip = max(0, position - len(payload))
    return found


async def drive(port: int, script: Sequence[Phase], seconds: float, clients: int, streams: int) -> dict[str, object]:
    loop = asyncio.get_running_loop()
    picks: list[float] = []
    gateways = [
        (await loop.create_connection(lambda: Gateway(lambda: script, streams, picks), "127.0.0.1", port))[1] for _ in range(clients)
    ]
    await asyncio.sleep(seconds)
    done = sum(gateway.done for gateway in gateways)
    lost = sum(gateway.lost for gateway in gateways)
    for gateway in gateways:
        gateway.transport.abort()
    await asyncio.sleep(0)
    return {"requests": done, "failed": lost, "picks_ms": sorted(round(pick * 1000, 3) for pick in picks)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--conversation", required=True)
    parser.add_argument("--session", choices=("echo", "trivial", "plan"), required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--clients", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--core", type=int, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    [conversation] = [each for each in conversations() if each.name == options.conversation]
    script = phases(conversation, options.session)
    print(json.dumps(uvloop.run(drive(options.port, script, options.seconds, options.clients, options.streams))))


if __name__ == "__main__":
    main()
