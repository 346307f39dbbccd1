"""How sessions are bound to endpoints, and for how long."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import AGENT_IDENTITY, SESSION_ID, DataKey, InferenceRequest, ResponseHead, Scope
from endpick.api.access import AccessScope
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.requests.intake import HeadersForUpstream
from endpick_builtin.pairs.session_bindings import SessionBindings
from endpick_builtin.pairs.sessions import SessionAffinityFilter, SessionAffinityScorer, decoded, encoded
from endpick_builtin.recency import FORGOTTEN_AT_ONCE, LONGEST_ID
from unit.scheduling.workbench import access, instance, names, pool


class Session:
    """One instance, and requests that are picked for."""

    def __init__(self, plugin=SessionAffinityFilter, size=3, **parameters):
        self.plugin = instance(plugin, **parameters).plugin
        self.now = 0.0
        self.plugin._bindings._clock = lambda: self.now
        self.whole = pool(size=size).view(access())

    def kept(self, request, candidates=None, state=None):
        endpoints = self.whole if candidates is None else self.whole.take(candidates)
        return names(self.plugin.filter(request, endpoints, state or CycleState(access())))

    def serve(self, request, picked, candidates=None, others=None):
        """The names that were kept, and the response headers that the plugin adds."""
        state = CycleState(access())
        kept = self.kept(request, candidates, state)
        runs = {
            profile: ProfileRunResult(profile, self.whole.take([one])) for profile, one in {"default": picked, **(others or {})}.items()
        }
        result = SchedulingResult("default", runs, (self.whole.members[picked].address,))
        self.plugin.before_request(request, result, HeadersForUpstream({}), state)
        head = ResponseHead(200, {}, self.whole.members[picked])
        return kept, self.plugin.response_started(request, head, state)


def by_id(session):
    return InferenceRequest(id="r", headers={"x-session-id": session})


BY_ID = {"strategy": "session_id"}


def test_a_session_is_bound_to_what_was_picked_and_kept_there():
    session = Session(**BY_ID)

    assert session.serve(by_id("a"), picked=2) == (["e0", "e1", "e2"], None)
    assert session.kept(by_id("a")) == ["e2"]
    assert session.kept(by_id("b")) == ["e0", "e1", "e2"]
    assert session.kept(InferenceRequest(id="r")) == ["e0", "e1", "e2"]


def test_a_binding_stays_while_its_endpoint_is_a_candidate_whatever_is_picked():
    session = Session(**BY_ID)
    session.serve(by_id("a"), picked=2)
    session.serve(by_id("a"), picked=0)

    assert session.kept(by_id("a")) == ["e2"]


def test_a_binding_is_replaced_when_its_endpoint_is_no_candidate():
    session = Session(**BY_ID)
    session.serve(by_id("a"), picked=2)
    session.serve(by_id("a"), picked=0, candidates=[0, 1])

    assert session.kept(by_id("a")) == ["e0"]


def test_the_profile_that_is_named_binds():
    session = Session(profileName="prefill", **BY_ID)
    session.serve(by_id("a"), picked=0, others={"prefill": 1})
    session.serve(by_id("b"), picked=0)

    assert session.kept(by_id("a")) == ["e1"]
    assert session.kept(by_id("b")) == ["e0", "e1", "e2"], "the profile did not run"


def test_the_response_names_the_endpoint_that_served():
    request = InferenceRequest(id="r")

    assert Session().serve(request, picked=1)[1] == {"x-session-token": encoded("pool/e1")}
    assert Session(encodedEndpointHeaderConfig={"header": "X-Mine"}).serve(request, picked=1)[1] == {"x-mine": encoded("pool/e1")}
    assert Session(profileName="prefill").serve(request, picked=1, others={"prefill": 2})[1] == {"x-session-token": encoded("pool/e2")}
    assert Session(profileName="prefill").serve(request, picked=1)[1] is None


def test_sources_are_tried_in_their_order():
    sources = [{"header": "X-User"}, {"attribute": "SessionIDDataKey", "producer": "mine"}, {"attribute": "agent-identity", "producer": ""}]
    built = instance(SessionAffinityScorer, strategy="session_id", sessionIdConfig={"sources": sources})
    mine = SESSION_ID.from_producer("mine")
    assert built.subscriptions.consumes_optional == (mine, AGENT_IDENTITY)

    def session_of(headers, **written):
        shared = access()
        state = CycleState(shared)
        shared.scope = AccessScope("mine", frozenset(), frozenset({SESSION_ID.name, AGENT_IDENTITY.name}))
        for key, value in written.items():
            state.put(SESSION_ID if key == "session" else AGENT_IDENTITY, value)
        shared.scope = built.scope
        return built.plugin._session(InferenceRequest(id="r", headers=headers), state)

    assert session_of({"x-user": "u"}, session="s", agent="a") == "u"
    assert session_of({"x-user": ""}, session="s", agent="a") == "s"
    assert session_of({}, agent="a") == "a"
    assert session_of({}) == ""


def test_an_attribute_of_any_name_is_a_text_of_the_request():
    config = {"sources": [{"attribute": "acme.example/user"}]}
    (key,) = instance(SessionAffinityScorer, strategy="session_id", sessionIdConfig=config).subscriptions.consumes_optional

    assert key == DataKey("acme.example/user", str, Scope.REQUEST)
    assert (key.type, key.scope) == (str, Scope.REQUEST)


def bindings(most=100, now=None):
    return SessionBindings(300.0, 10.0, most, lambda: now[0])


def test_a_session_that_is_not_seen_is_forgotten():
    now = [0.0]
    known = bindings(now=now)
    known.bind("a", "pool/e0")
    now[0] = 200.0
    known.bind("b", "pool/e1")
    now[0] = 300.0
    assert known.endpoint_of("a") == "pool/e0"
    now[0] = 300.5
    assert known.endpoint_of("a") is None
    assert len(known) == 2, "nothing has been swept yet"

    known.bind("b", "pool/e1")

    assert len(known) == 1
    now[0] = 600.0
    assert known.endpoint_of("b") == "pool/e1", "it was seen at 300.5"


def test_the_session_not_seen_for_longest_gives_way():
    known = bindings(most=2, now=[0.0])
    for session in "abac":
        known.bind(session, f"pool/{session}")

    assert [known.endpoint_of(session) for session in "abc"] == ["pool/a", None, "pool/c"]
    assert known.displaced == 1


def test_long_ids_take_no_more_memory_than_short_ones_and_stay_apart():
    known = bindings(now=[0.0])
    known.bind("x" * 100_000, "pool/e0")
    known.bind("x" * 100_000 + "y", "pool/e1")

    assert max(map(len, known._bindings)) <= LONGEST_ID
    assert known.endpoint_of("x" * 100_000) == "pool/e0"
    assert known.endpoint_of("x" * 100_001) is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0.0, 400.0)), max_size=40), st.integers(1, 4))
def test_bindings_hold_what_a_plain_record_of_them_holds(steps, most):
    now, seen = [0.0], {}
    known = bindings(most, now)
    for number, (session, wait) in enumerate(steps):
        now[0] += wait
        known.bind(session, f"pool/e{number}")
        seen.pop(session, None)
        seen[session] = (now[0], f"pool/e{number}")
        latest = dict(list(seen.items())[-most:])

        assert len(known) <= most
        for other in "abcdef":
            last, endpoint = latest.get(other, (-np.inf, None))
            assert known.endpoint_of(other) == (endpoint if now[0] - last <= 300.0 else None)


def test_too_many_sessions_are_told_once(caplog):
    session = Session(sessionIdConfig={"maxSessions": 1}, **BY_ID)
    with caplog.at_level(logging.WARNING):
        for name in "abc":
            session.serve(by_id(name), picked=0)

    [record] = caplog.records
    assert "maxSessions" in record.getMessage()


def test_the_metrics_say_how_many_sessions_there_are():
    built = instance(SessionAffinityFilter, sessionIdConfig={"maxSessions": 1}, **BY_ID)
    for name in "ab":
        built.plugin._bindings.bind(name, "pool/e0")

    assert built.registry.get_sample_value("endpick_session_bindings") == 1
    assert built.registry.get_sample_value("endpick_session_bindings_displaced_total") == 1


@pytest.mark.parametrize("name", ["pool/e0", "ns/ü", "/", ""])
def test_a_token_says_which_endpoint_it_is_of(name):
    assert decoded(encoded(name)) == name


@given(st.text(max_size=20))
def test_any_text_may_come_as_a_token(text):
    assert decoded(text) is None or isinstance(decoded(text), str)


def test_a_session_of_wide_characters_is_kept_as_short_as_others():
    bindings = SessionBindings(300.0, 10.0, 10, lambda: 0.0)
    session = "\U0001f600" * LONGEST_ID
    bindings.bind(session, "e1")
    assert bindings.endpoint_of(session) == "e1"
    assert bindings.endpoint_of("\U0001f600" * (LONGEST_ID - 1)) is None
    assert max(len(key.encode()) for key in bindings._bindings) <= LONGEST_ID


def test_sessions_that_are_over_at_one_moment_are_forgotten_in_parts():
    now = 0.0
    bindings = SessionBindings(300.0, 10.0, 100_000, lambda: now)
    for number in range(3 * FORGOTTEN_AT_ONCE):
        bindings.bind(f"{number}", "e1")
    now = 1000.0
    left = []
    for number in range(4):
        bindings.bind(f"new {number}", "e1")
        left.append(len(bindings))
    assert left == [2 * FORGOTTEN_AT_ONCE + 1, FORGOTTEN_AT_ONCE + 2, 3, 4]


def test_sessions_count_as_what_was_learnt_and_half_of_them_is_forgotten_in_parts():
    session = Session(**BY_ID)
    for number in range(4 * FORGOTTEN_AT_ONCE):
        session.plugin._bindings.bind(f"{number}", "pool/e1")
    before = session.plugin.learnt_bytes()
    assert before > 4 * FORGOTTEN_AT_ONCE * 200
    parts = 1
    while session.plugin.forget_some():
        parts += 1
    assert parts > 1
    assert session.plugin.learnt_bytes() == before // 2
    assert session.kept(by_id("0")) == ["e0", "e1", "e2"]
    assert session.kept(by_id(f"{4 * FORGOTTEN_AT_ONCE - 1}")) == ["e1"]
