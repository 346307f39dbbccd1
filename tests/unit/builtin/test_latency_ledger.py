"""What is remembered of requests whose latency was predicted, and what reading it costs."""

from __future__ import annotations

import math
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import InferenceRequest
from endpick_builtin.producers.latency_ledger import DecodeLedger, Objectives, Served
from endpick_builtin.producers.latency_metrics import MOST_PAIRS, LatencyMetrics
from endpick_builtin.producers.latency_service import Prediction


def served(tpot=0.0, tokens=7, endpoint="e"):
    return Served(endpoint, {"input_token_length": tokens}, None, Objectives(0.0, tpot))


@pytest.mark.parametrize("seed", range(5))
def test_sums_and_the_strictest_are_those_of_what_is_under_way(seed):
    random, ledger = Random(seed), DecodeLedger()
    running: dict[Served, int] = {}
    for _ in range(2000):
        match random.randrange(4):
            case 0 | 1 if len(running) < 200:
                one = served(random.choice([0.0, 0.1, 0.2, 0.3]), random.randrange(9), random.choice("ab"))
                ledger.begin(one)
                running[one] = 0
            case 2 if running:
                one = random.choice([*running])
                ledger.decode(one)
                running[one] = one.row["input_token_length"]
            case 3 if running:
                one = random.choice([*running])
                ledger.end(one)
                ledger.end(one)
                ledger.decode(one)
                del running[one]
        for endpoint in "ab":
            there = {one: tokens for one, tokens in running.items() if one.endpoint == endpoint}
            assert ledger.tokens(endpoint) == sum(there.values())
            assert ledger.strictest(endpoint) == min((one.objectives.tpot for one in there if one.objectives.tpot), default=math.inf)


class NotLookedThrough(dict):
    """The requests of an endpoint."""

    def __iter__(self):
        raise AssertionError("all that run are looked at")

    values = items = keys = __iter__


def test_no_request_looks_at_all_that_are_under_way():
    ledger = DecodeLedger()
    all_of_them = [served(0.1 + number, 1) for number in range(1000)]
    for one in all_of_them:
        ledger.begin(one)
        ledger.decode(one)
    ledger._running["e"].requests = NotLookedThrough(ledger._running["e"].requests)
    assert ledger.tokens("e") == 1000
    assert ledger.strictest("e") == 0.1
    ledger.end(all_of_them[0])
    assert ledger.strictest("e") == 1.1


def test_what_has_ended_does_not_stay_behind_one_that_asks_for_least():
    ledger = DecodeLedger()
    ledger.begin(served(0.1))
    for _ in range(1000):
        ledger.begin(one := served(0.2))
        ledger.end(one)
    assert len(ledger._running["e"].asked) < 100


def test_an_endpoint_that_leaves_takes_what_it_worked_on_along():
    ledger = DecodeLedger()
    ledger.begin(one := served(0.1))
    ledger.forget("e")
    ledger.decode(one)
    ledger.end(one)
    assert (ledger.tokens("e"), ledger.strictest("e")) == (0, math.inf)


def test_pairs_of_models_are_told_apart_up_to_a_number_of_pairs():
    registry = CollectorRegistry()
    metrics = LatencyMetrics(registry)
    for number in range(2 * MOST_PAIRS):
        request = InferenceRequest("r", f"t{number % 30}" + "x" * 500, f"m{number // 30}")
        metrics.predicted(request, Prediction(0.1, 0.1))
    pairs = {
        tuple(sample.labels[name] for name in ("model_name", "target_model_name"))
        for family in registry.collect()
        for sample in family.samples
    }
    assert len(pairs) == MOST_PAIRS + 1
    assert ("other", "other") in pairs
    assert max(len(name) for pair in pairs for name in pair) <= 128
