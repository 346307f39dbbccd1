"""Views of endpoints and columns, as plugins hold them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import DataKey, Endpoint, Endpoints, Scope, UndeclaredAccess, UnknownKey
from endpick.api.access import Access, AccessScope
from endpick.api.endpoint import Column, Generation

LOAD = DataKey("load", float)
TAG = DataKey("tag", str)
PRICE = DataKey("price", float, Scope.POOL, default=2.5)
UNHEARD = DataKey("unheard-of", float)


def view(loads: list[float], access: Access | None = None, now: float = 10.0, pool: dict[str, object] | None = None) -> Endpoints:
    endpoints = tuple(Endpoint(f"default/e{n}", "10.0.0.1", 8000 + n) for n in range(len(loads)))
    tags = np.array([f"t{n}" for n in range(len(loads))], dtype=object)
    written_at = np.arange(len(loads), dtype=np.float64)
    columns = {"load": Column(np.array(loads, dtype=np.float64), written_at), "tag": Column(tags, written_at)}
    return Endpoints(Generation(endpoints, columns, pool or {}, lambda: now), access=access)


@pytest.mark.parametrize(("host", "address"), [("10.0.0.1", "10.0.0.1:80"), ("fd00::1", "[fd00::1]:80")])
def test_address_brackets_ipv6(host, address):
    assert Endpoint("ns/a", host, 80).address == address
    assert Endpoint("ns/a", host, 80).metrics_address == address


def test_column_of_the_whole_view_shows_the_column_itself():
    endpoints = view([1.0, 2.0])

    assert np.shares_memory(endpoints[LOAD], endpoints._generation.columns["load"].values)


def test_positions_that_change_later_change_no_view():
    positions = np.array([2, 0])
    taken = view([0.0, 1.0, 2.0]).take(positions)
    positions[:] = 99
    assert taken[LOAD].tolist() == [2.0, 0.0]


@given(st.lists(st.floats(0, 1), max_size=30), st.data())
def test_narrowing_keeps_values_with_their_endpoints(loads, data):
    endpoints = view(loads)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(loads), max_size=len(loads))), dtype=np.bool_)

    kept = endpoints.where(mask)

    assert [endpoint.name for endpoint in kept] == [endpoint.name for endpoint, keep in zip(endpoints, mask, strict=True) if keep]
    assert kept[LOAD].tolist() == [load for load, keep in zip(loads, mask, strict=True) if keep]
    assert kept.objects(TAG) == [f"t{n}" for n, keep in enumerate(mask) if keep]


@given(st.permutations(range(6)))
def test_take_gives_the_order_asked_for(order):
    endpoints = view([0.0, 1.0, 2.0, 3.0, 4.0, 5.0])

    assert endpoints.take(order)[LOAD].tolist() == [float(position) for position in order]
    assert endpoints.take(order).take([1, 0])[LOAD].tolist() == [float(order[1]), float(order[0])]


def test_take_outside_the_view_is_an_error():
    narrow = view([0.0, 1.0, 2.0]).where(np.array([True, True, False]))

    with pytest.raises(IndexError, match="outside the 2 endpoints"):
        narrow.take([2])
    with pytest.raises(IndexError, match="outside the 2 endpoints"):
        narrow.take([-1])


@pytest.mark.parametrize("mask", [np.array([True]), np.array([1, 0, 1]), np.array([[True, False, True]])])
def test_mask_of_the_wrong_shape_or_type_is_refused(mask):
    with pytest.raises(ValueError, match="a mask for 3 endpoints"):
        view([0.0, 1.0, 2.0]).where(mask)


def test_only_asks_about_each_endpoint():
    assert [endpoint.port for endpoint in view([0.0] * 4).only(lambda endpoint: endpoint.port % 2 == 0)] == [8000, 8002]


def test_age_counts_from_each_write():
    endpoints = view([1.0, 1.0, 1.0], now=10.0)

    assert endpoints.age(LOAD).tolist() == [10.0, 9.0, 8.0]
    assert endpoints.age(UNHEARD).tolist() == [np.inf] * 3


def test_column_that_was_never_written_reads_as_missing():
    endpoints = view([1.0, 2.0])

    assert np.isnan(endpoints[UNHEARD]).all()
    assert endpoints.objects(DataKey("unheard-of-tag", str)) == [None, None]


def test_pool_value_falls_back_to_the_default():
    assert view([]).pool(PRICE) == 2.5
    assert view([], pool={"price": 9.0}).pool(PRICE) == 9.0


def test_asking_in_the_wrong_place_says_which_scope_the_key_has():
    endpoints = view([1.0])

    with pytest.raises(UnknownKey, match="'price' has scope 'pool'"):
        endpoints[PRICE]
    with pytest.raises(UnknownKey, match="'load' has scope 'endpoint', not 'pool'"):
        endpoints.pool(LOAD)
    with pytest.raises(UnknownKey, match=r"'tag' holds str objects, not numbers; read it with endpoints.objects"):
        endpoints[TAG]


def test_undeclared_read_is_a_fault_only_under_test():
    scope = AccessScope("mine", frozenset({"load"}))
    strict = view([1.0], Access(scope))
    seen = []
    lenient = view([1.0], Access(scope, lambda scope, key, access: seen.append((scope.instance, key, access))))

    assert strict[LOAD].tolist() == [1.0]
    with pytest.raises(UndeclaredAccess, match="instance 'mine' reads 'tag' without declaring it in `consumes`"):
        strict.objects(TAG)
    assert lenient.objects(TAG) == ["t0"]
    assert seen == [("mine", "tag", "read")]


def test_narrowed_view_is_judged_like_the_view_it_came_from():
    strict = view([1.0, 2.0], Access(AccessScope("mine", frozenset())))

    with pytest.raises(UndeclaredAccess):
        strict.take([1])[LOAD]


def test_rows_give_one_endpoint_with_its_values():
    rows = list(view([0.5, 0.25]).each())

    assert [(row.name, row[LOAD], row.object(TAG)) for row in rows] == [("default/e0", 0.5, "t0"), ("default/e1", 0.25, "t1")]


def test_derived_arrays_are_shared_and_read_only():
    endpoints = view([1.0, 2.0])

    found = endpoints.derived(LOAD, np.negative)

    assert found.tolist() == [-1.0, -2.0]
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0.0
    assert endpoints.derived(LOAD, np.sum) == 3.0


def test_for_a_part_of_the_pool_it_is_worked_out_each_time():
    endpoints = view([1.0, 2.0, 3.0])
    whole = endpoints.derived(LOAD, np.negative)

    assert endpoints.take([2, 0]).derived(LOAD, np.negative).tolist() == [-3.0, -1.0]
    assert endpoints.derived(LOAD, np.negative) is whole


def test_derived_value_of_an_unwritten_column_is_of_nan():
    assert view([1.0, 2.0]).derived(UNHEARD, np.isnan).tolist() == [True, True]


def test_derived_column_needs_the_columns_declaration():
    strict = view([1.0, 2.0], Access(AccessScope("mine", frozenset())))
    strict._generation.columns["load"].derived[np.negative] = "known to others"

    with pytest.raises(UndeclaredAccess, match="'mine' reads 'load'"):
        strict.derived(LOAD, np.negative)
    with pytest.raises(UnknownKey, match="not numbers"):
        view([1.0]).derived(TAG, np.negative)


def test_derived_objects_are_computed_once_per_pool():
    endpoints, asked = view([0.0, 1.0, 2.0]), []

    def joined(tags):
        asked.append(tuple(tags))
        return np.array([f"<{tag}>" for tag in tags])

    some = endpoints.take([2, 0])

    assert some.gather(some.derived_from_objects(TAG, joined)).tolist() == ["<t2>", "<t0>"]
    assert endpoints.derived_from_objects(TAG, joined)[1] == "<t1>"
    assert asked == [("t0", "t1", "t2")]
    assert endpoints.derived_from_objects(DataKey("nobody", str), list) == [None, None, None]


def test_derived_objects_need_the_objects_declaration():
    strict = view([1.0, 2.0], Access(AccessScope("mine", frozenset())))

    with pytest.raises(UndeclaredAccess, match="'mine' reads 'tag'"):
        strict.derived_from_objects(TAG, list)
    with pytest.raises(UnknownKey, match="scope 'pool'"):
        view([1.0]).derived_from_objects(PRICE, list)


@given(st.permutations(range(6)), st.integers(0, 6))
def test_an_endpoint_is_found_where_take_would_take_it(order, size):
    endpoints = view([float(number) for number in range(6)])
    some = endpoints.take(order[:size])

    assert [some.position(f"default/e{number}") for number in order[:size]] == list(range(size))
    assert all(some.position(f"default/e{number}") is None for number in order[size:])
    assert [some.pool_position(f"default/e{number}") for number in range(6)] == list(range(6))
    assert some.position("default/gone") is endpoints.position("default/gone") is some.pool_position("default/gone") is None
