"""A gateway that waits for the answers of any endpoint picker: python -m benchmarks.go.driver PORT.

`benchmarks.extproc.phased` counts replies, whose number is endpick's own affair; this one reads them, and goes on when the one that the
gateway waits for is there: the last piece of the request, the headers of the response, each event of a stream, the last piece of the
response. A picker may keep a response that is no stream until it is complete, so that is sent in one go.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import time
from collections.abc import Sequence

import uvloop

from benchmarks.extproc.messages import variants
from benchmarks.extproc.phased import Gateway, Phase, Stream, cut
from endpick._proto.ext_proc_pb2 import ProcessingResponse
from endpick.transport.h2.frames import END_STREAM, FrameType
from endpick.transport.h2.stream import MESSAGE_HEAD, MESSAGE_HEAD_BYTES

LOADS = {"1 KB": (1024, 0), "16 KB": (16 * 1024, 0), "220 KB": (220 * 1024, 0), "16 KB + 80 chunks": (16 * 1024, 80)}
"""Bytes of the request, and pieces of the streamed answer."""
_VARIANTS = 32
_PATIENCE_SECONDS = 0.5
_AWAITED = ("request_body", "response_headers", "response_body")
"""Which reply ends the first phase, the second, and each later one; the first and the last end with the last of them."""


def scripts(size: int, chunks: int) -> tuple[tuple[Phase, ...], ...]:
    """Conversations cut where the gateway waits."""
    return tuple(conversation_phases(messages, chunks) for messages in variants(size, chunks, _VARIANTS))


def conversation_phases(messages: Sequence[bytes], chunks: int) -> tuple[Phase, ...]:
    """One conversation, cut where the gateway waits."""
    request = [message for message in messages if message[0] >> 3 in (2, 4)]  # the number of the field: request headers or body
    headers, *body = messages[len(request) :]
    events = max(0, chunks - 1)
    groups = [request, [headers], *([event] for event in body[:events]), body[events:]]
    wire = ((MESSAGE_HEAD.pack(0, len(message)) + message for message in group) for group in groups)
    return tuple(Phase(tuple(piece for each in group for piece in cut(each)), number) for number, group in enumerate(wire, 1))


class Reader(Gateway):
    """One connection with a fixed number of requests under way, which reads what it gets."""

    def __init__(self, conversations: itertools.cycle[Sequence[Phase]], streams: int, picks: list[float]) -> None:
        super().__init__(conversations.__next__, streams, picks)
        self.failed = 0

    def frame_received(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        """Count a stream that the picker ends before its time as failed, and open another."""
        if stream_id in self.streams and (kind == FrameType.RST_STREAM or (kind == FrameType.HEADERS and flags & END_STREAM)):
            self._fail(stream_id)
        else:
            super().frame_received(kind, flags, stream_id, payload)

    def reply_received(self, stream_id: int, stream: Stream, payload: bytes) -> None:
        """Take complete messages out of what came."""
        whole, position = stream.partial + payload, 0
        while len(whole) - position >= MESSAGE_HEAD_BYTES:
            end = position + MESSAGE_HEAD_BYTES + MESSAGE_HEAD.unpack_from(whole, position)[1]
            if end > len(whole):
                break
            reply = ProcessingResponse.FromString(whole[position + MESSAGE_HEAD_BYTES : end])
            position = end
            if reply.HasField("immediate_response"):
                self._fail(stream_id)
                return
            stream.replies += _is_awaited(reply, stream.phase, len(stream.script))
        stream.partial = whole[position:]

    def _fail(self, stream_id: int) -> None:
        del self.streams[stream_id]
        self.failed += 1
        self.open()


def _is_awaited(reply: ProcessingResponse, phase: int, phases: int) -> bool:
    kind = reply.WhichOneof("response")
    if kind != _AWAITED[min(phase, 2)]:
        return False
    if phase not in (0, phases - 1):
        return True
    return bool(getattr(reply, kind).response.body_mutation.streamed_response.end_of_stream)


async def drive(port: int, load: str, seconds: float, connections: int, streams: int) -> dict[str, object]:
    """Keep all streams busy for a while."""
    loop = asyncio.get_running_loop()
    picks: list[float] = []
    conversations = itertools.cycle(scripts(*LOADS[load]))
    made = [loop.create_connection(lambda: Reader(conversations, streams, picks), "127.0.0.1", port) for _ in range(connections)]
    readers = [reader for _, reader in await asyncio.gather(*made)]
    await asyncio.sleep(seconds)
    result = {
        "requests": sum(reader.done for reader in readers),
        "failed": sum(reader.failed + reader.lost for reader in readers),
        "picks_ms": sorted(round(pick * 1000, 3) for pick in picks),
    }
    for reader in readers:
        reader.transport.abort()
    await asyncio.sleep(0)
    return result


async def first_decision(process: subprocess.Popen[bytes] | subprocess.Popen[str], port: int) -> None:
    """Wait until a picker that is starting sends a request somewhere.

    Raises:
        RuntimeError: it ended before.
    """
    picks: list[float] = []
    conversations = itertools.cycle(scripts(*LOADS["1 KB"]))
    loop = asyncio.get_running_loop()
    while not picks:
        if process.poll() is not None:
            raise RuntimeError(f"the picker ended with status {process.returncode} before it decided")
        try:
            transport, reader = await loop.create_connection(lambda: Reader(conversations, 1, picks), "127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.002)
            continue
        until = time.monotonic() + _PATIENCE_SECONDS
        while not picks and not reader.lost and not reader.failed and time.monotonic() < until:  # noqa: ASYNC110 - two callbacks away
            await asyncio.sleep(0.001)
        transport.abort()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--load", choices=LOADS, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--connections", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--core", type=int, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    print(json.dumps(uvloop.run(drive(options.port, options.load, options.seconds, options.connections, options.streams))))


if __name__ == "__main__":
    main()
