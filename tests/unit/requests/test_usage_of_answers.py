"""How usage is read from an answer while it passes: from events, frames and plain bodies, whatever they hold."""

from __future__ import annotations

import pytest

from endpick.api import Usage
from endpick.requests.memory import MemoryAccount
from endpick.requests.response_body import (
    KEPT_TAIL_BYTES,
    MAX_BODY_BYTES,
    MAX_EVENT_BYTES,
    FramedUsage,
    StreamedUsage,
    WholeUsage,
)
from endpick_builtin.parsers.openai import OpenAIParser
from unit.scheduling.workbench import instance


class Asked:
    """Stands for a parser; remembers how much it was shown."""

    def __init__(self):
        self.bodies = []

    def __call__(self, body, streaming):
        self.bodies.append(body)
        return instance(OpenAIParser).plugin.usage(body, streaming)


def test_events_without_usage_are_never_decoded():
    asked = Asked()
    reader = StreamedUsage(asked, b'"usage', MemoryAccount())
    for _ in range(50):
        reader.feed(b'data: {"choices":[{"delta":{"content":"x"}}],"usage":null}\n\n')
    reader.feed(b'data: {"usage":{"prompt_tokens":1}}\n\n')
    assert reader.result() == Usage(1, 0)
    assert len(asked.bodies) == 1


def test_a_huge_event_is_let_go_and_the_next_one_read():
    reader = StreamedUsage(Asked(), b'"usage', MemoryAccount())
    for _ in range(3):
        reader.feed(b"x" * MAX_EVENT_BYTES)
    reader.feed(b"\n\n")
    reader.feed(b'data: {"usage":{"prompt_tokens":1}}\n\n')
    assert reader.result() == Usage(1, 0)


def test_of_a_huge_body_only_the_end_is_kept():
    asked = Asked()
    reader = WholeUsage(asked, b'"usage', MemoryAccount())
    for _ in range(20):
        reader.feed(b'{"embedding":[' + b"0.125," * (MAX_BODY_BYTES // 24))
    reader.feed(b'0.5]}],"usage":{"prompt_tokens":8,"total_tokens":8}}')
    assert reader.result() == Usage(8, 0)
    assert len(asked.bodies[0]) <= MAX_BODY_BYTES
    assert KEPT_TAIL_BYTES < MAX_BODY_BYTES


def test_of_a_huge_piece_of_events_the_end_is_read_and_of_frames_nothing():
    asked = Asked()
    events = StreamedUsage(asked, b'"usage', MemoryAccount())
    events.feed(b'data: {"usage":{"prompt_tokens":9}}')
    events.feed(b'data: {"usage":' + b"[" * MAX_EVENT_BYTES + b'\n\ndata: {"usage":{"prompt_tokens":1}}\n\n')
    assert events.result() == Usage(1, 0)
    assert [len(body) for body in asked.bodies] == [MAX_EVENT_BYTES]
    frames = FramedUsage(asked, MemoryAccount())
    frames.feed(b"\0\0\0\0\1y" * (MAX_EVENT_BYTES // 6 + 1))
    frames.feed(b"\0\0\0\0\1y")
    assert (frames.result(), len(asked.bodies)) == (None, 1)


def test_behind_what_passed_unseen_events_are_read_from_the_next_one_on_and_frames_no_more():
    asked = Asked()
    events = StreamedUsage(asked, b'"usage', MemoryAccount())
    events.feed(b'data: {"usage":{"prompt_tokens":7')
    events.skip()
    events.feed(b'}}\n\ndata: {"usage":{"prompt_tokens":1}}\n\n')
    assert events.result() == Usage(1, 0)
    assert len(asked.bodies) == 1
    frames = FramedUsage(asked, MemoryAccount())
    frames.skip()
    frames.feed(b"\0\0\0\0\1y")
    assert (frames.result(), len(asked.bodies)) == (None, 1)


def test_a_huge_frame_is_let_go_and_the_next_one_read():
    asked = []
    reader = FramedUsage(lambda frames, streaming: asked.append(frames) or Usage(1, len(asked)), MemoryAccount())
    for size, looked_at in [(2**18 - 5, True), (2**18 - 4, False), (2**20, False)]:
        asked.clear()
        frame = b"\0" + size.to_bytes(4, "big") + b"x" * size
        for start in range(0, len(frame), 60_000):
            reader.feed(frame[start : start + 60_000])
        reader.feed(b"\0\0\0\0\1y")
        assert asked == [frame, b"\0\0\0\0\1y"][0 if looked_at else 1 :]


@pytest.mark.parametrize("reader", [lambda read, account: StreamedUsage(read, b'"usage', account), FramedUsage])
def test_what_is_kept_of_answers_without_an_end_is_accounted_for(reader):
    account = MemoryAccount()
    usage = reader(Asked(), account)
    usage.feed(b"\0\0\3\xff\0" + b"x" * 10_000)
    assert account.held_bytes == 0
    for _ in range(4):
        usage.feed(b"x" * 50_000)
    assert account.held_bytes == account.parsed_bytes == 210_005
    usage.result()
    assert account.held_bytes == account.parsed_bytes == 0


def test_what_is_kept_of_a_plain_body_is_accounted_for_until_its_end():
    account = MemoryAccount()
    usage = WholeUsage(Asked(), b'"usage', account)
    usage.feed(b"x" * 200_000)
    assert account.held_bytes == 200_000
    usage.feed(b"x" * 200_000)
    assert account.held_bytes == KEPT_TAIL_BYTES
    usage.result()
    assert account.held_bytes == 0


def test_of_a_piece_of_thousands_of_frames_the_last_are_read():
    asked = []
    reader = FramedUsage(lambda frames, streaming: asked.append(frames) or Usage(len(asked), 1), MemoryAccount())
    frame = b"\0\0\0\0\3abc"
    reader.feed(frame * 10_000 + b"\0\0\0\0\3a")
    reader.feed(b"bc")
    assert asked == [frame * 64, frame]
    assert reader.result() == Usage(2, 1)
