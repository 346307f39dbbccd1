"""Values that have grown too old for a plugin are missing for that plugin, and for no other."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import DataKey, Endpoint, Endpoints, Scope, Subscriptions, UnknownKey
from endpick.api.access import Access
from endpick.data.table import EndpointTable
from endpick.host.instance import scope_of

LOAD = DataKey("load", float)
TAG = DataKey("tag", str)
PRICE = DataKey("price", float, Scope.POOL, default=2.5)
MATCH = DataKey("match", float, Scope.CANDIDATE)


class Pool:
    """A table whose time a test sets; endpoint `n` is written to at second `n`."""

    def __init__(self, size: int = 4) -> None:
        self.now = 0.0
        self.table = EndpointTable(lambda: self.now, (LOAD, TAG, PRICE))
        self.table.replace_all([Endpoint(f"default/e{n}", "10.0.0.1", 8000 + n) for n in range(size)])
        for n, endpoint in enumerate(self.table.generation.endpoints):
            self.now = float(n)
            self.table.write(LOAD, endpoint, 10.0 * n)
            self.table.write(TAG, endpoint, f"t{n}")
            self.table.write_pool(PRICE, 7.0)

    def seen_by(self, subscriptions: Subscriptions) -> Endpoints:
        return self.table.view(Access(scope_of("reader", subscriptions)))


def test_older_values_are_missing_however_they_are_read():
    pool = Pool()
    pool.now = 5.0  # ages are 5, 4, 3 and 2
    fresh = pool.seen_by(Subscriptions(consumes=(LOAD.no_older_than(3.0), TAG.no_older_than(3.0))))

    np.testing.assert_array_equal(fresh[LOAD], [np.nan, np.nan, 20.0, 30.0])
    np.testing.assert_array_equal(fresh.take([3, 0])[LOAD], [30.0, np.nan])
    assert fresh.objects(TAG) == [None, None, "t2", "t3"]
    assert fresh.take([1, 2]).objects(TAG) == [None, "t2"]
    assert fresh.age(LOAD).tolist() == [5.0, 4.0, 3.0, 2.0], "a limit changes no age"
    assert not fresh[LOAD].flags.writeable


def test_only_the_plugin_that_asks_for_it_finds_them_missing():
    pool = Pool()
    pool.now = 100.0

    assert np.isnan(pool.seen_by(Subscriptions(consumes=(LOAD.no_older_than(1.0),)))[LOAD]).all()
    assert pool.seen_by(Subscriptions(consumes=(LOAD,)))[LOAD].tolist() == [0.0, 10.0, 20.0, 30.0]
    assert pool.table.view()[LOAD].tolist() == [0.0, 10.0, 20.0, 30.0]


def test_derived_column_follows_age_without_writes():
    pool = Pool(2)
    view = pool.seen_by(Subscriptions(consumes=(LOAD.no_older_than(3.0), TAG.no_older_than(3.0))))

    def known(values) -> int:
        return int(np.count_nonzero(~np.isnan(values)))

    def tags(values) -> list[object]:
        return list(values)

    found = []
    for now in (2.0, 3.5, 9.0):
        pool.now = now
        found.append((view.derived(LOAD, known), view.take([1]).derived_from_objects(TAG, tags)))

    assert found == [(2, ["t0", "t1"]), (1, [None, "t1"]), (0, [None, None])]
    assert pool.table.view().derived(LOAD, known) == 2, "others share no result with it"


def test_stale_pool_value_becomes_its_default():
    pool = Pool()
    view = pool.seen_by(Subscriptions(consumes_optional=(PRICE.no_older_than(10.0),)))

    pool.now = 13.0
    assert (view.pool(PRICE), view.pool_age(PRICE)) == (7.0, 10.0)
    pool.now = 13.5
    assert (view.pool(PRICE), view.pool_age(PRICE)) == (2.5, 10.5)
    assert pool.seen_by(Subscriptions(consumes=(PRICE,))).pool(PRICE) == 7.0


def test_unwritten_pool_value_is_infinitely_old():
    table = EndpointTable(lambda: 5.0, (PRICE,))

    assert table.view().pool_age(PRICE) == math.inf
    with pytest.raises(UnknownKey, match="has scope 'endpoint', not 'pool'"):
        table.view().pool_age(LOAD)


def test_values_kept_over_a_reload_keep_their_time():
    pool = Pool()
    pool.table.declare((PRICE,))
    pool.now = 8.0
    assert pool.table.view().pool_age(PRICE) == 5.0

    pool.table.declare(())
    pool.table.declare((PRICE,))
    assert pool.table.view().pool_age(PRICE) == math.inf


def test_of_two_limits_the_shorter_holds():
    keys = Subscriptions(consumes=(LOAD.no_older_than(2.0),), consumes_optional=(LOAD.no_older_than(5.0), TAG, MATCH))

    assert keys.max_ages == {"load": 2.0}
    assert keys.no_older_than(3.0).max_ages == {"load": 2.0, "tag": 3.0}, "what lives as long as a request has no age"
    assert LOAD.no_older_than(3.0).no_older_than(9.0).max_age_seconds == 3.0
    assert LOAD.no_older_than(3.0) == LOAD


@pytest.mark.parametrize(("key", "seconds"), [(LOAD, 0.0), (LOAD, -1.0), (LOAD, math.nan), (MATCH, 1.0)])
def test_a_limit_that_makes_no_sense_is_refused(key, seconds):
    with pytest.raises(ValueError, match=f"'{key.name}'"):
        key.no_older_than(seconds)


@given(st.floats(0.1, 20), st.floats(0, 20), st.lists(st.integers(0, 3), max_size=6))
def test_exactly_the_values_within_the_limit_are_there(limit, now, rows):
    pool = Pool()
    pool.now = 3.0 + now
    view = pool.seen_by(Subscriptions(consumes=(LOAD.no_older_than(limit),))).take(rows)

    assert (~np.isnan(view[LOAD])).tolist() == [3.0 + now - row <= limit or row >= 3.0 + now - limit for row in rows]
