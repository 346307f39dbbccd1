"""Session affinity: how sessions are bound to endpoints."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import DataKey, InferenceRequest, PluginContext, ResponseHead, Scope
from endpick.api.access import AccessScope
from endpick.api.keys import AGENT_IDENTITY, SESSION_ID
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState
from endpick.requests.headers import HeadersForUpstream
from endpick_builtin.bindings import Bindings
from endpick_builtin.pairs.sessions import SessionAffinityFilter, SessionAffinityScorer, decoded, encoded
from endpick_builtin.recency import LONGEST_ID
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


def test_session_stays_on_the_picked_endpoint():
    session = Session(**BY_ID)

    assert session.serve(by_id("a"), picked=2) == (["e0", "e1", "e2"], None)
    assert session.kept(by_id("a")) == ["e2"]
    assert session.kept(by_id("b")) == ["e0", "e1", "e2"]
    assert session.kept(InferenceRequest(id="r")) == ["e0", "e1", "e2"]


def test_binding_stays_while_its_endpoint_is_a_candidate():
    session = Session(**BY_ID)
    session.serve(by_id("a"), picked=2)
    session.serve(by_id("a"), picked=0)

    assert session.kept(by_id("a")) == ["e2"]


def test_binding_moves_if_its_endpoint_is_no_candidate():
    session = Session(**BY_ID)
    session.serve(by_id("a"), picked=2)
    session.serve(by_id("a"), picked=0, candidates=[0, 1])

    assert session.kept(by_id("a")) == ["e0"]


def test_named_profile_binds_the_session():
    session = Session(profileName="prefill", **BY_ID)
    session.serve(by_id("a"), picked=0, others={"prefill": 1})
    session.serve(by_id("b"), picked=0)

    assert session.kept(by_id("a")) == ["e1"]
    assert session.kept(by_id("b")) == ["e0", "e1", "e2"], "the profile did not run"


def test_response_header_names_the_endpoint():
    request = InferenceRequest(id="r")

    assert Session().serve(request, picked=1)[1] == {"x-session-token": encoded("pool/e1")}
    assert Session(encodedEndpointHeaderConfig={"header": "X-Mine"}).serve(request, picked=1)[1] == {"x-mine": encoded("pool/e1")}
    assert Session(profileName="prefill").serve(request, picked=1, others={"prefill": 2})[1] == {"x-session-token": encoded("pool/e2")}
    assert Session(profileName="prefill").serve(request, picked=1)[1] is None


def test_session_sources_are_tried_in_order():
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


def test_attribute_source_reads_request_text():
    config = {"sources": [{"attribute": "acme.example/user"}]}
    (key,) = instance(SessionAffinityScorer, strategy="session_id", sessionIdConfig=config).subscriptions.consumes_optional

    assert key == DataKey("acme.example/user", str, Scope.REQUEST)
    assert (key.type, key.scope) == (str, Scope.REQUEST)


def bindings(most=100, now=None):
    return Bindings(300.0, 10.0, most, PluginContext(clock=lambda: now[0]))


def test_unseen_session_expires():
    now = [0.0]
    known = bindings(now=now)
    known.bind("a", "pool/e0")
    now[0] = 200.0
    known.bind("b", "pool/e1")
    now[0] = 300.0
    assert known.name_of("a") == "pool/e0"
    now[0] = 300.5
    assert known.name_of("a") is None
    assert len(known) == 2, "nothing has been swept yet"

    known.bind("b", "pool/e1")

    assert len(known) == 1
    now[0] = 600.0
    assert known.name_of("b") == "pool/e1", "it was seen at 300.5"


def test_least_recent_session_is_displaced():
    known = bindings(most=2, now=[0.0])
    displaced = [known.bind(session, f"pool/{session}") for session in "abac"]

    assert [known.name_of(session) for session in "abc"] == ["pool/a", None, "pool/c"]
    assert displaced == [0, 0, 0, 1]


def test_long_session_ids_are_hashed():
    known = bindings(now=[0.0])
    known.bind("x" * 100_000, "pool/e0")
    known.bind("x" * 100_000 + "y", "pool/e1")

    assert max(map(len, known._kept)) <= LONGEST_ID
    assert known.name_of("x" * 100_000) == "pool/e0"
    assert known.name_of("x" * 100_001) is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.floats(0.0, 400.0)), max_size=40), st.integers(1, 4))
def test_bindings_match_a_simple_model(steps, most):
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
            assert known.name_of(other) == (endpoint if now[0] - last <= 300.0 else None)


def test_session_metrics():
    built = instance(SessionAffinityFilter, sessionIdConfig={"maxSessions": 1}, **BY_ID)
    session = Session.__new__(Session)
    session.plugin, session.whole = built.plugin, pool(size=3).view(access())
    for name in "ab":
        session.serve(by_id(name), picked=0)

    assert built.registry.get_sample_value("endpick_session_bindings") == 1
    assert built.registry.get_sample_value("endpick_session_bindings_displaced_total") == 1


@pytest.mark.parametrize("name", ["pool/e0", "ns/ü", "/", ""])
def test_token_round_trip(name):
    assert decoded(encoded(name)) == name


@given(st.text(max_size=20))
def test_any_text_is_accepted_as_a_token(text):
    assert decoded(text) is None or isinstance(decoded(text), str)


def test_session_id_of_wide_characters_is_hashed():
    bindings = Bindings(300.0, 10.0, 10, PluginContext(clock=lambda: 0.0))
    session = "\U0001f600" * LONGEST_ID
    bindings.bind(session, "e1")
    assert bindings.name_of(session) == "e1"
    assert bindings.name_of("\U0001f600" * (LONGEST_ID - 1)) is None
    assert max(len(key.encode()) for key in bindings._kept) <= LONGEST_ID


def test_expired_sessions_are_removed_by_the_next_sweep():
    now = [0.0]
    known = bindings(now=now)
    for number in range(20):
        known.bind(f"{number}", "e1")
    now[0] = 1000.0
    known.bind("new", "e1")
    assert len(known) == 1


def test_of_two_pickers_bindings_the_later_one_counts():
    now = 200.0
    bindings = Bindings(1000.0, 1000.0, 10, PluginContext(clock=lambda: now))
    bindings.merge({"late": ("new", 50.0), "same": ("b", 50.0)})
    bindings.merge({"late": ("old", 100.0), "same": ("a", 49.5), "only": ("old", 100.0)})
    assert bindings.ages(bindings.keys()) == {"late": ("new", 50.0), "same": ("b", 50.0), "only": ("old", 100.0)}
    bindings.merge({"late": ("newer", 10.0)})
    assert bindings.ages(["late"]) == {"late": ("newer", 10.0)}
