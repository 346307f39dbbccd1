"""The host without sockets: real planning and scheduling, and every plugin's say."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, DataKey, DataProducer, Filter, Scope, Scorer
from endpick.testing import Host
from endpick.testing.host import HostRefused, host_of

HEAD = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"
LENGTH = DataKey("test.example/length", float, Scope.CANDIDATE, doc="Length of the prompt.")


def config(*entries: str, refs: str) -> str:
    plugins = "".join(f"  - {entry}\n" for entry in entries)
    return f"{HEAD}plugins:\n{plugins}schedulingProfiles:\n  - name: default\n    plugins: [{refs}]\n"


TWO_SCORERS = config(
    "type: decode-filter",
    "type: queue-scorer",
    "type: kv-cache-utilization-scorer",
    refs="{pluginRef: decode-filter}, {pluginRef: queue-scorer, weight: 2}, {pluginRef: kv-cache-utilization-scorer, weight: 0.5}",
)


@pytest.fixture
def open_host():
    hosts: list[Host] = []

    def make(*arguments, **keywords):
        hosts.append(host_of(*arguments, **keywords))
        return hosts[-1]

    yield make
    for host in hosts:
        host.close()


def test_every_plugin_has_its_say(open_host):
    host = open_host(TWO_SCORERS)
    host.put({WAITING_QUEUE_SIZE: [4, 0, 2, 0], KV_CACHE_USAGE: [0.0, 0.5, 0.25, 0.0]}, [{}, {}, {}, {"llm-d.ai/role": "prefill"}])

    decision = host.ask()

    run = decision.run("default")
    assert decision.destinations == ("10.0.0.2:8000",)
    assert [(one.instance, one.dropped) for one in run.filters] == [("decode-filter", ("default/e3",))]
    assert run.candidates == ("default/e0", "default/e1", "default/e2")
    assert [(one.instance, one.weight, one.answered) for one in run.scorers] == [
        ("queue-scorer", 2.0, (0.0, 1.0, 0.5)),
        ("kv-cache-utilization-scorer", 0.5, (1.0, 0.5, 0.75)),
    ]
    assert run.scorers[1].weighted == (0.5, 0.25, 0.375)
    assert run.totals == (0.5, 2.25, 1.375)
    assert (run.picker, run.picked, run.failure) == ("max-score-picker", ("default/e1",), "")


def test_totals_are_the_sums_of_what_is_shown(open_host):
    host = open_host(TWO_SCORERS)
    host.put({WAITING_QUEUE_SIZE: [4, None, 2], KV_CACHE_USAGE: [None, 0.5, 0.25]})

    run = host.ask().run("default")

    np.testing.assert_allclose(np.sum([scorer.weighted for scorer in run.scorers], axis=0), run.totals)


class TooGood(Scorer):
    """Twice as good as possible."""

    def score(self, request, endpoints, state):
        return np.full(len(endpoints), 2.0)


class Failing(Scorer):
    """Never works."""

    def score(self, request, endpoints, state):
        raise RuntimeError("not today")


class Misshapen(Scorer):
    """One score for every endpoint."""

    def score(self, request, endpoints, state):
        return np.ones(1)


class Undefined(Scorer):
    """No number."""

    def score(self, request, endpoints, state):
        return np.array([np.nan] * len(endpoints))


class Peeking(Scorer):
    """Reads what it did not declare."""

    def score(self, request, endpoints, state):
        return np.nan_to_num(endpoints[KV_CACHE_USAGE])


@pytest.mark.parametrize(
    ("plugin", "answered", "weighted", "problem"),
    [
        (TooGood, (2.0, 2.0), (1.0, 1.0), ""),
        (Failing, (), (0.0, 0.0), "RuntimeError: not today"),
        (Misshapen, (), (0.0, 0.0), "answered scores of shape (1,) for 2 endpoints"),
        (Undefined, pytest.approx((np.nan, np.nan), nan_ok=True), (0.0, 0.0), "answered a score that is not a finite number"),
    ],
)
def test_faulty_scorer_shows_answer_and_weighted_score(open_host, plugin, answered, weighted, problem):
    host = open_host(config("type: test.faulty", refs="{pluginRef: test.faulty}"), {"test.faulty": plugin})
    host.put(2)

    decision = host.ask()

    (scorer,) = decision.run("default").scorers
    assert scorer.answered == answered
    assert (scorer.weighted, scorer.problem) == (weighted, problem)
    assert [fault.problem for fault in decision.faults] == ([problem] if problem else [])
    assert decision.status is None


def test_reading_an_undeclared_key_is_a_fault(open_host):
    host = open_host(config("type: test.peeking", refs="{pluginRef: test.peeking}"), {"test.peeking": Peeking})
    host.put({KV_CACHE_USAGE: [0.5]})

    (fault,) = host.ask().faults

    assert (fault.instance, fault.problem) == ("test.peeking", "data key 'kv-cache-usage' is not declared")


def test_filters_behind_one_that_keeps_no_endpoint_have_no_say(open_host):
    host = open_host(
        config("type: prefill-filter", "type: decode-filter", refs="{pluginRef: prefill-filter}, {pluginRef: decode-filter}"),
    )
    host.put(2)

    decision = host.ask()

    run = decision.run("default")
    assert (decision.status, decision.destinations) == (429, ())
    assert [one.instance for one in run.filters] == ["prefill-filter"]
    assert (run.candidates, run.totals, run.picked) == ((), (), ())
    assert run.failure == "no endpoints available for the given request"


class Broken(Filter):
    """Never works."""

    def filter(self, request, endpoints, state):
        raise RuntimeError("not today")


def test_a_filter_that_fails_is_shown_as_the_reason(open_host):
    host = open_host(config("type: test.broken", refs="{pluginRef: test.broken}"), {"test.broken": Broken})
    host.put(2)

    decision = host.ask()

    (filtered,) = decision.run("default").filters
    assert (filtered.problem, filtered.dropped) == ("RuntimeError: not today", ())
    assert decision.status == 500


def test_explained_and_plain_decisions_are_the_same(open_host):
    from endpick.api.access import Access
    from endpick.api.state import CycleState
    from endpick.engine.building import compile_plan
    from endpick.host.planning.plan import Plan
    from endpick.host.telemetry import NullTelemetry
    from endpick.scheduling.trace import Tracer
    from endpick.testing.factories import make_request

    host = open_host(TWO_SCORERS)
    host.put({WAITING_QUEUE_SIZE: [4, 1, 2], KV_CACHE_USAGE: [0.0, 0.5, 0.25]})
    plan: Plan = host.plan
    plain = compile_plan(plan, host.instances, NullTelemetry()).scheduler
    access, notes = Access(), []
    listening = Tracer(plain, lambda: 0.0).into(notes)

    results = [one.schedule(make_request(), host.table.view(access), CycleState(access), access) for one in (plain, listening)]

    assert results[0].destinations == results[1].destinations
    np.testing.assert_array_equal(results[0].runs["default"].scored.scores, results[1].runs["default"].scored.scores)
    assert [note.profile for note in notes] == ["default"]
    assert all(type(profile).__name__ == "Profile" for profile in plain.profiles.values())


def test_skipped_instance_is_named_in_the_explanation(open_host):
    host = open_host(TWO_SCORERS)
    host.put({WAITING_QUEUE_SIZE: [4, 1, 2], KV_CACHE_USAGE: [0.0, 0.5, 0.25]})
    breaker = host.instances["queue-scorer"].breaker
    for _ in range(3):
        breaker.took(5.0)

    told = {each.instance: each.problem for each in host.ask().run("default").scorers}
    reason = "it is left out because 3 calls held the event loop for "
    assert told["queue-scorer"].startswith(reason), told
    assert [problem for name, problem in told.items() if name != "queue-scorer"] == [""]


def test_the_same_seed_gives_the_same_draws(open_host):
    text = config("type: random-picker", refs="{pluginRef: random-picker}")
    picks = []
    for seed in (1, 1, 2):
        host = open_host(text, seed=seed)
        host.put(50)
        picks.append([host.ask().destinations for _ in range(10)])

    assert picks[0] == picks[1] != picks[2]


def test_invalid_configuration_is_refused_as_by_validate():
    with pytest.raises(HostRefused, match=r"error\[E0301\](.|\n)*no installed plugin offers the type 'queue-scorre'"):
        host_of(config("type: queue-scorre", refs="{pluginRef: queue-scorre}"))


class Waiting(DataProducer):
    """Waits, on a loop that `start` knows too."""

    produces = (LENGTH,)
    started = stopped = 0

    async def start(self):
        type(self).started += 1
        self.loop = asyncio.get_running_loop()

    async def stop(self):
        type(self).stopped += 1

    async def produce(self, request, endpoints, state):
        await asyncio.sleep(0)
        assert asyncio.get_running_loop() is self.loop
        state.put_column(LENGTH, endpoints, np.full(len(endpoints), float(len(request.prompt.texts[0]))))


class ByLength(Scorer):
    """Reads what the producer left."""

    consumes = (LENGTH,)

    def score(self, request, endpoints, state):
        return state.column(LENGTH, endpoints) / 1000


def test_plugins_that_wait_are_started_awaited_and_stopped_once():
    text = config("type: test.waiting", "type: test.by-length", refs="{pluginRef: test.by-length}")
    with host_of(text, {"test.waiting": Waiting, "test.by-length": ByLength}) as host:
        host.put(1)
        decisions = [host.ask("x" * 100), host.ask("y" * 200)]
        before_closing = (Waiting.started, Waiting.stopped)
    host.close()

    assert all(not decision.faults for decision in decisions)
    first, second = (decision.run("default").scorers[0].answered[0] for decision in decisions)
    assert 0 < first < second
    assert before_closing == (1, 0)
    assert (Waiting.started, Waiting.stopped) == (1, 1)


def test_without_configuration_the_built_in_default_decides(open_host):
    host = open_host()
    host.put({WAITING_QUEUE_SIZE: [5, 0], KV_CACHE_USAGE: [0.9, 0.1]})

    assert host.ask().destinations == ("10.0.0.2:8000",)


def test_requests_leave_nothing_in_flight(open_host):
    text = config("type: active-request-scorer", refs="{pluginRef: active-request-scorer}")
    host = open_host(text)
    host.put(1)

    for _ in range(3):
        assert host.ask().run("default").scorers[0].answered == (1.0,)


OBJECTIVES = "objectives:\n  - {name: batch, priority: -1}\n  - {name: chat, priority: 5}\n"


def test_sheddable_requests_are_refused_when_the_pool_is_full(open_host):
    host = open_host(HEAD + OBJECTIVES + "plugins:\n  - {type: utilization-detector}\n  - {type: queue-scorer}\n")
    host.put({WAITING_QUEUE_SIZE: [100, 100], KV_CACHE_USAGE: [1.0, 1.0]})

    assert host.ask(headers={"x-llm-d-inference-objective": "batch"}).status == 429
    for objective in ("chat", "unknown", ""):
        assert host.ask(headers={"x-llm-d-inference-objective": objective}).destinations

    host.put({WAITING_QUEUE_SIZE: [0, 0], KV_CACHE_USAGE: [0.0, 0.0]})
    assert host.ask(headers={"x-llm-d-inference-objective": "batch"}).destinations
