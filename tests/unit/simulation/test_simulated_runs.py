"""Whole runs in virtual time: the real host in front of simulated servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from endpick_lab.figures import figures_of
from endpick_lab.fleet import FleetSettings
from endpick_lab.pool import Failure, PoolSettings, Trouble
from endpick_lab.run import ONE_PICKER, RunResult, run
from endpick_lab.settings import EngineSettings, Timing
from endpick_lab.trace import TraceRequest

HEADER = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"
LOADED = (
    HEADER
    + "plugins: [{type: active-request-scorer}]\nschedulingProfiles: [{name: default, plugins: [{pluginRef: active-request-scorer}]}]\n"
)
CUSTOM_METRIC = (
    HEADER
    + """
plugins:
  - type: core-metrics-extractor
    parameters:
      engineConfigs:
        - name: vllm
          queuedRequestsSpec: "vllm:num_requests_waiting"
          runningRequestsSpec: "vllm:num_requests_running"
          kvUsageSpec: "vllm:kv_cache_usage_perc"
"""
)
ENGINE = EngineSettings(kv_blocks=1000, block_size=64, max_model_len=64_000, timing=Timing(0.0001, 0.01, 0.01))


def plan(text: str | None = None):
    outcome = make_plan(load_config() if text is None else load_config(text=text), discover())
    assert outcome.plan is not None, outcome.diagnostics
    return outcome.plan


def requests(count: int, *, every: float = 0.1, prompt: int = 640, output: int = 10, **other) -> list[TraceRequest]:
    """Prompts that share nothing."""
    blocks = -(-prompt // 64)
    return [
        TraceRequest(number * every, prompt, output, tuple(range(number * 1000, number * 1000 + blocks)), 64, **other)
        for number in range(count)
    ]


def simulated(requests, text: str | None = None, *, servers: int = 3, failures=(), seed: int = 1, fleet=ONE_PICKER) -> RunResult:
    return run(plan(text), requests, PoolSettings(servers, ENGINE, failures=failures), seed, fleet=fleet)


def test_a_lone_request_takes_what_the_engine_says():
    (one,) = simulated(requests(1)).observed
    assert one.first_token_at == pytest.approx(0.01 + 640 * 0.0001)
    assert one.finished_at == pytest.approx(one.first_token_at + 9 * 0.01)
    assert (one.cached_tokens, one.problem) == (0, "")


def test_the_same_seed_gives_the_same_run():
    assert simulated(requests(40)).observed == simulated(requests(40)).observed
    assert [one.server for one in simulated(requests(40)).observed] != [one.server for one in simulated(requests(40), seed=2).observed]


def test_equal_prompts_go_where_they_are_cached():
    same = [replace(one, blocks=tuple(range(10))) for one in requests(8, every=1.0)]
    result = simulated(same)
    assert len({one.server for one in result.observed}) == 1
    assert [one.cached_tokens for one in result.observed] == [0] + [576] * 7  # the last block is computed for its token
    assert result.hit_tokens == 7 * 576


def test_the_picker_sees_requests_in_flight():
    result = simulated(requests(3, every=0.0, output=500), LOADED)
    assert {one.server for one in result.observed} == {0, 1, 2}


def test_a_server_that_is_down_costs_requests_until_it_is_left_out():
    down = (Failure(0, Trouble.DOWN, 0.0, 1000.0),)
    problems = [one.problem for one in simulated(requests(60), LOADED, failures=down).observed]
    assert set(problems) == {"", "refused the connection"}
    assert 0 < sum(map(bool, problems)) < 10
    assert not any(problems[30:])


def test_errors_eject_a_server_and_it_comes_back():
    errors = (Failure(0, Trouble.ERRORS, 1.0, 5.0),)
    observed = simulated(requests(800), LOADED, failures=errors).observed
    failed = [one.arrived_at for one in observed if one.problem]
    assert 1.0 <= min(failed) <= max(failed) < 6.0
    assert any(one.server == 0 for one in observed if one.arrived_at > 40)


def test_a_stalled_server_finishes_later():
    stall = (Failure(0, Trouble.STALL, 0.05, 20.0),)
    (one,) = simulated(requests(1), servers=1, failures=stall).observed
    assert one.first_token_at == pytest.approx(20.0 + 0.01 + 640 * 0.0001)
    assert one.problem == ""


@pytest.mark.parametrize("at", [0.1, 0.3, 0.7])
def test_a_stall_of_any_length_ends(at):
    stalls = tuple(Failure(0, Trouble.STALL, at + number, 0.1 + number / 7) for number in range(0, 20, 4))
    assert all(one.finished_at for one in simulated(requests(100, every=0.07, output=100), LOADED, servers=2, failures=stalls).observed)


def test_answers_that_are_not_streamed_count_as_well():
    result = simulated(requests(30, stream=False), HEADER + "plugins: [{type: predicted-latency}]\n")
    assert all(one.finished_at for one in result.observed)


def test_a_prompt_longer_than_the_cache_fails_alone():
    result = simulated([*requests(2), *(replace(one, at=5.0) for one in requests(1, prompt=100_000))])
    assert [one.problem for one in result.observed] == ["", "", "longer than the server's cache"]
    figures = figures_of("x", result)
    assert (figures["failed"], figures["problems"]) == (1, {"longer than the server's cache": 1})


def test_flow_control_lets_requests_wait():
    waiting = LOADED + "featureGates: [flowControl]\n"
    result = simulated(requests(400, every=0.001, output=200), waiting, servers=1)
    assert all(one.finished_at for one in result.observed)


def test_other_collectors_read_a_page():
    result = simulated(requests(20), CUSTOM_METRIC)
    assert all(one.finished_at for one in result.observed)


def test_a_load_that_nothing_can_serve_is_saturated():
    result = simulated(requests(600, every=0.01, prompt=6400, output=400), servers=1)
    figures = figures_of("x", result)
    assert figures["saturated"]
    assert (figures["ttft_seconds"], figures["e2e_seconds"]) == (None, None)


def test_figures_of_a_run():
    result = simulated(requests(100), LOADED)
    figures = figures_of("x", result, slo_ttft=0.08, slo_tpot=1.0)
    first = sorted(one.first_token_at - one.arrived_at for one in result.observed)
    assert figures["ttft_seconds"]["mean"] == pytest.approx(sum(first) / 100, abs=1e-6)
    assert figures["ttft_seconds"]["p99"] <= first[-1] + 1e-6
    assert figures["slo_attainment"] == sum(one <= 0.08 for one in first) / 100
    assert (figures["requests"], figures["failed"], figures["saturated"], figures["regret"]) == (100, 0, False, None)
    assert 1.0 <= figures["imbalance"] < 1.5


def test_pickers_that_share_hit_as_often_as_one():
    again = [replace(one, blocks=tuple(block % 30_000 for block in one.blocks)) for one in requests(90)]

    def hits(fleet: FleetSettings) -> int:
        return simulated(again, servers=6, fleet=fleet).hit_tokens

    alone = hits(ONE_PICKER)
    assert hits(FleetSettings(4)) == pytest.approx(alone, rel=0.05)
    assert hits(FleetSettings(4, loss=0.2)) >= 0.8 * alone
    assert hits(FleetSettings(4, sync_seconds=None)) < 0.8 * alone


def test_pickers_that_share_give_the_same_run_again():
    first, second = (simulated(requests(40), fleet=FleetSettings(3, loss=0.1)) for _ in range(2))
    assert first.observed == second.observed
    assert first.bytes_exchanged == second.bytes_exchanged > 0
