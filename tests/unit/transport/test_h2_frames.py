"""Frames as bytes, however the network cuts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.transport.h2 import frames
from endpick.transport.h2.frames import MAX_FRAME_BYTES, ErrorCode, FrameType, H2ConnectionError, PartialFrame
from unit.transport.peer import frame, split_frames


@given(st.binary(max_size=300), st.lists(st.integers(1, 300), max_size=20), st.binary(max_size=20))
def test_partial_frame_completes_however_it_is_cut(payload, cuts, behind):
    sent = frame(FrameType.DATA, 0, 1, payload)
    data = sent + behind
    partial = PartialFrame()
    position = cuts[0] % len(sent) if cuts else 0
    partial.start(data[:position], 0)
    for cut in (*cuts[1:], len(data)):
        found, stop = partial.complete(data[position : position + cut])
        if found:
            assert (found, data[position + stop :]) == (sent, data[len(sent) :])
            assert not partial
            return
        position += cut
    raise AssertionError("the frame is not complete")


def test_too_long_frame_is_an_error_as_soon_as_its_head_is_there():
    head = frame(FrameType.DATA, 0, 1, b"x" * (MAX_FRAME_BYTES + 1))[:9]
    partial = PartialFrame()
    partial.start(head[:5], 0)
    with pytest.raises(H2ConnectionError) as caught:
        partial.complete(head[5:])
    assert caught.value.code is ErrorCode.FRAME_SIZE_ERROR


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
def test_written_frame_reads_back(written, kind, stream, payload):
    [(got_kind, _, got_stream, got_payload)], _ = split_frames(written)
    assert (got_kind, got_stream, got_payload) == (kind, stream, payload)
