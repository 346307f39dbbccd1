"""What each built-in plugin of the request path costs: `python -m benchmarks.plugins [TYPE ...]`.

Prints microseconds of one CPU per call, the median of several rounds, for a pool in which every endpoint has reported; `plugin_calls` says
what plugins are asked that neither filter nor score nor pick. One value of each column changes before each call, as while metrics come in;
*unchanged* is the same without that. Where endpoints run changes only with the pool, as labels do, and so it never changes here.
"""

from __future__ import annotations

import gc
import logging
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle
from statistics import median
from time import process_time

import numpy as np

from benchmarks.__main__ import machine
from benchmarks.plugin_calls import KINDS, TEXT, request_calls
from endpick.api import (
    CycleState,
    DataKey,
    Endpoint,
    Endpoints,
    Filter,
    InferenceRequest,
    Picker,
    Plugin,
    PluginContext,
    Prompt,
    Scope,
    ScoredEndpoints,
    Scorer,
    Subscriptions,
)
from endpick.api.data import AnyKey
from endpick.api.keys import PEER_ENDPOINT, TOPOLOGY, LoraAdapters, Topology
from endpick.data.table import EndpointTable, TableWriter
from endpick.host.discovery import discover
from endpick.host.instance import scope_of
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.host.schema import own_model
from endpick.testing.bench import stub_instances
from endpick.testing.factories import value_of

SIZES = (16, 1000)
LIMIT_MICROSECONDS = 100.0
"""What a scorer may take at most among 1000 endpoints."""
ROUNDS, SECONDS_PER_ROUND = 9, 0.004
LABELS = ("decode", "prefill", "both", None)

PARAMETERS: Mapping[str, Mapping[str, object]] = {
    "by-label": {"label": "llm-d.ai/role", "validValues": ["decode", "both"]},
    "label-selector-filter": {"matchLabels": {"llm-d.ai/role": "decode"}},
    "endpoint-attribute-filter": {"attribute": "load", "algorithm": {"threshold": {"operator": "LessThan", "value": 0.5}}},
    "endpoint-attribute-scorer": {"attributeKey": "load", "algorithm": {"type": "linear_lower_is_better"}},
    "utilization-filter": {
        "conditions": [{"metric": "active-requests", "maxValue": 8}, {"metric": "kv-cache-utilization", "maxValue": 0.9}]
    },
    "context-length-aware": {"enableFiltering": True},
    "header-label-affinity-scorer": {"headerName": "x-role", "labelKey": "llm-d.ai/role"},
    "session-id-producer": {"headerName": "x-session-id"},
    "disagg-profile-handler": {"deciders": {"prefill": "decider", "encode": "decider"}},
    "pd-profile-handler": {"deciderPluginName": "decider"},
    "prefix-based-pd-decider": {"nonCachedTokens": 16},
    "request-attribute-reporter": {
        "attributes": [{"key": {"namespace": "envoy.lb", "name": "cost"}, "expression": "usage.completion_tokens"}]
    },
    "disaggregatedset-rollout-screener": {
        "scope": {"labelSelector": ""},
        "revisionGating": {"mode": "sum", "requiredRoles": ["decode"]},
    },
    "endpoint-attribute-weight-scorer": {"attributeKey": "region", "producer": "", "weights": {"a": 2, "b": 1}},
    "max-saturation-detector": {"detectors": ["a", "b"]},
    "precise-prefix-cache-producer": {"kvEventsConfig": {"discoverPods": False}},
    "precise-prefix-cache-scorer": {"kvEventsConfig": {"discoverPods": False}},
}
VARIANTS: Mapping[str, Mapping[str, object]] = {
    "session-affinity-scorer": {"strategy": "session_id"},
    "prefix-cache-affinity-filter": {"ttftSource": "latencyPredictor"},
    "prefix-cache-scorer": {"matchLengthWeight": 0.5},
}
"""Other ways to use a plugin that take another path."""
WITHOUT_MATCHES = {"no-hit-lru-scorer"}
"""What is measured with prompts that no endpoint has cached: otherwise it has nothing to do."""


@dataclass(frozen=True)
class Scene:
    """What plugins are asked about."""

    table: EndpointTable
    endpoints: Endpoints
    state: CycleState
    request: InferenceRequest
    columns: tuple[AnyKey, ...]


def scene(size: int, subscriptions: Subscriptions, *, matches: bool) -> Scene:
    """Endpoints with plausible, different values under all keys the plugin reads."""
    keys: tuple[AnyKey, ...] = (*subscriptions.consumes, *subscriptions.consumes_optional)
    draw = random.Random(7)
    table = EndpointTable(clock=lambda: 1.0, keys=(*keys, *subscriptions.produces))
    table.replace_all(endpoint(number) for number in range(size))
    endpoints, state = table.view(), CycleState()
    for key in keys:
        assert isinstance(key, DataKey)
        values = [made_up(key, draw) if matches else 0.0 for _ in range(size)]
        if key.scope is Scope.ENDPOINT:
            for each, value in zip(endpoints, values, strict=True):
                table.write(key, each, value)
        elif key.scope is Scope.CANDIDATE:
            state.put_column(key, endpoints, np.array(values, dtype=np.float64))
        else:
            state.put(key, endpoints.members[size // 2] if key == PEER_ENDPOINT else values[0])
    headers = {"x-role": "decode", "x-session-id": "s", "x-session-token": "YmVuY2gvOA=="}
    headers |= {"x-llm-d-slo-ttft-ms": "250", "x-llm-d-slo-tpot-ms": "40"}
    headers["test-epp-endpoint-selection"] = ",".join(each.host for each in endpoints.members[:4])
    columns = tuple(key for key in keys if key.scope is Scope.ENDPOINT and key != TOPOLOGY)
    prompt = Prompt(lambda: (TEXT.encode(),))
    request = InferenceRequest(id="bench", model="a", headers=headers, prompt=prompt, size_bytes=len(TEXT), priority=-1)
    return Scene(table, endpoints, state, request, columns)


def endpoint(number: int) -> Endpoint:
    """One of many, with a role and a range of prompts."""
    role = LABELS[number % len(LABELS)]
    labels = {"llm-d.ai/context-length-range": f"{number % 8 * 1000}-{number % 8 * 1000 + 4000}"} | (
        {"llm-d.ai/role": role} if role else {}
    )
    return Endpoint(f"bench/{number}", f"10.0.{number // 250}.{number % 250}", 8000, labels)


def made_up(key: AnyKey, draw: random.Random) -> object:
    """A plausible value, different from most others."""
    if key.name == TOPOLOGY.name:
        host = draw.randrange(64)
        return Topology(f"host-{host}", f"rack-{host // 8}", f"zone-{host // 16}", "region")
    if key.type is LoraAdapters:
        return LoraAdapters(frozenset(draw.sample("abcdefgh", 2)), frozenset(), 4)
    return value_of(key, draw, {})


def calls(plugin: Plugin, given: Scene) -> Iterator[tuple[str, Callable[[], object]]]:
    """What the host asks of it, by kind."""
    request, endpoints, state = given.request, given.endpoints, given.state
    if isinstance(plugin, Filter):
        yield "filter", lambda: plugin.filter(request, endpoints, state)
    if isinstance(plugin, Scorer):
        yield "scorer", lambda: plugin.score(request, endpoints, state)
    if isinstance(plugin, Picker):
        scored = ScoredEndpoints(endpoints, np.random.default_rng(7).random(len(endpoints)))
        yield "picker", lambda: plugin.pick(request, scored, state)


def microseconds(call: Callable[[], object], before: Callable[[], object]) -> float:
    """CPU time of one call, the median of several rounds; what runs before each call is measured alone and taken off."""

    def timed(calls: int, *, with_call: bool) -> float:
        started = process_time()
        for _ in range(calls):
            before()
            if with_call:
                call()
        return process_time() - started

    timed(3, with_call=True)
    calls = 1
    while timed(calls, with_call=True) < SECONDS_PER_ROUND:
        calls *= 2
    gc.disable()
    rounds = [(timed(calls, with_call=True) - timed(calls, with_call=False)) / calls for _ in range(ROUNDS)]
    gc.enable()
    return median(rounds) * 1e6


def touched(given: Scene) -> Callable[[], None]:
    """Changes one value of each column."""
    first, draw = given.endpoints.members[0], random.Random(3)
    values = {key: cycle([made_up(key, draw) for _ in range(64)]) for key in given.columns}

    def touch() -> None:
        for key, ahead in values.items():
            given.table.write(key, first, next(ahead))

    return touch


def plugin_types() -> Iterator[tuple[str, type[Plugin]]]:
    """Built-in plugins that take part in requests, by type, without aliases."""
    for candidate in sorted(discover(), key=lambda one: one.type):
        loaded = load(candidate, Reference(candidate.type), ()).loaded if candidate.is_builtin else None
        if loaded and issubclass(loaded.plugin, (Filter, Scorer, Picker, *KINDS)) and candidate.type not in loaded.plugin.aliases:
            yield candidate.type, loaded.plugin


def main() -> int:
    """The table; 1 when a scorer takes longer than it may."""
    logging.disable(logging.WARNING)
    print(machine())
    print("\n| plugin | kind | 16 endpoints | 1000 endpoints | 1000, unchanged | 1000 : 16 |\n|---|---|---|---|---|---|")
    slow, wanted = [], set(sys.argv[1:])
    for name, kind in plugin_types():
        if wanted and name not in wanted:
            continue
        for variant in (PARAMETERS.get(name, {}), *((VARIANTS[name],) if name in VARIANTS else ())):
            label = f"`{name}`" + (f" ({next(iter(VARIANTS[name].values()))})" if variant is VARIANTS.get(name) else "")
            for role, figures in measured(name, kind, variant, matches=name not in WITHOUT_MATCHES).items():
                small, large, unchanged = figures
                print(f"| {label} | {role} | {small:.1f} | {large:.1f} | {unchanged:.1f} | {large / small:.1f} |", flush=True)
                slow += [label] if role == "scorer" and large > LIMIT_MICROSECONDS else []
    print(f"\nscorers above {LIMIT_MICROSECONDS:g} µs at {SIZES[-1]} endpoints: {', '.join(slow) or 'none'}")
    return int(bool(slow))


def measured(name: str, kind: type[Plugin], parameters: Mapping[str, object], *, matches: bool) -> dict[str, tuple[float, float, float]]:
    """For each part it has in a request: among few endpoints, among many, and among many of which nothing is new."""
    model = own_model(kind)
    assert model is not None
    values = model(**parameters)
    found: dict[str, list[float]] = {}
    for size in SIZES:
        subscriptions = kind.subscriptions(values)
        given = scene(size, subscriptions, matches=matches)
        writer = TableWriter(given.table, scope_of("bench", subscriptions), None, lambda *_: None)
        plugin = kind("bench", values, PluginContext(random=random.Random(1), columns=writer, instances=stub_instances(values)))
        others = request_calls(name, plugin, given.request, given.endpoints, given.state)
        for role, call in (*calls(plugin, given), *others):
            found.setdefault(role, []).append(microseconds(call, touched(given)))
            if size == SIZES[-1]:
                found[role].append(microseconds(call, lambda: None))
    return {role: (few, many, unchanged) for role, (few, many, unchanged) in found.items()}


if __name__ == "__main__":
    raise SystemExit(main())
