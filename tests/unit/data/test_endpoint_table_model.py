"""The endpoint table against the simplest thing it could be: a dict of dicts."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from endpick.api import DataKey, Endpoint, Endpoints
from endpick.data.table import EndpointTable

GREATEST = 1e300
"""What is beyond is no figure of a server, and overflows where plugins calculate with it: it counts as not reported."""
NUMBER = DataKey("model/number", float)
OBJECT = DataKey("model/object", str)
NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
HOSTS = st.sampled_from(["10.0.0.1", "10.0.0.2"])
ZONES = st.sampled_from(["x", "y"])
ENDPOINTS = st.builds(lambda name, host, zone: Endpoint(name, host, 80, {"zone": zone}), NAMES, HOSTS, ZONES)


class TableAgainstDict(RuleBasedStateMachine):
    """Any order of joins, leaves, replacements and writes; old views must not notice what came after them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.table = EndpointTable(lambda: self.now, (NUMBER, OBJECT))
        self.members: dict[str, Endpoint] = {}
        self.values: dict[tuple[str, str], tuple[object, float]] = {}
        self.removed: list[str] = []
        self.expected_removed: list[str] = []
        self.table.on_removed.append(self.removed.append)
        self.frozen: list[tuple[Endpoints, list[str], np.ndarray]] = []

    def become(self, members: dict[str, Endpoint]) -> None:
        void = {name for name, old in self.members.items() if name not in members or members[name].address != old.address}
        self.expected_removed += sorted(void)
        if [*members] != [*self.members] or void or any(name not in self.members for name in members):
            view = self.table.view()
            self.frozen.append((view, [each.name for each in view], view[NUMBER].copy()))
        self.values = {(name, key): value for (name, key), value in self.values.items() if name not in void}
        self.members = members

    @rule(endpoint=ENDPOINTS)
    def upsert(self, endpoint: Endpoint) -> None:
        self.become({**self.members, endpoint.name: endpoint})
        self.table.upsert(endpoint)

    @rule(name=NAMES)
    def remove(self, name: str) -> None:
        self.become({each: endpoint for each, endpoint in self.members.items() if each != name})
        self.table.remove(name)

    @rule(endpoints=st.lists(ENDPOINTS, max_size=6))
    def replace_all(self, endpoints: list[Endpoint]) -> None:
        self.become({endpoint.name: endpoint for endpoint in endpoints})
        self.table.replace_all(endpoints)

    @rule(endpoint=ENDPOINTS, number=st.floats(allow_nan=False))
    def write_number(self, endpoint: Endpoint, number: float) -> None:
        self.write(NUMBER, endpoint, number, math.nan if abs(number) > GREATEST else number)

    @rule(endpoint=ENDPOINTS, text=st.text(max_size=3))
    def write_object(self, endpoint: Endpoint, text: str) -> None:
        self.write(OBJECT, endpoint, text, text)

    def write(self, key, endpoint, value, kept) -> None:
        self.table.writer(None, endpoint).set(key, value)
        if endpoint.name in self.members and self.members[endpoint.name].address == endpoint.address:
            self.values[endpoint.name, key.name] = (kept, self.now)

    @rule(seconds=st.integers(1, 100))
    def wait(self, seconds: int) -> None:
        self.now += seconds

    @rule()
    def a_request_begins(self) -> None:
        assert self.table.view()._generation is self.table.generation

    @invariant()
    def rows_are_the_members(self) -> None:
        shown = [(each.name, each.address, dict(each.labels)) for each in self.table.view()]
        assert shown == [(each.name, each.address, dict(each.labels)) for each in self.members.values()]
        assert [self.table.generation.row_of[name] for name in self.members] == list(range(len(self.members)))

    @invariant()
    def values_are_the_last_written(self) -> None:
        view = self.table.view()
        for row, name in enumerate(self.members):
            number, at = self.values.get((name, NUMBER.name), (math.nan, -math.inf))
            np.testing.assert_equal(view[NUMBER][row], number)
            assert view.age(NUMBER)[row] == self.now - at
            text, at = self.values.get((name, OBJECT.name), (None, -math.inf))
            assert view.objects(OBJECT)[row] == text
            assert view.age(OBJECT)[row] == self.now - at

    @invariant()
    def learnt_state_was_voided_for_exactly_those_who_went(self) -> None:
        assert sorted(self.removed) == sorted(self.expected_removed)

    @invariant()
    def old_views_stand_still(self) -> None:
        for view, names, numbers in self.frozen:
            assert [each.name for each in view] == names
            np.testing.assert_array_equal(view[NUMBER], numbers)


TestEndpointTableAgainstDict = TableAgainstDict.TestCase
TestEndpointTableAgainstDict.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
