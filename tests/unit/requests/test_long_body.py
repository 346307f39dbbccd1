"""Long bodies in the pieces in which they came."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from endpick.requests.long_body import LONGEST_JOINED_BYTES, LongBody, body_of, gather

PIECES = st.lists(st.integers(0, 9000), max_size=40).map(lambda sizes: [bytes([number]) * size for number, size in enumerate(sizes)])


@given(PIECES)
def test_what_is_gathered_is_what_came(pieces):
    gathered = []
    for piece in pieces:
        gather(gathered, piece)
    assert b"".join(gathered) == b"".join(pieces)


def test_short_pieces_become_some_of_65_kb():
    gathered = []
    for _ in range(100_000):
        gather(gathered, b"xy")
    assert 3 <= len(gathered) <= 4


def test_a_long_piece_is_not_copied():
    gathered, long = [], memoryview(bytes(5000))
    for piece in (b"short", long, b"short"):
        gather(gathered, piece)
    assert gathered[1] is long


def test_a_body_is_joined_unless_it_is_long():
    half = bytes(LONGEST_JOINED_BYTES // 2)
    assert body_of([half, half]) == half + half
    long = body_of([half, half, b"x"])
    assert isinstance(long, LongBody)
    assert (len(long), long.whole()) == (len(half) * 2 + 1, half + half + b"x")


def test_the_first_byte_is_told_whatever_stands_before_it():
    assert LongBody([b"", memoryview(b"ab"), b"c"]).starts_with(b"a")
    assert not LongBody([b"", b"ab"]).starts_with(b"b")
    assert not LongBody([]).starts_with(b"a")
