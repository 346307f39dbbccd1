"""What attempts send over many streams of one connection as its windows allow, so that it arrives in full, and what they are told."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress

from benchmarks.attempts.gateway import HELLO, connected, data, opened
from endpick._proto.ext_proc_pb2 import HeaderMap, HeaderValue, HttpHeaders, HttpTrailers, ProcessingRequest, ProcessingResponse
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import FrameType

_QUIET_SECONDS = 0.3
"""After all was sent and each stream was answered: nothing else comes then."""
_AT_ONCE = 1 << 17
_INITIAL = 65_535


class _Exchange:
    """The streams of one connection, and what their windows still allow."""

    def __init__(self, payloads: Sequence[bytes]) -> None:
        self.unsent = {2 * index + 1: memoryview(payload) for index, payload in enumerate(payloads)}
        self.heard: dict[int, bytearray] = defaultdict(bytearray)
        self.unanswered = set(self.unsent)
        self._initial = self._connection = _INITIAL
        self._grown: dict[int, int] = defaultdict(int)
        self._buffer = b""

    def next(self) -> bytes:
        """Frames that may be sent now, of whichever streams have room; empty where none has."""
        for stream_id, left in [*self.unsent.items()]:
            room = min(self._connection, self._initial + self._grown[stream_id], len(left), _AT_ONCE)
            if room <= 0 and len(left):
                continue
            self._connection -= room
            self._grown[stream_id] -= room
            self.unsent[stream_id] = left[room:]
            if room == len(left):
                del self.unsent[stream_id]
            if room:
                return data(stream_id, bytes(left[:room]))
        return b""

    def read(self, piece: bytes) -> bytes:
        """Take note of what came; what is to be answered."""
        self._buffer += piece
        answer = b""
        while len(self._buffer) >= 9 and len(self._buffer) >= 9 + (length := int.from_bytes(self._buffer[:3], "big")):
            kind, flags, stream_id = self._buffer[3], self._buffer[4], int.from_bytes(self._buffer[5:9], "big")
            content, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
            if kind == FrameType.DATA:
                self.heard[stream_id] += content
                self.unanswered.discard(stream_id)
            elif kind == FrameType.WINDOW_UPDATE and stream_id:
                self._grown[stream_id] += int.from_bytes(content, "big")
            elif kind == FrameType.WINDOW_UPDATE:
                self._connection += int.from_bytes(content, "big")
            elif kind == FrameType.RST_STREAM or (kind == FrameType.HEADERS and flags & 1):
                self.unsent.pop(stream_id, None)
                self.unanswered.discard(stream_id)
            elif kind == FrameType.GOAWAY:
                self.unsent.clear()
                self.unanswered.clear()
            elif kind == FrameType.SETTINGS and not flags & 1:
                answer += frames.SETTINGS_ACK
                for at in range(0, length, 6):
                    if content[at : at + 2] == b"\0\x04":
                        self._initial = int.from_bytes(content[at + 2 : at + 6], "big")
            elif kind == FrameType.PING and not flags & 1:
                answer += frames.ping(content, ack=True)
        return answer


async def exchanged(port: int, payloads: Sequence[bytes], seconds: float = 3.0, source: str | None = None) -> dict[int, bytes]:
    """What the picker says on each stream of a connection, by its position, until it is quiet or the time is up."""
    until = time.monotonic() + seconds
    exchange = _Exchange(payloads)
    async with connected(port, source=source) as (reader, writer):
        writer.write(HELLO + b"".join(map(opened, exchange.unsent)))
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(seconds):
                while time.monotonic() < until:
                    if allowed := exchange.next():
                        writer.write(allowed)
                        await writer.drain()
                        continue
                    async with asyncio.timeout(None if exchange.unsent or exchange.unanswered else _QUIET_SECONDS):
                        if not (piece := await reader.read(1 << 18)):
                            break
                    if answer := exchange.read(piece):
                        writer.write(answer)
    return {stream_id >> 1: bytes(heard) for stream_id, heard in exchange.heard.items()}


def replies(heard: bytes) -> list[ProcessingResponse]:
    """The messages in what a stream brought; the time may be up amid the last one."""
    found = []
    while len(heard) >= 5 and len(heard) >= (end := 5 + int.from_bytes(heard[1:5], "big")):
        found.append(ProcessingResponse.FromString(heard[5:end]))
        heard = heard[end:]
    return found


def refused_with(heard: bytes) -> int:
    """The status of the refusal that a stream brought; 0 where it was routed, or nothing came."""
    statuses = (each.immediate_response.status.code for each in replies(heard) if each.HasField("immediate_response"))
    return next(statuses, 0)


def pairs_message(pairs: Sequence[tuple[str, str]], kind: str = "request_headers") -> ProcessingRequest:
    """Headers or trailers of any number and name, also the same name more than once."""
    told = HeaderMap(headers=[HeaderValue(key=key, raw_value=value.encode("utf-8", "surrogateescape")) for key, value in pairs])
    if kind.endswith("trailers"):
        return ProcessingRequest(**{kind: HttpTrailers(trailers=told)})
    return ProcessingRequest(**{kind: HttpHeaders(headers=told)})
