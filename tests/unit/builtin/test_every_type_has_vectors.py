"""Golden vectors of pickers, prefix producers and the silence screener; every type has vectors or a stated reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

import yaml_files
from endpick.api import WAITING_QUEUE_SIZE, InferenceRequest, ProfileRunResult, Prompt, SchedulingResult, ScoredEndpoints
from endpick.api.keys import PREFIX_MATCH_BLOCKS
from endpick.api.state import CycleState
from endpick.host.discovery import discover
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.requests.headers import HeadersForUpstream
from endpick.scheduling.scheduler import as_view
from endpick.testing.factories import make_pool
from unit.builtin.vectors import FOLDER, cases, each
from unit.scheduling.workbench import REQUEST, access, instance, names, pool

OURS = {"endpick", "endpick-kubernetes", "endpick-kv-events"}
INSTALLED = {one.type: one for one in discover() if one.distribution in OURS}
OF_ONE_TYPE = {
    "agent_identities": "agent-identity",
    "session_ids": "session-id-producer",
    "media_matches": "mm-embeddings-cache-producer",
    "burst_groups": "burst-prefix-cache-producer",
    "kv-events": "precise-prefix-cache-producer",
    "p2p_draws": "p2p-source-producer",
    "token_estimates": "token-producer",
    "uncached_tokens": "inflight-load-producer",
    "output_tokens": "inflight-load-producer",
}
"""Files about one type."""
TESTED_OTHERWISE = {
    "file-state-store": "keeps a file: test_stores.py",
    "local-state-store": "opens a socket: test_stores.py",
    "redis-state-store": "asks a server: test_stores.py",
    "valkey-state-store": "asks a server: test_stores.py",
    "dcgm-data-source": "fetches pages: test_sources_exporters.py; its collector has vectors",
    "endpoint-health": "follows requests over time: test_endpoint_health.py and test_endpoint_health_machine.py",
    "metrics-data-source": "fetches pages: test_sources_http.py; its collector has vectors",
    "multicluster-metrics-data-source": "fetches pages: test_sources_exporters.py; its collector has vectors",
    "http-pool-source": "fetches pages: test_pool_data.py",
    "otlp-source": "receives what servers send: test_otlp.py",
    "endpoint-notification-source": "hands events on: test_endpoint_event_sources.py; its collector has vectors",
    "k8s-peer-discovery": "follows an API server: test_kubernetes_objects.py",
    "kubernetes-discovery": "follows an API server: test_kubernetes_objects.py",
    "k8s-notification-source": "delivers nothing",
    "dns-discovery": "asks name servers: test_discovery_dns.py",
    "predicted-latency": "learns from answers: test_predicted_latency_scorer.py and test_predicted_model.py",
    "shadow-profile-handler": "draws requests: test_shadow_handler.py",
    "predicted-latency-producer": "asks a predictor: test_predicted_latency.py holds questions and answers",
}
"""Types without vectors, and their tests."""


def plugin_class(name):
    return load(INSTALLED[name], Reference(name), ()).loaded.plugin


@each(cases("pickers"))
def test_picker_vector(case):
    built, shared = instance(plugin_class(case["type"]), **case.get("parameters", {})), access()
    scored = ScoredEndpoints(pool(size=len(case["totals"])).view(shared), np.array(case["totals"], dtype=float))
    shared.scope = built.scope
    for _ in range(40):
        picked = names(built.plugin.pick(REQUEST, scored, CycleState(shared)))
        if "picks" in case:
            assert picked == [f"e{position}" for position in case["picks"]]
        else:
            assert len(set(picked)) == len(picked) == case["count"]
            assert set(picked) <= {f"e{position}" for position in case["among"]}


@each(cases("prefix_steps"))
def test_prefix_vector(case):
    producer, table = instance(plugin_class(case["type"]), autoTune=False, **case.get("parameters", {})), pool(size=3)
    for step in case["steps"]:
        if "gone" in step:
            producer.plugin.endpoint_removed(table.generation.endpoints[step["gone"]].name)
        text = b"".join(letter.encode() * 256 for letter in step["blocks"]) + b"." * step.get("tail", 0)
        request = InferenceRequest(
            "r", step.get("model", "m"), cache_salt=step.get("salt", ""), prompt=Prompt(lambda text=text: (text,) * bool(text))
        )
        shared = access()
        endpoints, state = table.view(shared), CycleState(shared)
        shared.scope = producer.scope
        producer.plugin.produce(request, endpoints, state)
        (key,) = (one for one in type(producer.plugin).produces if one.name == PREFIX_MATCH_BLOCKS.name)
        assert np.nan_to_num(state.column(key, endpoints)).tolist() == step["matched"]
        result = SchedulingResult("default", {"default": ProfileRunResult("default", endpoints.take([step["to"]]))}, ("x:1",))
        producer.plugin.before_request(request, result, HeadersForUpstream({}), state)


@each(cases("silent_endpoints"))
def test_silent_endpoint_vector(case):
    clock = [100.0]
    table = make_pool(len(case["ages"]), keys=(WAITING_QUEUE_SIZE,), clock=lambda: clock[0])
    for endpoint, age in zip(table.generation.endpoints, case["ages"], strict=True):
        if age is not None:
            clock[0] = 100.0 - age
            table.write(WAITING_QUEUE_SIZE, endpoint, 0.0)
    clock[0] = 100.0
    screener = instance(plugin_class(case["type"]), **case.get("parameters", {})).plugin
    endpoints = table.view()
    kept = as_view(endpoints, screener.filter_candidates(InferenceRequest("r"), endpoints))
    assert [endpoint.name for endpoint in kept] == [f"default/e{position}" for position in case["kept"]]


def vectors_by_type() -> Counter[str]:
    counted: Counter[str] = Counter()
    for path in FOLDER.glob("*.yaml"):
        for case in yaml_files.load(path):
            plugin_type = case.get("type") or case.get("plugin") or OF_ONE_TYPE.get(path.stem)
            counted[plugin_type] += plugin_type is not None
    return counted


def test_every_type_has_vectors_or_a_reason():
    counted = vectors_by_type()
    present = {load(one, Reference(name), ()).loaded.type for name, one in INSTALLED.items()}
    assert {name for name in present if counted[name] < 2} == TESTED_OTHERWISE.keys() & present
    assert sum(counted.values()) >= 650


def test_vectors_are_about_installed_types():
    assert vectors_by_type().keys() - INSTALLED.keys() - {None} == set()
    assert TESTED_OTHERWISE.keys() - INSTALLED.keys() == set()


def test_tests_named_as_reasons_exist():
    tests = Path(__file__).parents[2]
    for why in TESTED_OTHERWISE.values():
        named = [word.rstrip(";,") for word in why.split() if word.rstrip(";,").endswith(".py")]
        assert named or why == "delivers nothing"
        assert all(list(tests.rglob(name)) for name in named), why
