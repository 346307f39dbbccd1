"""The dictionary ordered by last use."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.recency import Recency

KEYS = st.integers(0, 7)


def test_recency_trim_removes_the_least_recent():
    known = Recency({"a": 1, "b": 2, "c": 3})
    assert known["a"] == 1
    known.use("b", 20)

    assert known.trim(1) == [("a", 1), ("c", 3)]
    assert known == {"b": 20}


def test_recency_expire_stops_at_the_first_current_value():
    known = Recency({"a": 1, "b": 5, "c": 2})

    assert known.expire(lambda used_at: used_at < 3) == [("a", 1)]
    assert list(known) == ["b", "c"]
    assert Recency[str, int]().expire(lambda _: True) == []


@given(st.lists(KEYS), st.integers(0, 5))
def test_recency_keeps_the_last_used_in_order(uses: list[int], most: int):
    known: Recency[int, int] = Recency()
    forgotten: list[int] = []
    for number, key in enumerate(uses):
        known.use(key, number)
        forgotten += [old for old, _ in known.trim(most)]

    last = list(dict.fromkeys(reversed(uses)))[:most]
    assert list(known) == last[::-1]
    assert len(forgotten) + len(known) >= len(set(uses))
