"""Golden vectors of the latency hub, label weights, output lengths, sessions, combined detectors, and plugins for coordinators."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from importlib import import_module

import numpy as np
import pytest
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from endpick.api import (
    CycleState,
    DirectResponse,
    Endpoint,
    EndpointChange,
    EndpointEvent,
    PluginContext,
    ProfileRunResult,
    ResponseEnd,
    ResponseHead,
    SaturationDetector,
    SchedulingResult,
    TerminationCause,
    Usage,
)
from endpick.api.keys import (
    AGENT_IDENTITY,
    INFLIGHT_REQUESTS,
    OUTPUT_LENGTH,
    SERVED_MODELS,
    SESSION_STATE,
    TOPOLOGY,
    TTFT_PERCENTILES,
    ServedModel,
    SessionState,
    Topology,
    TTFTPercentiles,
)
from endpick.data.table import EndpointTable
from endpick.requests.headers import HeadersForUpstream
from endpick.scheduling.scheduler import as_view
from endpick_builtin.admission.detectors import MaxSaturationParameters
from endpick_builtin.flow_control import HoldbackParameters
from endpick_builtin.label_filters import LabelSelectorParameters, parse_selector
from endpick_builtin.pairs.attributes import AttributeWeightParameters, LabelProducerParameters, label_key
from endpick_builtin.producers.observed_latency import ObserverParameters
from unit.builtin.vectors import TARGETS, built, cases, each, vectors
from unit.scheduling.workbench import REQUEST, access, instance, pool


def of(topic: str, plugin_type: str) -> list:
    """The cases of a file that are about this type."""
    return [case for case in cases(topic) if case.values[0]["type"] == plugin_type]


@vectors("ttft_curves")
def test_expected_ttft_scores(vector):
    observed = [None if row is None else TTFTPercentiles(*row) for row in vector["observed"]]
    scorer, shared = built(vector), access()
    view = pool({TTFT_PERCENTILES: observed, INFLIGHT_REQUESTS: vector["load"]}).view(shared)
    shared.scope = scorer.scope

    assert scorer.plugin.score(REQUEST, view, CycleState(shared)).tolist() == pytest.approx(vector["scores"], abs=1e-8)


class Watching:
    """The observer, as the host drives it."""

    def __init__(self, parameters):
        self.now = 0.0
        module, _, name = TARGETS["latency-observer-producer-hub"].partition(":")
        cls = getattr(import_module(module), name)
        model = instance(cls, **parameters).plugin.parameters
        self.plugin = cls("observer", model, PluginContext(clock=lambda: self.now))
        self.table = pool({INFLIGHT_REQUESTS: [0.0]})

    def respond(self, at, ttft, load, *, status=200, streaming=True):
        view, state = self.table.view(), CycleState()
        self.table.writer(None).set(INFLIGHT_REQUESTS, float(load), view.members[0])
        request, self.now = replace(REQUEST, streaming=streaming), at - ttft
        result = SchedulingResult("default", {"default": ProfileRunResult("default", view)}, ("x:1",))
        self.plugin.produce(request, self.table.view(), state)
        self.plugin.before_request(request, result, HeadersForUpstream({}), state)
        self.plugin.response_started(request, ResponseHead(status, {}, view.members[0]), state)
        self.now = at
        self.plugin.first_chunk(request, state)
        self.plugin.first_chunk(request, state)

    def percentiles(self, at):
        self.now = at
        return asyncio.run(self.plugin.poll(self.table.view().members[0]))


@vectors("ttft_windows")
def test_observed_ttft_percentiles(vector):
    watching, answers = Watching(vector.get("parameters", {})), []
    observations, polls = [(row[0], 1, row) for row in vector["observations"]], [(at, 2, None) for at in vector["polls"]]
    events = sorted(observations + polls, key=lambda event: event[:2])
    for at, _, row in events:
        if row is None:
            answers.append(watching.percentiles(at))
        else:
            watching.respond(*row)

    last = answers[-1]
    found = [last.floor, last.window_floor, last.low_load, last.typical_load, last.inflight_at_low_load, last.inflight_at_typical_load]
    assert [*found, last.recent, last.observations] == pytest.approx(vector["expect"])


@pytest.mark.parametrize("unlike", [{"status": 503}, {"streaming": False}])
def test_observer_ignores_errors_and_whole_responses(unlike):
    watching = Watching({})
    watching.respond(1, 0.5, 0, **unlike)

    assert watching.percentiles(2).observations == 0


@vectors("output_lengths")
def test_output_lengths(vector):
    plugin, state = built(vector).plugin, CycleState()
    path = vector.get("path", "/v1/chat/completions")
    plugin.request_headers(replace(REQUEST, path=path, payload=vector["body"], max_output_tokens=vector.get("limit")), state)

    assert state.get(OUTPUT_LENGTH) == vector["expect"]


@vectors("sessions")
def test_session_states(vector, monkeypatch):
    now, seen, sent = [0.0], [], []
    plugin = built(vector).plugin
    monkeypatch.setattr(plugin, "context", PluginContext(clock=lambda: now[0]))
    for at, what, *usage in vector["steps"]:
        now[0] = float(at)
        if what in ("ask", "look"):
            state = CycleState()
            state.put(AGENT_IDENTITY, "agent")
            plugin.produce(REQUEST, pool().view(), state)
            seen.append(state.get(SESSION_STATE))
            if what == "ask":
                plugin.before_request(REQUEST, SchedulingResult.failed("unused"), HeadersForUpstream({}), state)
                sent.append(state)
        else:
            cause = TerminationCause.NATURAL if what == "end" else TerminationCause.CLIENT_DISCONNECT
            end = ResponseEnd(cause, 200, Usage(*usage[0]) if usage else None, 1, 1.0, 1.0)
            plugin.response_ended(REQUEST, end, sent.pop(0))

    assert seen == [SessionState(*row) for row in vector["sees"]]


def test_requests_without_identity_have_no_session():
    plugin, state = built({"type": "session-state-producer"}).plugin, CycleState()
    plugin.produce(REQUEST, pool().view(), state)

    assert state.get(SESSION_STATE) is None


@vectors("attribute_weights")
def test_labels_become_scores(vector):
    key = label_key("place")
    labels = [{} if value is None else {"zone": value} for value in vector["labels"]]
    publisher = built({"type": "label-producer", "parameters": {"labels": [{"label": "zone", "attributeKey": "place"}]}})
    table = pool({key: [None] * len(labels)}, labels=labels)
    for endpoint in table.generation.endpoints:
        publisher.plugin.collect(EndpointEvent(EndpointChange.ADDED, endpoint), table.writer(publisher.scope, endpoint))
    if "published" in vector:
        assert table.view().objects(key) == vector["published"]
        return
    scorer, shared = built({**vector, "parameters": {"attributeKey": "place", "producer": "", "weights": vector["weights"]}}), access()
    view = table.view(shared)
    shared.scope = scorer.scope

    assert scorer.plugin.score(REQUEST, view, CycleState(shared)).tolist() == pytest.approx(vector["scores"])
    assert scorer.plugin.score(REQUEST, view.take([0]), CycleState(shared)).tolist() == pytest.approx(vector["scores"][:1])


@vectors("combined_saturation")
def test_largest_saturation(vector):
    class Constant(SaturationDetector):
        def saturation(self, endpoints):
            return vector["values"][self.name]

    module, _, name = TARGETS[vector["type"]].partition(":")
    cls = getattr(import_module(module), name)
    children = {child: instance(Constant, child).plugin for child in vector["values"]}
    registry = CollectorRegistry()
    parameters = MaxSaturationParameters.model_validate({"detectors": list(children), "stages": vector.get("stages", {})})
    combined = cls("max", parameters, PluginContext(registry=registry, instances=children))
    roles = [*vector["roles"], *vector.get("among", [])]
    view = pool(labels=[{} if role is None else {"llm-d.ai/role": role} for role in roles]).view().take(range(len(vector["roles"])))

    assert combined.saturation(view) == vector["saturation"]
    (family,) = (one for one in registry.collect() if one.name == "llm_d_epp_flow_control_detector_saturation")
    assert {f"{one.labels['detector']},{one.labels['stage']}": one.value for one in family.samples} == vector["shown"]


@each(of("coordination", "endpoint-pin-screener"))
def test_pinned_endpoints(case):
    plugin, table = built(case).plugin, EndpointTable(lambda: 0.0)
    places = [place.rpartition(":") for place in case["endpoints"]]
    table.replace_all(Endpoint(f"default/e{number}", host, int(port)) for number, (host, _, port) in enumerate(places))
    request = replace(REQUEST, headers={} if case["pin"] is None else {"x-llm-d-pin-host-port": case["pin"]})
    headers = HeadersForUpstream({})
    plugin.before_request(request, SchedulingResult.failed("unused"), headers, CycleState())

    kept = as_view(table.view(), plugin.filter_candidates(request, table.view()))
    assert [endpoint.name for endpoint in kept] == [f"default/e{number}" for number in case["kept"]]
    assert headers._removed == (() if case["pin"] is None else ("x-llm-d-pin-host-port",))


@each(of("coordination", "reserve-endpoint"))
def test_reservations(case):
    request = replace(REQUEST, headers={} if case["prefer"] is None else {"prefer": case["prefer"]})
    result = SchedulingResult("default", {}, ("10.0.0.1:8000", "10.0.0.2:8000"))
    answer = built(case).plugin.before_request(request, result, HeadersForUpstream({}), CycleState())

    headers = {"x-llm-d-reserved-host-port": "10.0.0.1:8000", "preference-applied": "reserve-endpoint"}
    assert answer == (DirectResponse(204, b"", headers) if case["answers"] else None)


@each(of("coordination", "topology-stamp-handler"))
def test_topology_stamps(case):
    shared, handler, state = access(), built(case), CycleState()
    shared.scope, runs = handler.scope, {}
    for profile, places in case["picked"].items():
        found = places and [place and Topology(*place) for place in places]
        runs[profile] = ProfileRunResult(profile, found and pool({TOPOLOGY: found}).view(shared))
    handler.plugin.before_request(REQUEST, SchedulingResult("decode", runs, ("x:1",)), HeadersForUpstream({}), state)
    answer = handler.plugin.response_started(REQUEST, ResponseHead(200, {}, None), state)

    assert answer == (None if case["stamp"] is None else {"x-peer-topology": case["stamp"]})


@each(of("coordination", "models-responder"))
def test_model_lists(case):
    table = EndpointTable(lambda: 0.0, keys={SERVED_MODELS})
    table.replace_all(Endpoint(name, "10.0.0.1", number) for number, name in enumerate(case["lists"], 1))
    for endpoint in table.generation.endpoints:
        if case["lists"][endpoint.name] is not None:
            table.writer(None).set(SERVED_MODELS, tuple(ServedModel(*row) for row in case["lists"][endpoint.name]), endpoint)
    request = replace(REQUEST, method=case.get("method", "GET"), path=case.get("path", "/v1/models"))
    answer = built(case).plugin.respond(request, table.view(), CycleState())

    assert (None if answer is None else answer.status) == case["status"]
    if "data" in case:
        assert json.loads(answer.body) == {"object": "list", "data": case["data"]}
        assert np.all([value == "application/json" for value in answer.headers.values()])


TWICE = [{"label": "a", "attributeKey": "k"}, {"label": "b", "attributeKey": "k"}]


@pytest.mark.parametrize(
    ("model", "parameters", "problem"),
    [
        (ObserverParameters, {"maxRequests": 10, "windowSize": 9}, "10 is more than 9"),
        (ObserverParameters, {"lowPercentile": 50}, "lowPercentile must be less"),
        (ObserverParameters, {"bucketHistorySize": 1}, "greater than or equal to 2"),
        (MaxSaturationParameters, {"detectors": []}, "at least 1"),
        (MaxSaturationParameters, {"detectors": ["a", "a"]}, "names 'a' twice"),
        (MaxSaturationParameters, {"detectors": ["a"], "stages": {"b": ["decode"]}}, "'b', which is not one of detectors"),
        (MaxSaturationParameters, {"detectors": ["a"], "stages": {"a": []}}, "at least 1"),
        (MaxSaturationParameters, {"detectors": ["a"], "stages": {"a": ["encode"]}}, "'prefill' or 'decode'"),
        (LabelProducerParameters, {"labels": TWICE}, "attributeKey 'k'"),
        (AttributeWeightParameters, {"attributeKey": "k", "weights": {"a": 1}}, "producer"),
        (AttributeWeightParameters, {"attributeKey": "k", "producer": "", "weights": {}}, "at least 1"),
        (AttributeWeightParameters, {"attributeKey": "k", "producer": "", "weights": {"a": 0}}, "greater than 0"),
        (AttributeWeightParameters, {"attributeKey": "k", "producer": "", "weights": {"a": 1e-320, "b": 1e300}}, "too small"),
        (HoldbackParameters, {}, "domain rank needs minCeiling"),
        (HoldbackParameters, {"domain": "explicit"}, "needs ceilings"),
        (HoldbackParameters, {"domain": "explicit", "ceilings": {"1": 0.5}, "maxCeiling": 1.0}, "takes no shape"),
        (HoldbackParameters, {"domain": "explicit", "ceilings": {"1": 0.5, "2": 0.4}}, "must not rise"),
        (HoldbackParameters, {"domain": "explicit", "ceilings": {"1": 1.5}}, "less than or equal to 1"),
        (HoldbackParameters, {"minCeiling": 0.5, "ceilings": {"1": 0.5}}, "belong to domain explicit"),
    ],
)
def test_wrong_parameters_are_refused(model, parameters, problem):
    with pytest.raises(ValidationError, match=problem):
        model.model_validate(parameters)


LABELS = ({}, {"app": "a"}, {"app": "b", "env": "x"}, {"app.io/n-1": "c_d", "env": "y"})


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        ("", [0, 1, 2, 3]),
        ("app=a", [1]),
        ("app == b , env=x", [2]),
        ("app!=a", [0, 2, 3]),
        ("env in (x, y)", [2, 3]),
        ("env notin (x)", [0, 1, 3]),
        ("env", [2, 3]),
        ("!env,app", [1]),
        ("app.io/n-1=c_d", [3]),
        ("app=", []),
    ],
)
def test_kubectl_selectors(selector, selected):
    parsed = LabelSelectorParameters.model_validate(parse_selector(selector))
    assert [number for number, labels in enumerate(LABELS) if parsed.selects(labels)] == selected


@pytest.mark.parametrize("selector", ["app=a=b", "env in x", "a,,b", "=a", "env in (a", "a b"])
def test_wrong_selectors_are_refused(selector):
    with pytest.raises(ValueError, match="no label selector"):
        parse_selector(selector)
