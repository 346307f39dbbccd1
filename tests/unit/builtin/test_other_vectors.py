"""Golden vectors of plugins that neither score nor pick: rollouts, reports of answers, discoveries, documents, headers for the sidecar."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    ConfigurationError,
    CycleState,
    Endpoint,
    PluginContext,
    ProfileRunResult,
    ResponseHead,
    SchedulingResult,
    Unavailable,
    Usage,
)
from endpick.api.access import Access
from endpick.api.keys import SERVED_MODELS, ServedModel
from endpick.data.table import EndpointTable
from endpick.host.discovery import discover
from endpick.host.instance import scope_of
from endpick.host.loader import load
from endpick.host.resolution import Reference
from endpick.host.schema import own_model
from endpick.requests.headers import HeadersForUpstream
from endpick.testing.factories import make_pool
from endpick_builtin.collection.pool_data import JsonDocument
from endpick_builtin.collection.sources import ModelList, parse_model_list
from unit.builtin.vectors import built, cases, each
from unit.scheduling.workbench import REQUEST, names, pool

OFFERED = {one.type: one for one in discover() if one.is_builtin}
LOAD_KEYS = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)
REVISION, ROLE = "disaggregatedset.x-k8s.io/revision", "disaggregatedset.x-k8s.io/role"
DRAWS = 60


def of(topic: str, *types: str) -> list:
    """The cases of a file that are about these types."""
    return [case for case in cases(topic) if case.values[0]["type"] in types]


def made(plugin_type: str, parameters: dict, context: PluginContext):
    plugin = load(OFFERED[plugin_type], Reference(plugin_type), ()).loaded.plugin
    return plugin(plugin_type, own_model(plugin).model_validate(parameters), context)


@each(cases("rollout"))
def test_rollout_screener_keeps(case):
    gating = {"mode": case.get("mode", "sum"), "requiredRoles": case.get("roles", [])}
    rollout = built({**case, "parameters": {"scope": {"labelSelector": "app=m"}, "revisionGating": gating}})
    counts = case.get("counts", {})
    rows = case.get("endpoints") or [(name, role) for name, roles in counts.items() for role, count in roles.items() for _ in range(count)]
    labels = [{"app": "m", **{key: value for key, value in zip((REVISION, ROLE), row, strict=True) if value is not None}} for row in rows]
    view = pool(labels=labels).view(Access())
    request = replace(REQUEST, headers={"x-llm-d-disagg-revision": case["named"]} if "named" in case else {})

    kept = {tuple(names(view.where(rollout.plugin.filter_candidates(request, view)))) for _ in range(DRAWS)}

    if "kept" in case:
        assert kept == {tuple(f"e{number}" for number in answer) for answer in case["kept"]}
    shares = [family for family in rollout.registry.collect() if family.name == "llm_d_epp_disaggregatedset_revision_gating_share"]
    found = {sample.labels["revision"]: round(sample.value, 3) for family in shares for sample in family.samples}
    assert "shares" not in case or found == case["shares"]


@each(of("reports", "request-attribute-reporter"))
def test_attribute_reporter_metadata(case):
    pytest.importorskip("celpy", reason="the extra 'cel' is not installed")
    attribute = {"key": {"name": "n"}, "expression": case["expression"], "condition": case.get("condition", "")}
    reporter = built({**case, "parameters": {"attributes": [attribute]}}).plugin

    told = reporter.response_metadata(REQUEST, Usage(*case["usage"]), CycleState())

    assert told == ({"envoy.lb": {"n": case["expect"]}} if "expect" in case else None)


@each(of("reports", "destination-endpoint-served-verifier"))
def test_served_verifier_header(case):
    told = built(case).plugin.response_started(REQUEST, ResponseHead(200, {}, None, case["served"]), CycleState())

    assert told == {"x-conformance-test-served-endpoint": case["expect"]}


@each(of("reports", "endpoint-load-observer"))
def test_load_observer_columns(case):
    table = make_pool(1, keys=LOAD_KEYS)
    plugin = load(OFFERED[case["type"]], Reference(case["type"]), ()).loaded.plugin
    scope = scope_of("load", plugin.subscriptions(own_model(plugin)()))
    observer = made(case["type"], {}, PluginContext(columns=table.writer(scope)))
    headers = {} if case["told"] is None else {"endpoint-load-metrics": case["told"]}

    observer.response_started(REQUEST, ResponseHead(200, headers, table.generation.endpoints[0]), CycleState())

    known = [table.view()[key][0] for key in LOAD_KEYS]
    assert [None if value != value else value for value in known] == case["expect"]


@each(cases("discoveries"))
def test_discovery_endpoints(case, tmp_path):
    parameters = {"endpoints": case["endpoints"]}
    if case["type"] != "static-discovery":
        (tmp_path / "endpoints.json").write_text(json.dumps(parameters))
        parameters = {"path": str(tmp_path / "endpoints.json")}
    table = EndpointTable(lambda: 0.0)
    discovery = made(case["type"], parameters, PluginContext())
    if "refused" in case:
        with pytest.raises(ConfigurationError) as refusal:
            asyncio.run(discovery.run(table))
        assert case["refused"] in str(refusal.value)
        return

    asyncio.run(discovery.run(table))

    assert {one.name: one.address for one in table.view()} == case["expect"]


@each(of("documents", "models-data-source"))
def test_model_list_parses(case):
    if "unavailable" in case:
        with pytest.raises(Unavailable):
            parse_model_list(case["body"].encode())
    else:
        assert [[model.id, model.parent] for model in parse_model_list(case["body"].encode())] == case["expect"]


@each(of("documents", "models-data-extractor"))
def test_models_extractor_keeps(case):
    table, endpoint = EndpointTable(lambda: 0.0, (SERVED_MODELS,)), Endpoint("default/a", "10.0.0.1", 8000)
    table.upsert(endpoint)

    built(case).plugin.collect(ModelList(ServedModel(*model) for model in case["models"]), table.writer(None, endpoint))

    assert table.view().objects(SERVED_MODELS) == [tuple(ServedModel(*model) for model in case["expect"])]


@each(of("documents", "json-values-extractor"))
def test_json_values_extractor_keeps(case):
    collector = built({**case, "parameters": {"values": case["values"]}}).plugin
    keys = type(collector).subscriptions(collector.parameters).produces
    table = make_pool(1, keys=keys)
    said = ""
    try:
        collector.collect(JsonDocument(case["document"]), table.writer(None))
    except Unavailable as problem:
        said = str(problem)

    values = {key.name: table.view().pool(key) for key in keys}
    assert {name: value for name, value in values.items() if value is not None} == case["expect"]
    assert case.get("unavailable", "") in said
    assert bool(said) == ("unavailable" in case)


@each(cases("stage_headers"))
def test_disagg_headers_are_set(case):
    endpoints = EndpointTable(lambda: 0.0)
    endpoints.replace_all(Endpoint(f"default/e{number}", f"10.0.0.{number + 1}", 8000) for number in range(2))
    view = endpoints.view()
    runs = {name: ProfileRunResult(name, None if case[name] is None else view.take(case[name])) for name in ("prefill", "encode")}
    result = SchedulingResult("decode", {"decode": ProfileRunResult("decode", view.take([0])), **runs}, ("10.0.0.1:8000",))
    client = case.get("client", {})
    headers = HeadersForUpstream({})

    built(case).plugin.before_request(replace(REQUEST, headers=client), result, headers, CycleState())

    assert headers._values == case["set"]
    assert sorted(headers._removed) == case["removed"]
