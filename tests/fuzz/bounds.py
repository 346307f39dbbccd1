"""What reading hostile bytes may cost, counted in calls and bytes: those are the same on every machine."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def bounded(read: Callable[[bytes], T], data: bytes, *, calls: int = 4_000, calls_per_byte: int = 60, peak: int = 2**20) -> T:
    """Read `data` within so many calls of Python and C functions, and so much memory and a hundred times the input."""
    made = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal made
        made += event in ("call", "c_call")

    before = sys.getprofile()
    tracemalloc.start()
    sys.setprofile(count)
    try:
        return read(data)
    finally:
        sys.setprofile(before)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert made <= calls + calls_per_byte * len(data), f"{made} calls for {len(data)} bytes"
        assert most <= peak + 100 * len(data), f"{most} bytes of memory for {len(data)} bytes"


def mixed(*pieces: bytes) -> st.SearchStrategy[bytes]:
    """Bytes out of these pieces, with some of any kind between them, cut off anywhere."""
    parts = st.lists(st.one_of(st.sampled_from(pieces), st.binary(max_size=12)), max_size=60)
    return st.tuples(parts.map(b"".join), st.integers(0, 40)).map(
        lambda made: made[0][: len(made[0]) - made[1]] if made[1] < 20 else made[0]
    )
