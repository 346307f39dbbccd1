from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.transport.h2 import frames
from endpick.transport.h2.errors import ErrorCode, H2ConnectionError
from endpick.transport.h2.frames import FRAME_HEAD, FrameBuffer, FrameType
from unit.transport.peer import frame, parsed

FRAMES = st.lists(
    st.builds(frame, st.integers(0, 255), st.integers(0, 255), st.integers(0, 2**31 - 1), st.binary(max_size=60)), min_size=1, max_size=12
)


def parse(parser: FrameBuffer, data: bytes) -> list[tuple[int, int, int, bytes]]:
    return list(parsed(parser, data))


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@given(FRAMES, st.lists(st.integers(0, 10_000), max_size=20))
def test_frames_are_the_same_however_the_bytes_are_cut(sent, places):
    whole = b"".join(sent)
    expected = parse(FrameBuffer(100), whole)
    parser = FrameBuffer(100)
    assert [found for piece in cut(whole, places) for found in parse(parser, piece)] == expected
    assert len(expected) == len(sent)


@given(st.binary(max_size=400), st.lists(st.integers(0, 10_000), max_size=20))
def test_any_bytes_give_the_same_frames_and_error_however_they_are_cut(garbage, places):
    def run(pieces: list[bytes]) -> tuple[list[tuple[int, int, int, bytes]], str | None]:
        parser = FrameBuffer(64)
        found = []
        try:
            for piece in pieces:
                for each in parsed(parser, piece):
                    found.append(each)  # noqa: PERF402 - also what came before an error
        except H2ConnectionError as error:
            return found, error.reason
        return found, None

    assert run(cut(garbage, places)) == run([garbage])


def test_a_frame_beyond_the_limit_is_an_error_after_the_frames_before_it():
    parser = FrameBuffer(10)
    found = parsed(parser, frames.ping(b"12345678", ack=False) + frame(FrameType.DATA, 0, 1, b"x" * 11))
    assert next(found)[0] == FrameType.PING
    with pytest.raises(H2ConnectionError) as caught:
        next(found)
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR


def test_the_reserved_bit_of_a_stream_identifier_is_ignored():
    with_bit = FRAME_HEAD.pack(0, 1, FrameType.DATA, 0, 5 | 1 << 31) + b"x"
    assert parse(FrameBuffer(100), with_bit) == [(FrameType.DATA, 0, 5, b"x")]


@pytest.mark.parametrize(
    ("written", "kind", "stream", "payload"),
    [
        (frames.settings({4: 65_536}), FrameType.SETTINGS, 0, b"\x00\x04\x00\x01\x00\x00"),
        (frames.rst_stream(5, ErrorCode.CANCEL), FrameType.RST_STREAM, 5, b"\0\0\0\x08"),
        (frames.window_update(7, 3), FrameType.WINDOW_UPDATE, 7, b"\0\0\0\x03"),
        (frames.goaway(9, ErrorCode.NO_ERROR, "bye"), FrameType.GOAWAY, 0, b"\0\0\0\x09\0\0\0\0bye"),
        (frames.headers(1, b"b" * 300, end_stream=True), FrameType.HEADERS, 1, b"b" * 300),
    ],
)
def test_what_is_written_reads_back(written, kind, stream, payload):
    [(got_kind, _, got_stream, got_payload)] = parse(FrameBuffer(1000), written)
    assert (got_kind, got_stream, got_payload) == (kind, stream, payload)
