"""Requests in flight, and metrics of predicted latencies."""

from __future__ import annotations

import math
from random import Random

import pytest
from prometheus_client import CollectorRegistry

from endpick.api import InferenceRequest
from endpick_builtin.producers.latency_ledger import MAX_MODEL_PAIRS, DecodeLedger, LatencyMetrics, Objectives, Served
from endpick_builtin.producers.latency_service import Prediction


def served(tpot=0.0, tokens=7, endpoint="e"):
    return Served(endpoint, {"input_token_length": tokens}, None, Objectives(0.0, tpot))


@pytest.mark.parametrize("seed", range(2))
def test_ledger_agrees_with_a_model(seed):
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


def test_a_removed_endpoint_is_forgotten():
    ledger = DecodeLedger()
    ledger.begin(one := served(0.1))
    ledger.forget("e")
    ledger.decode(one)
    ledger.end(one)
    assert (ledger.tokens("e"), ledger.strictest("e")) == (0, math.inf)


def test_the_number_of_model_pairs_is_bounded():
    registry = CollectorRegistry()
    metrics = LatencyMetrics(registry)
    for number in range(2 * MAX_MODEL_PAIRS):
        request = InferenceRequest("r", f"t{number % 30}" + "x" * 500, f"m{number // 30}")
        metrics.predicted(request, Prediction(0.1, 0.1))
    pairs = {
        tuple(sample.labels[name] for name in ("model_name", "target_model_name"))
        for family in registry.collect()
        for sample in family.samples
    }
    assert len(pairs) == MAX_MODEL_PAIRS + 1
    assert ("other", "other") in pairs
    assert max(len(name) for pair in pairs for name in pair) <= 128
