"""Pages of a list: every object comes out as it went in, one at a time; a page that is none is refused without much ado."""

from __future__ import annotations

import asyncio
import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick_builtin.kubernetes import pages
from endpick_builtin.kubernetes.pages import MOST_BRACKETS, MOST_ITEM_BYTES, Pace, PageError, objects_of, take_apart

TEXTS = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('"\\{}[],: '), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=4)


def taken(raw: bytes) -> tuple[dict[str, object], list[dict[str, object]]]:
    items: list[dict[str, object]] = []
    return asyncio.run(take_apart(raw, items.append, Pace())), items


@given(st.lists(OBJECTS, max_size=5), OBJECTS, OBJECTS, st.sampled_from([None, 2]), st.booleans())
def test_every_object_comes_out_as_it_went_in(items, before, after, indent, as_ascii):
    before, after = ({key: value for key, value in one.items() if key != "items"} for one in (before, after))
    page = {**before, "items": items, **{key: value for key, value in after.items() if key not in before}}
    around, found = taken(json.dumps(page, indent=indent, ensure_ascii=as_ascii).encode())
    assert (around, found) == ({**page, "items": []}, items)


PARTS = st.lists(st.sampled_from(["{", "}", "[", "]", '"', "\\", ":", ",", '"items"', " ", "1"]))


@given(st.binary(max_size=40) | PARTS.map("".join).map(str.encode))
def test_what_is_no_page_is_refused_and_nothing_else_happens(raw):
    try:
        around, items = taken(raw)
    except PageError:
        return
    whole = orjson.loads(raw)
    assert isinstance(whole, dict)
    assert not items or around.get("items") is not None


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b'{"items":[{}', "cut short"),
        (b'{"items":[1,2]}', "no objects"),
        (b'{"items":[{} 5]}', "no objects"),
        (b'{"items":[[]]}', "no JSON object"),
        (b'{"items":[{"a":' + b"[" * 4 * MOST_BRACKETS, "brackets"),
        (b'{"metadata":{"a":' + b"[" * 4 * MOST_BRACKETS, "brackets"),
        (b'{"items":[{"a":"' + b"x" * 2 * MOST_ITEM_BYTES + b'"}]}', "longer than 2097152 bytes"),
        (b'{"items":[' + b" " * 2 * MOST_ITEM_BYTES + b"]}", "longer than 2097152 bytes"),
        (b'{"items":[],"a":"' + b"x" * 2 * MOST_ITEM_BYTES + b'"}', "longer than 2097152 bytes"),
    ],
    ids=range(9),
)
def test_pages_that_nobody_writes_are_refused_with_the_reason(raw, why):
    with pytest.raises(PageError, match=why):
        taken(raw)


def test_the_event_loop_turns_between_objects_and_within_one(monkeypatch):
    monkeypatch.setattr(pages, "TURN_SECONDS", -1.0)
    turns = []

    async def main(raw: bytes) -> None:
        loop = asyncio.get_running_loop()

        def turn() -> None:
            turns.append(len(items))
            loop.call_soon(turn)

        loop.call_soon(turn)
        await take_apart(raw, items.append, Pace())

    items: list[dict[str, object]] = []
    asyncio.run(main(b'{"items":[' + b",".join([b"{}"] * 100) + b"]}"))
    assert len(turns) >= 100
    assert len(list(objects_of(b'{"items":[{"a":[' + b",".join([b"[]"] * 5000) + b"]}]}"))) == 2 + 10_000 // 1024


def test_the_end_of_a_long_object_is_found_in_many_turns_and_it_is_read_in_another():
    item = {"metadata": {"name": "a"}, "x": ["y"] * 100_000}
    found = list(objects_of(json.dumps({"items": [item, {}]}).encode()))
    turns = found.index(item)
    assert turns > 10
    assert found == [*[None] * turns, item, {}, {"items": []}]


def test_a_long_list_leaves_others_most_of_the_time(monkeypatch):
    rests = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    ticks = iter(range(10**6))
    monkeypatch.setattr(pages.asyncio, "sleep", rest)
    monkeypatch.setattr(pages, "perf_counter", lambda: next(ticks) * 0.001)
    asyncio.run(take_apart(b'{"items":[' + b",".join([b"{}"] * 100) + b"]}", lambda item: None, Pace()))
    assert len(rests) >= 25
    assert min(rests) >= pages.TURN_SECONDS * pages.REST_PER_TURN


def test_a_page_is_taken_apart_where_it_was_gathered():
    raw = bytearray(b'{"metadata": {}, "items": [{"a": 1}, {"b": 2}]}')
    assert [item for item in objects_of(raw) if item] == [{"a": 1}, {"b": 2}, {"metadata": {}, "items": []}]


@pytest.mark.asyncio
async def test_short_steps_rest_once_they_took_long_together(monkeypatch):
    seconds, slept = [0.0], []

    async def sleep(length):
        slept.append(round(length, 6))

    monkeypatch.setattr("endpick_builtin.kubernetes.pages.perf_counter", lambda: seconds[0])
    monkeypatch.setattr("endpick_builtin.kubernetes.pages.asyncio.sleep", sleep)
    pace = Pace()
    for _ in range(7):
        began, seconds[0] = seconds[0], seconds[0] + 0.0009
        await pace.rest(began)
        seconds[0] += 60.0  # others have their time, which is none of these steps
    assert slept == [0.0081, 0.0081]


@pytest.mark.asyncio
async def test_tasks_that_share_a_pace_rest_one_after_the_other(monkeypatch):
    slept = []

    async def sleep(length):
        slept.append(round(length, 6))

    monkeypatch.setattr("endpick_builtin.kubernetes.pages.perf_counter", lambda: 1.0)
    monkeypatch.setattr("endpick_builtin.kubernetes.pages.asyncio.sleep", sleep)
    pace = Pace()
    for _watch in range(3):
        await pace.rest(1.0 - 0.004)
    assert slept == [0.012, 0.024, 0.036]
