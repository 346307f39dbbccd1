"""The cycle state: shared keys, private scratch, scopes."""

from __future__ import annotations

import numpy as np
import pytest

from endpick.api import CycleState, DataKey, Endpoint, Endpoints, Scope, UndeclaredAccess, UnknownKey
from endpick.api.access import Access, AccessScope
from endpick.api.endpoint import Generation

SESSION = DataKey("session", str, Scope.REQUEST, default="none")
MATCH = DataKey("match", float, Scope.CANDIDATE)


@pytest.fixture
def endpoints() -> Endpoints:
    members = tuple(Endpoint(f"default/e{n}", "10.0.0.1", 8000 + n) for n in range(4))
    return Endpoints(Generation(members, {}, {}, lambda: 0.0))


def test_value_is_shared_and_its_default_stands_in():
    state = CycleState()

    assert state.get(SESSION) == "none"
    state.put(SESSION, "abc")
    assert state.get(SESSION) == "abc"


def test_candidate_column_follows_a_narrowed_view(endpoints):
    state = CycleState()
    state.put_column(MATCH, endpoints, np.array([1.0, 2.0, 3.0, 4.0]))

    assert state.column(MATCH, endpoints.take([3, 0])).tolist() == [4.0, 1.0]


def test_column_of_some_endpoints_is_missing_for_others(endpoints):
    state = CycleState()
    state.put_column(MATCH, endpoints.take([2, 1]), np.array([20.0, 10.0]))

    assert state.column(MATCH, endpoints).tolist() == pytest.approx([np.nan, 10.0, 20.0, np.nan], nan_ok=True)


def test_candidate_column_says_nothing_of_another_generation(endpoints):
    state = CycleState()
    state.put_column(MATCH, endpoints, np.ones(4))
    other = Endpoints(Generation(endpoints.members, {}, {}, lambda: 0.0))

    assert np.isnan(state.column(MATCH, other)).all()


def test_candidate_column_of_the_wrong_length_is_refused(endpoints):
    with pytest.raises(ValueError, match=r"'match' needs one number for each of 4 endpoints, not shape \(3,\)"):
        CycleState().put_column(MATCH, endpoints, np.ones(3))


def test_scope_of_the_key_decides_where_it_lives(endpoints):
    with pytest.raises(UnknownKey, match="'match' has scope 'candidate', not 'request'"):
        CycleState().get(MATCH)
    with pytest.raises(UnknownKey, match="'session' has scope 'request', not 'candidate'"):
        CycleState().column(SESSION, endpoints)


def test_private_scratch_belongs_to_the_instance_that_runs():
    access = Access(AccessScope("a", frozenset()))
    state = CycleState(access)

    state.private["seen"] = 1
    access.scope = AccessScope("b", frozenset())
    assert state.private == {}
    access.scope = AccessScope("a", frozenset())
    assert state.private == {"seen": 1}


def test_profile_scratch_is_empty_at_each_run():
    state = CycleState(Access(AccessScope("a", frozenset())))
    state.profile["n"] = 1
    state.private["n"] = 1

    state._begin_profile_run()

    assert state.profile == {}
    assert state.private == {"n": 1}


def test_undeclared_write_is_a_fault_under_test():
    state = CycleState(Access(AccessScope("a", frozenset({"session"}))))

    assert state.get(SESSION) == "none"
    with pytest.raises(UndeclaredAccess, match="instance 'a' writes 'session' without declaring it in `produces`"):
        state.put(SESSION, "x")


def test_view_for_another_access_shares_the_data(endpoints):
    state = CycleState()
    state.put(SESSION, "abc")
    other = state._accessed_by(Access(AccessScope("a", frozenset({"session"}))))

    assert other.get(SESSION) == "abc"
    with pytest.raises(UndeclaredAccess):
        other.column(MATCH, endpoints)


def test_arrays_are_not_shared_between_readers(endpoints):
    state, given = CycleState(), np.array([1.0, 2.0, 3.0, 4.0])
    state.put_column(MATCH, endpoints, given)
    given.shape = (2, 2)
    given[:] = 99.0
    read = state.column(MATCH, endpoints)
    read[:] = 98.0
    read.shape = (2, 2)

    assert state.column(MATCH, endpoints).tolist() == [1.0, 2.0, 3.0, 4.0]
    assert state.column(MATCH, endpoints.take([3, 0])).tolist() == [4.0, 1.0]


class _Touchy(np.ndarray):
    def __array_ufunc__(self, *arguments, **keywords):
        raise RuntimeError("5")

    def __getitem__(self, where):
        raise RuntimeError("6")


def test_a_column_has_a_class_of_its_own_for_no_reader(endpoints):
    state = CycleState()
    state.put_column(MATCH, endpoints, np.ones(4).view(_Touchy))

    assert type(state.column(MATCH, endpoints)) is np.ndarray
    assert (state.column(MATCH, endpoints.take([1])) + 1.0).tolist() == [2.0]
    with pytest.raises(TypeError):
        state.put_column(MATCH, endpoints, np.full(4, object(), dtype=object))
