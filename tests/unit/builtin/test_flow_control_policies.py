"""The built-in policies of flow control: golden vectors and properties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import CycleState, Endpoint, PluginContext, ResponseEnd, TerminationCause, Usage
from endpick.api.flow_control import DispatchedRequest
from endpick.api.metrics import MAX_LABEL_BYTES, MAX_LABEL_VALUES
from endpick.testing import FakeBand, make_request, make_waiting
from endpick_builtin.flow_control import (
    GlobalStrictFairness,
    HoldbackParameters,
    PriorityHoldback,
    RoundRobinFairness,
    SoftReflectiveCeiling,
)
from endpick_builtin.program_aware import ProgramAwareFairness, ProgramAwareParameters, jain_index
from endpick_builtin.recency import LONGEST_ID
from unit.builtin.vectors import built, vectors
from unit.scheduling.workbench import instance

INT64 = st.integers(-(2**63), 2**63 - 1)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def waiting_of(text: str, arrival: int):
    flow, _, rest = text.partition("@")
    since, _, key = rest.partition("#")
    return make_waiting(flow, key=(float(key),) if key else (), arrival=arrival, enqueued_at=float(since or 0))


def answer(policy, program: str, prompt: int, completion: int) -> None:
    end = ResponseEnd(TerminationCause.NATURAL, 200, Usage(prompt, completion), 1, 1.0, 1.0)
    policy.response_ended(make_request(fairness_id=program), end, CycleState())


def play(case: dict, policy, band: FakeBand, clock: Clock) -> None:
    """Run the steps of a case."""
    for arrival, text in enumerate(case["waits"]):
        band.add(waiting_of(text, arrival))
    for number, step in enumerate(case.get("then", ())):
        ((deed, what),) = step.items()
        match deed:
            case "add":
                band.add(waiting_of(what, 100 + number))
            case "leave":
                band.drop_head(band.flow(what))
            case "serve":
                assert band.serve().request.fairness_id == what
            case "send" | "finish":
                request, state = make_request(fairness_id=what), CycleState()
                policy.before_request(request, None, None, state)
                if deed == "finish":
                    policy.response_ended(request, ResponseEnd(TerminationCause.NATURAL, 200, None, 1, 1.0, 1.0), state)
            case "pass":
                clock.now += what
            case "used":
                for program, (prompt, completion) in what.items():
                    answer(policy, program, prompt, completion)


@vectors("flow_control")
def test_golden_vectors(vector, monkeypatch):
    clock, policy = Clock(), built(vector).plugin
    if "serves" in vector:
        monkeypatch.setattr(policy, "context", PluginContext(clock=clock))
        band = FakeBand(policy)
        play(vector, policy, band, clock)
        served = []
        while (let_go := band.serve()) is not None:
            served.append(let_go.request.fairness_id)
        assert served == vector["serves"]
        assert not band.flows
    elif "calls" in vector:
        for call in vector["calls"]:
            assert list(policy.ceilings(call["saturation"], call["priorities"])) == pytest.approx(call["ceilings"])
    elif "waits" in vector:
        made = [waiting_from(row, number) for number, row in enumerate(vector["waits"])]
        keyed = sorted(range(len(made)), key=lambda place: (policy.sort_key(made[place]), made[place].enqueued_at, place))
        assert keyed == vector["order"]
    else:
        flying = [
            DispatchedRequest(make_request(priority=row["priority"]), Endpoint("e", "10.0.0.1", 80), row.get("at", 0.0))
            for row in vector["inflight"]
        ]
        if "evictable" in vector:
            assert [policy.is_evictable(each) for each in flying] == vector["evictable"]
        else:
            assert sorted(range(len(flying)), key=lambda place: policy.sort_key(flying[place])) == vector["order"]


def waiting_from(row: dict, number: int):
    headers = {name: value for name, value in row.items() if name.startswith("x-")}
    request = make_request(headers=headers, received_at=row.get("received", 0.0))
    return make_waiting(arrival=number, enqueued_at=row.get("enqueued", 0.0), ttl_seconds=row.get("ttl", 60.0), request=request)


REQUESTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.booleans()), max_size=60)


@given(REQUESTS)
def test_global_strict_is_one_sorted_queue(requests):
    policy = instance(GlobalStrictFairness).plugin
    band, model = FakeBand(policy), []
    for arrival, (flow, key, leaves) in enumerate(requests):
        band.add(make_waiting(f"f{flow}", key=(float(key),), arrival=arrival))
        model.append((float(key), arrival, f"f{flow}"))
        if leaves:
            gone = band.drop_head(band.flow(f"f{flow}"))
            model.remove((gone.key[0], gone.arrival, f"f{flow}"))

    served = []
    while (waiting := band.serve()) is not None:
        served.append((waiting.key[0], waiting.arrival, waiting.request.fairness_id))

    assert served == sorted(model)


@given(REQUESTS)
def test_round_robin_serves_every_flow_before_one_again(requests):
    band = FakeBand(instance(RoundRobinFairness).plugin)
    for arrival, (flow, _, _) in enumerate(requests):
        band.add(make_waiting(f"f{flow}", arrival=arrival))
    waits = {flow.id: len(flow) for flow in band.flows}

    turns: dict[str, int] = {}
    while (waiting := band.serve()) is not None:
        flow = waiting.request.fairness_id
        turns[flow] = turns.get(flow, 0) + 1
        assert all(turns.get(other, 0) >= min(turns[flow] - 1, count) for other, count in waits.items())

    assert turns == waits


def test_global_strict_bounds_its_heap():
    band = FakeBand(instance(GlobalStrictFairness).plugin)
    for arrival in range(5000):
        band.add(make_waiting("one", key=(-float(arrival),), arrival=arrival))

    assert len(band.private["state"].heap) <= 2 * len(band.flows) + 64


@pytest.mark.parametrize("plugin", [GlobalStrictFairness, RoundRobinFairness, ProgramAwareFairness])
def test_a_new_instance_takes_over_a_band(plugin):
    before, after = instance(plugin).plugin, instance(plugin).plugin
    band = FakeBand(before)
    for arrival, flow in enumerate(("b", "a", "b")):
        band.add(make_waiting(flow, arrival=arrival, enqueued_at=float(arrival)))
    band.private.clear()
    band._policy = after

    served = [band.serve().request.fairness_id for _ in range(3)]

    assert served == {GlobalStrictFairness: ["b", "a", "b"], RoundRobinFairness: ["a", "b", "b"]}.get(plugin, ["b", "a", "b"])


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 10_000), st.integers(0, 300)), max_size=40))
def test_the_ledger_is_the_sum_of_decayed_tokens(answers):
    clock = Clock()
    policy = ProgramAwareFairness("it", ProgramAwareParameters(evictionTtlSeconds=1e9), PluginContext(clock=clock))
    true = dict.fromkeys(range(6), 0.0)
    for program, tokens, seconds in answers:
        clock.now += seconds * 60.0
        true = {each: service / 2.0**seconds for each, service in true.items()}
        answer(policy, f"p{program}", tokens, 0)
        true[program] += tokens

    ledger = policy._ledger
    found = {name: program.service / ledger.scale(clock.now) for name, program in ledger.programs.items()}
    assert found == pytest.approx({f"p{each}": true[each] for each in {program for program, _, _ in answers}}, rel=1e-9, abs=1e-60)


def test_gauges_show_service_waits_and_fairness():
    built_instance = instance(ProgramAwareFairness)
    policy, registry = built_instance.plugin, built_instance.registry
    band = FakeBand(policy)
    now = policy.context.clock()
    band.add(make_waiting("a", enqueued_at=now - 0.25))
    band.serve()
    answer(policy, "a", 10, 5)
    answer(policy, "b", 20, 0)

    value = registry.get_sample_value
    assert value("llm_d_epp_program_aware_attained_service_tokens", {"program_id": "a"}) == pytest.approx(20)
    assert value("llm_d_epp_program_aware_avg_wait_time_milliseconds", {"program_id": "a"}) == pytest.approx(250)
    assert value("llm_d_epp_program_aware_avg_wait_time_milliseconds", {"program_id": "b"}) is None
    assert value("llm_d_epp_program_aware_jains_fairness_index") == pytest.approx(1.0)


@pytest.mark.parametrize(("values", "index"), [([], 1.0), ([0.0, 0.0], 1.0), ([5.0, 5.0], 1.0), ([1.0, 0.0, 0.0, 0.0], 0.25)])
def test_jains_index(values, index):
    assert jain_index(np.array(values)) == index


def test_a_flood_of_programs_drops_the_least_recently_seen(caplog):
    policy = instance(ProgramAwareFairness, maxPrograms=3).plugin
    for program in ("a", "b", "a", "c", "d", "a", "e"):
        answer(policy, program, 1, 0)

    assert list(policy._ledger.programs) == ["d", "a", "e"]
    assert caplog.text.count("more than maxPrograms=3 fairness ids") == 1


def test_a_response_without_usage_adds_no_service():
    policy = instance(ProgramAwareFairness).plugin
    end = ResponseEnd(TerminationCause.ERROR, 0, None, 0, 1.0, None)

    policy.response_ended(make_request(fairness_id="a"), end, CycleState())

    assert policy._ledger.programs == {}


@given(st.lists(INT64, unique=True, max_size=20), st.sampled_from(["rank", "value"]), st.floats(0, 0.99), st.floats(1, 5))
def test_holdback_ceilings_fall_with_the_priority(priorities, domain, lowest, highest):
    parameters = HoldbackParameters(domain=domain, minCeiling=lowest, maxCeiling=highest)
    ceilings = PriorityHoldback("it", parameters, PluginContext()).ceilings(0.5, sorted(priorities, reverse=True))

    assert all(later <= earlier for earlier, later in pairwise(ceilings))
    assert all(lowest - 1e-9 <= each <= highest for each in ceilings)


@given(st.floats(0.0, 0.999), st.integers(2, 9))
def test_a_throttled_band_is_served_once_per_period(saturation, bands):
    policy = instance(SoftReflectiveCeiling).plugin
    period = max(1, int(saturation / (1 - saturation) + 0.5))

    answers = [policy.ceilings(saturation, range(bands, 0, -1)) for _ in range(2 * period)]

    assert all(answer[0] == 1.0 for answer in answers)
    opened = sum(answer[-1] for answer in answers)
    assert opened == (2 * period if saturation < 1.0 - saturation else 2)


def test_holdback_refuses_max_below_min():
    with pytest.raises(ValueError, match="maxCeiling must not be below minCeiling"):
        HoldbackParameters(minCeiling=0.5, maxCeiling=0.4)


def test_metrics_name_the_first_thousand_programs():
    built = instance(ProgramAwareFairness)
    for number in range(MAX_LABEL_VALUES + 500):
        answer(built.plugin, f"{number}", 1, 0)
    assert len(programs_on(built.registry)) == MAX_LABEL_VALUES
    built = instance(ProgramAwareFairness)
    for ending in ("a", "b", "\U0001f600"):
        answer(built.plugin, "p" * 500 + ending, 1, 0)
    assert programs_on(built.registry) == ["p" * MAX_LABEL_BYTES]
    assert len(built.plugin._ledger.programs) == 3
    assert max(map(len, built.plugin._ledger.programs)) <= LONGEST_ID


def programs_on(registry):
    [family] = [each for each in registry.collect() if each.name == "llm_d_epp_program_aware_attained_service_tokens"]
    return [sample.labels["program_id"] for sample in family.samples]
