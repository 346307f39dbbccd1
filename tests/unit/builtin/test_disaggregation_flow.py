"""Disaggregated requests through a whole host."""

from __future__ import annotations

import pytest

from endpick.api import DisaggregationDecider, Endpoint, Filter
from endpick.api.keys import PEER_ENDPOINT
from endpick.data.table import EndpointTable
from endpick.requests.response import _endpoint_at
from endpick.testing.host import HostRefused, host_of

CONFIG = """
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: disagg-profile-handler
    parameters: {{stageOrder: {order}, deciders: {{{deciders}}}}}
  - {{name: decider, type: {decider}{fault}}}
  - type: decode-filter
  - type: prefill-filter
  - type: acme.near
schedulingProfiles:
  - {{name: decode, plugins: [{{pluginRef: decode-filter}}, {{pluginRef: acme.near}}]}}
  - {{name: prefill, plugins: [{{pluginRef: prefill-filter}}, {{pluginRef: acme.near}}]}}
"""
LABELS = [
    {"llm-d.ai/role": "decode", "rack": "a"},
    {"llm-d.ai/role": "decode", "rack": "b"},
    {"llm-d.ai/role": "prefill", "rack": "a"},
    {"llm-d.ai/role": "prefill", "rack": "b"},
]


class Near(Filter):
    """Keeps endpoints of the rack in which the earlier stage runs."""

    consumes = (PEER_ENDPOINT,)

    def filter(self, request, endpoints, state):
        peer = state.get(PEER_ENDPOINT)
        return endpoints if peer is None else endpoints.only(lambda each: each.labels["rack"] == peer.labels["rack"])


class Broken(DisaggregationDecider):
    """Raises."""

    def disaggregate(self, request, endpoint, state):
        raise RuntimeError("no idea")


def config(order: str = "decode-first", decider: str = "always-disagg-pd-decider", fault: str = "") -> str:
    deciders = "prefill: decider" if order == "decode-first" else "encode: decider"
    return CONFIG.format(order=order, decider=decider, deciders=deciders, fault=fault)


def decisions_of(text: str, times: int = 20):
    with host_of(text, {"acme.near": Near, "acme.broken": Broken}) as host:
        host.put(4, LABELS)
        return [host.ask() for _ in range(times)]


@pytest.mark.parametrize(("order", "stages"), [("decode-first", ["decode", "prefill"]), ("prefill-first", ["prefill", "decode"])])
def test_later_stage_picks_near_the_earlier_one(order: str, stages: list[str]) -> None:
    decisions = decisions_of(config(order))

    assert all(decision.faults == () for decision in decisions)
    assert all([run.profile for run in decision.runs] == stages for decision in decisions)
    racks = {(decision.run("decode").picked, decision.run("prefill").picked) for decision in decisions}
    assert racks == {(("default/e0",), ("default/e2",)), (("default/e1",), ("default/e3",))}
    assert {decision.headers["x-prefiller-host-port"] for decision in decisions} == {"10.0.0.3:8000", "10.0.0.4:8000"}


def test_failing_decider_leaves_the_request_to_decode() -> None:
    (decision,) = decisions_of(config(decider="acme.broken"), 1)

    assert (decision.status, [run.profile for run in decision.runs], decision.headers.keys() & {"x-prefiller-host-port"}) == (
        None,
        ["decode"],
        set(),
    )
    assert [(fault.instance, fault.problem) for fault in decision.faults] == [("decider", "RuntimeError: no idea")]


def test_fail_close_decider_ends_the_request() -> None:
    (decision,) = decisions_of(config(decider="acme.broken", fault=", onFault: FailClose"), 1)

    assert (decision.status, decision.destinations) == (500, ())
    assert [fault.instance for fault in decision.faults] == ["decider"]


def parameters(text: str) -> str:
    return f"""
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
  - type: always-disagg-pd-decider
  - type: disagg-profile-handler
    parameters: {{{text}}}
schedulingProfiles: [{{name: decode, plugins: []}}, {{name: prefill, plugins: []}}]
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("profiles: {}, deciderPluginName: always-disagg-pd-decider", "deciderPluginName cannot be mixed with profiles and deciders"),
        (
            "deciders: {prefill: always-disagg-pd-decider}, prefillProfile: prefill, decodeProfile: decode",
            "decodeProfile, prefillProfile cannot be mixed",
        ),
        ("stageOrder: prefill-first, deciders: {prefill: always-disagg-pd-decider}", "remove deciders.prefill"),
        ("deciders: {prefill: always-disagg-pd-decide}", "did you mean 'always-disagg-pd-decider'?"),
        ("stageOrder: prefill-first, profiles: {prefill: other}", "requires scheduling profile 'other'"),
    ],
)
def test_contradicting_parameters_are_refused(text: str, message: str) -> None:
    with pytest.raises(HostRefused) as refused:
        host_of(parameters(text))

    assert message in str(refused.value)


def test_sidecar_port_must_be_valid() -> None:
    text = "plugins: [{type: data-parallel-profile-handler, parameters: {primaryPort: 65536}}]"
    with pytest.raises(HostRefused, match="E0401"):
        host_of(f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n{text}\n")


def test_rewritten_port_maps_back_to_the_endpoint() -> None:
    table = EndpointTable(lambda: 0.0, ())
    table.replace_all([Endpoint("primary", "10.0.0.1", 8000), Endpoint("rank", "10.0.0.1", 8003), Endpoint("other", "10.0.0.2", 8003)])
    picked = table.view().take([1, 2])
    destinations = ("10.0.0.1:8000", "10.0.0.2:8000")

    names = [_endpoint_at(served, picked, destinations) for served in (*destinations, "10.0.0.1:8003", "10.9.9.9:1")]
    assert [endpoint and endpoint.name for endpoint in names] == ["rank", "other", "rank", None]
