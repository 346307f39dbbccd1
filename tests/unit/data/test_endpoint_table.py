"""The endpoint table: values in place, rows by generation."""

from __future__ import annotations

import asyncio
import math
import time

import numpy as np
import pytest

from endpick.api import DataKey, Endpoint, Scope, UndeclaredAccess, UnknownKey
from endpick.api.access import AccessScope
from endpick.data.table import EndpointTable

LOAD = DataKey("test/load", float)
TAGS = DataKey("test/tags", tuple)
PRICE = DataKey("test/price", float, Scope.POOL, default=1.5)
PER_REQUEST = DataKey("test/per-request", float, Scope.CANDIDATE)
KEYS = (LOAD, TAGS, PRICE, PER_REQUEST)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> EndpointTable:
    return EndpointTable(clock, KEYS)


def endpoint(name: str, host: str = "10.0.0.1", **rest) -> Endpoint:
    return Endpoint(f"default/{name}", host, 8000, **rest)


def test_columns_exist_from_the_start_and_hold_nothing(table):
    table.replace_all([endpoint("a"), endpoint("b")])
    view = table.view()
    assert np.isnan(view[LOAD]).all()
    assert view.objects(TAGS) == [None, None]
    assert view.age(LOAD).tolist() == [math.inf, math.inf]
    assert set(table.generation.columns) == {LOAD.name, TAGS.name}


def test_a_value_shows_in_views_made_before_it_was_written(table, clock):
    a, b = endpoint("a"), endpoint("b")
    table.replace_all([a, b])
    view = table.view()
    table.writer(None, b).set(LOAD, 7.0)
    clock.now += 2.5
    assert view[LOAD][1] == 7.0
    assert view.age(LOAD).tolist() == [math.inf, 2.5]


def test_restarted_endpoint_loses_its_values_and_is_forgotten(table):
    a, b = endpoint("a"), endpoint("b", "10.0.0.2")
    table.replace_all([a, b])
    for each in (a, b):
        table.writer(None, each).set(LOAD, 7.0)
        table.writer(None, each).set(TAGS, ("x",))
    view, generation, removed = table.view(), table.generation, []
    table.on_removed.append(removed.append)
    assert view.derived(LOAD, float_sum) == 14.0
    table.writer(None, a).restarted()
    assert (removed, table.generation) == ([a.name], generation)
    assert np.isnan(view[LOAD][0])
    assert (view[LOAD][1], view.objects(TAGS), view.age(LOAD)[0]) == (7.0, [None, ("x",)], math.inf)
    assert np.isnan(view.derived(LOAD, float_sum))


@pytest.mark.parametrize("other", [endpoint("gone"), endpoint("a", "10.0.0.9")], ids=["left", "moved"])
def test_restart_of_an_endpoint_that_left_is_ignored(table, other):
    table.replace_all([endpoint("a")])
    removed = []
    table.on_removed.append(removed.append)
    table.writer(None).restarted(other)
    table.writer(None).restarted()
    assert removed == []


def float_sum(values):
    return float(values.sum())


def test_views_cannot_be_written_through(table):
    table.upsert(endpoint("a"))
    with pytest.raises(ValueError, match="read-only"):
        table.view()[LOAD][0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        table.generation.columns[LOAD.name].written_at[0] = 1.0


def _made_writable(column):
    column.setflags(write=True)
    column[0] = 99.0


def _reshaped(column):
    column.shape = (2, 2)


def _retyped(column):
    column.dtype = np.int8


def test_an_object_column_keeps_sequences_whole(table):
    table.upsert(endpoint("a"))
    table.writer(None, table.find("default/a")).set(TAGS, ("x", "y"))
    assert table.view().objects(TAGS) == [("x", "y")]


def test_values_of_those_who_stay_survive_a_membership_change(table):
    a, b, c = endpoint("a"), endpoint("b"), endpoint("c")
    table.replace_all([a, b, c])
    for number, each in enumerate((a, b, c)):
        table.writer(None, each).set(LOAD, float(number))
    table.replace_all([c, endpoint("d"), b])
    assert [each.name for each in table.view()] == ["default/c", "default/d", "default/b"]
    np.testing.assert_array_equal(table.view()[LOAD], [2.0, np.nan, 1.0])


def test_a_request_keeps_the_rows_it_began_with(table):
    a, b = endpoint("a"), endpoint("b")
    table.replace_all([a, b])
    table.writer(None, a).set(LOAD, 1.0)
    before = table.view()
    table.remove("default/a")
    table.writer(None, b).set(LOAD, 9.0)
    assert list(before) == [a, b]
    np.testing.assert_array_equal(before[LOAD], [1.0, np.nan])
    assert table.view()[LOAD].tolist() == [9.0]


def test_a_new_address_under_an_old_name_is_another_server(table):
    removed: list[str] = []
    table.on_removed.append(removed.append)
    old = endpoint("a", "10.0.0.1")
    table.upsert(old)
    table.writer(None, old).set(LOAD, 3.0)
    table.upsert(endpoint("a", "10.0.0.2"))
    assert np.isnan(table.view()[LOAD]).all()
    assert removed == ["default/a"]
    table.writer(None, old).set(LOAD, 4.0)
    assert np.isnan(table.view()[LOAD]).all(), "a late answer of the old server was taken for the new one's"


@pytest.fixture
def told(table):
    """Names that are void, as they are told; each takes a tenth of a millisecond."""
    names: list[str] = []

    def forget(name: str) -> None:
        began = time.perf_counter()
        names.append(name)
        while time.perf_counter() - began < 0.0001:
            pass

    table.on_removed.append(forget)
    return names


async def all_told(told: list[str], members: list[Endpoint]) -> None:
    async with asyncio.timeout(10):
        while len(told) < len(members):  # noqa: ASYNC110 - told by a timer
            await asyncio.sleep(0)
    assert sorted(told) == sorted(member.name for member in members)


def test_removed_names_are_reported_without_an_event_loop(table):
    told: list[str] = []
    table.on_removed.append(told.append)
    table.replace_all([endpoint(f"e{number}") for number in range(2000)])
    table.replace_all([])
    assert len(told) == 2000


def test_new_labels_keep_the_values(table):
    removed: list[str] = []
    table.on_removed.append(removed.append)
    old = endpoint("a")
    table.upsert(old)
    table.writer(None, old).set(LOAD, 3.0)
    table.upsert(endpoint("a", labels={"zone": "b"}))
    table.writer(None, old).set(TAGS, ("late",))
    assert table.view()[LOAD].tolist() == [3.0]
    assert table.view().objects(TAGS) == [("late",)]
    assert dict(table.find("default/a").labels) == {"zone": "b"}
    assert removed == []


def test_saying_the_same_again_is_no_change(table):
    changes: list[object] = []
    table.replace_all([endpoint("a", labels={"zone": "b"}), endpoint("b")])
    table.on_changed.append(changes.append)
    before = table.generation
    table.replace_all([endpoint("a", labels={"zone": "b"}), endpoint("b")])
    table.upsert(endpoint("b"))
    table.remove("default/nobody")
    assert table.generation is before
    assert changes == []


def test_of_two_with_one_name_the_last_wins(table):
    table.replace_all([endpoint("a", "10.0.0.1"), endpoint("b"), endpoint("a", "10.0.0.9")])
    assert {each.name: each.host for each in table.view()} == {"default/a": "10.0.0.9", "default/b": "10.0.0.1"}


def test_subscribers_are_called_after_the_table_changed(table):
    heard: list[tuple[str, list[str]]] = []
    table.on_changed.append(lambda generation: heard.append(("changed", [each.name for each in generation.endpoints])))
    table.on_removed.append(lambda name: heard.append((name, [each.name for each in table.view()])))
    table.replace_all([endpoint("a"), endpoint("b")])
    table.remove("default/a")
    assert heard == [("changed", ["default/a", "default/b"]), ("changed", ["default/b"]), ("default/a", ["default/b"])]


def test_pool_values_are_shared_and_default_until_written(table):
    table.upsert(endpoint("a"))
    view = table.view()
    assert view.pool(PRICE) == 1.5
    table.writer(None).set_pool(PRICE, 2.0)
    assert view.pool(PRICE) == 2.0


def test_a_new_plan_keeps_the_values_of_keys_that_stay(table):
    a = endpoint("a")
    table.upsert(a)
    table.writer(None, a).set(LOAD, 3.0)
    table.writer(None, a).set(TAGS, ("x",))
    table.writer(None).set_pool(PRICE, 9.0)
    fresh = DataKey("test/fresh", float)
    table.declare([LOAD, fresh, DataKey(TAGS.name, float)])
    assert set(table.generation.columns) == {LOAD.name, TAGS.name, fresh.name}
    assert table.view()[LOAD].tolist() == [3.0]
    assert np.isnan(table.view()[DataKey(TAGS.name, float)]).all(), "the key changed its type"
    assert table.view().pool(PRICE) == 1.5


def test_a_number_column_refuses_what_is_no_number(table):
    a = endpoint("a")
    table.upsert(a)
    with pytest.raises((TypeError, ValueError)):
        table.writer(None, a).set(LOAD, object())
    assert math.isinf(table.view().age(LOAD)[0]), "a refused value must not look fresh"


def test_undeclared_write_is_refused_or_dropped(clock):
    scope = AccessScope("collector", frozenset(), frozenset({LOAD.name}))
    violations: list[tuple[str, str, str]] = []
    for on_violation in (None, lambda scope, key, access: violations.append((scope.instance, key, access))):
        table = EndpointTable(clock, KEYS) if on_violation is None else EndpointTable(clock, KEYS, on_violation)
        a = endpoint("a")
        table.upsert(a)
        writer = table.writer(scope, a)
        writer.set(LOAD, 1.0)
        if on_violation is None:
            with pytest.raises(UndeclaredAccess, match=r"'collector' writes 'test/tags'"):
                writer.set(TAGS, ("x",))
            with pytest.raises(UndeclaredAccess, match=r"'collector' writes 'test/price'"):
                writer.set_pool(PRICE, 1.0)
        else:
            writer.set(TAGS, ("x",))
            writer.set_pool(PRICE, 0.0)
            assert table.view().objects(TAGS) == [None]
            assert table.view().pool(PRICE) == 1.5
        assert table.view()[LOAD].tolist() == [1.0]
    assert violations == [("collector", TAGS.name, "write"), ("collector", PRICE.name, "write")]


def test_a_pool_wide_payload_may_speak_of_single_endpoints(table):
    a, b = endpoint("a"), endpoint("b")
    table.replace_all([a, b])
    writer = table.writer(None)
    assert writer.endpoint is None
    for each in writer.endpoints():
        writer.set(LOAD, 2.0, each)
    writer.set(LOAD, 9.0, endpoint("gone"))
    assert table.view()[LOAD].tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="name one"):
        writer.set(LOAD, 1.0)


@pytest.mark.parametrize("key", [PER_REQUEST, PRICE])
def test_a_key_of_another_scope_is_no_column(table, key):
    a = endpoint("a")
    table.upsert(a)
    with pytest.raises(UnknownKey, match=f"'{key.name}' has scope '{key.scope}'"):
        table.writer(None, a).set(key, 1.0)


def test_ready_is_remembered(table):
    assert not table.is_ready.is_set()
    table.ready()
    assert table.is_ready.is_set()


def test_derived_results_are_recomputed_after_a_change(table):
    table.replace_all([endpoint("a"), endpoint("b", "10.0.0.2")])
    first, second = table.generation.endpoints
    table.write(LOAD, first, 1.0)
    worked = []

    def doubled(loads: np.ndarray) -> np.ndarray:
        worked.append(loads.tolist())
        return loads * 2

    def ask() -> np.ndarray:
        return table.view().derived(LOAD, doubled)

    assert ask() is ask()
    table.write(LOAD, first, 1.0)
    assert len(worked) == 1
    table.write(LOAD, first, 3.0)
    assert ask()[0] == 6.0
    table.write(LOAD, second, 4.0)
    assert ask().tolist() == [6.0, 8.0]
    table.remove("default/a")
    assert ask().tolist() == [8.0]
    assert len(worked) == 4


def test_endpoints_beyond_the_limit_are_left_out(clock):
    table = EndpointTable(clock, KEYS, max_endpoints=3)
    told = []
    table.on_left_out.append(lambda: told.append("left out"))
    table.replace_all([endpoint("a"), endpoint("b"), endpoint("c")])
    assert told == []
    table.writer(None, endpoint("a")).set(LOAD, 7.0)
    table.upsert(endpoint("d"))
    assert (len(told), [each.name for each in table.view()]) == (1, ["default/a", "default/b", "default/c"])
    table.upsert(endpoint("a", labels={"zone": "b"}))
    assert (len(told), table.view()[LOAD][0]) == (1, 7.0), "one that is there may change"
    table.remove("default/b")
    table.upsert(endpoint("d"))
    assert [each.name for each in table.view()] == ["default/a", "default/c", "default/d"]
