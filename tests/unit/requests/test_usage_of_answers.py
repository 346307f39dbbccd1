"""Usage is found in events, gRPC messages and JSON bodies while they pass."""

from __future__ import annotations

from endpick.api import Usage
from endpick.requests.response_body import (
    MAX_BODY_BYTES,
    MAX_EVENT_BYTES,
    MAX_FRAME_BYTES,
    FramedUsage,
    StreamedUsage,
    WholeUsage,
)
from endpick_builtin.parsers.openai import OpenAIParser
from unit.scheduling.workbench import instance


class Recorded:
    """A parser's `usage` that records the bodies it gets."""

    def __init__(self):
        self.bodies = []

    def __call__(self, body, streaming):
        self.bodies.append(body)
        return instance(OpenAIParser).plugin.usage(body, streaming)


def test_events_without_usage_are_not_parsed():
    read = Recorded()
    reader = StreamedUsage(read, b'"usage')
    for _ in range(50):
        reader.feed(b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n')
    reader.feed(b'data: {"usage":{"prompt_tokens":1}}\n\n')
    assert reader.result() == Usage(1, 0)
    assert len(read.bodies) == 1


def test_long_event_is_skipped():
    reader = StreamedUsage(Recorded(), b'"usage')
    for _ in range(3):
        reader.feed(b"x" * MAX_EVENT_BYTES)
    reader.feed(b"\n\n")
    reader.feed(b'data: {"usage":{"prompt_tokens":1}}\n\n')
    assert reader.result() == Usage(1, 0)


def test_end_of_a_long_chunk_of_events_is_read():
    read = Recorded()
    reader = StreamedUsage(read, b'"usage')
    reader.feed(b'data: {"usage":{"prompt_tokens":9}}')
    reader.feed(b"x" * MAX_EVENT_BYTES + b'\n\ndata: {"usage":{"prompt_tokens":1}}\n\n')
    assert reader.result() == Usage(1, 0)
    assert [len(body) for body in read.bodies] == [MAX_EVENT_BYTES]


def test_end_of_a_long_body_is_kept():
    read = Recorded()
    reader = WholeUsage(read, b'"usage')
    for _ in range(20):
        reader.feed(b'{"embedding":[' + b"0.125," * (MAX_BODY_BYTES // 24))
    reader.feed(b'0.5]}],"usage":{"prompt_tokens":8,"total_tokens":8}}')
    assert reader.result() == Usage(8, 0)
    assert len(read.bodies[0]) <= MAX_BODY_BYTES


def test_long_frame_is_skipped():
    frames = []
    reader = FramedUsage(lambda body, streaming: frames.append(body) or Usage(1, len(frames)))
    for size, is_read in [(MAX_FRAME_BYTES - 5, True), (MAX_FRAME_BYTES - 4, False), (1 << 20, False)]:
        frames.clear()
        frame = b"\0" + size.to_bytes(4, "big") + b"x" * size
        for start in range(0, len(frame), 60_000):
            reader.feed(frame[start : start + 60_000])
        reader.feed(b"\0\0\0\0\1y")
        assert frames == [frame, b"\0\0\0\0\1y"][0 if is_read else 1 :]


def test_frames_cut_by_chunks_are_joined():
    frames = []
    reader = FramedUsage(lambda body, streaming: frames.append(body) or Usage(len(frames), 1))
    reader.feed(b"\0\0\0\0\3abc" * 3 + b"\0\0\0\0\3a")
    reader.feed(b"bc")
    assert frames == [b"\0\0\0\0\3abc" * 3, b"\0\0\0\0\3abc"]
    assert reader.result() == Usage(2, 1)
