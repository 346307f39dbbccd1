"""Routing policies on traces, in virtual time: `python -m benchmarks.policies`."""

from __future__ import annotations

import json
from collections.abc import Mapping

from endpick.config import load_config
from endpick.host.discovery import API_MAJOR, Candidate, discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan

ORACLE = "oracle"

_CLASSES = {
    "bench.dynamo": "DynamoScorer",
    "bench.least-requests-picker": "LeastRequestsPicker",
    "bench.power-of-two-picker": "PowerOfTwoPicker",
    "bench.round-robin-picker": "RoundRobinPicker",
    "bench.session-hash-picker": "SessionHashPicker",
    "bench.sglang": "SglangScorer",
    "bench.sticky": "StickyScorer",
}

POLICIES: Mapping[str, Mapping[str, float]] = {
    "predicted latency": {"predicted-latency": 1},
    "llm-d's default": {"queue-scorer": 2, "kv-cache-utilization-scorer": 2, "prefix-cache-scorer": 3},
    "latency hub pair": {"latency-observation-scorer-hub": 1},
    "sticky until saturated": {"bench.sticky": 1},
    "SGLang": {"bench.sglang": 1},
    "Dynamo": {"bench.dynamo": 1},
    "session hash": {"bench.session-hash-picker": 1},
    "least requests": {"bench.least-requests-picker": 1},
    "power of two": {"bench.power-of-two-picker": 1},
    "round robin": {"bench.round-robin-picker": 1},
    "random": {"random-picker": 1},
}
"""The plugins of each policy's only profile, with their weights."""


def plan_of(policy: str) -> Plan | None:
    """None for the oracle."""
    if policy == ORACLE:
        return None
    plugins = POLICIES[policy]
    named = [{"pluginRef": name} | ({} if "picker" in name else {"weight": weight}) for name, weight in plugins.items()]
    document = {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": name} for name in plugins],
        "schedulingProfiles": [{"name": "default", "plugins": named}],
    }
    offered = [Candidate(name, API_MAJOR, "benchmarks", "0", f"benchmarks.policies.classes:{one}", "") for name, one in _CLASSES.items()]
    outcome = make_plan(load_config(text=json.dumps(document), name=policy), [*discover(), *offered])
    if outcome.plan is None:
        raise SystemExit("\n".join(str(one) for one in outcome.diagnostics))
    return outcome.plan
