"""Request-header processors in a decision."""

from __future__ import annotations

import pytest

from endpick.api import DataProducer, Rejection, RequestHeaderProcessor
from endpick.api.keys import AGENT_IDENTITY
from endpick.host.kinds import OnFault
from endpick.requests.model import Refused
from unit.requests.stage import Stage, detector_of, header_processor_of
from unit.scheduling.workbench import instance


class Reader(RequestHeaderProcessor):
    produces = (AGENT_IDENTITY,)

    def request_headers(self, request, state):
        if "x-agent" in request.headers:
            state.put(AGENT_IDENTITY, request.headers["x-agent"])


class Listener(DataProducer):
    consumes_optional = (AGENT_IDENTITY,)

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.heard = []

    def produce(self, request, endpoints, state):
        self.heard.append((request.fairness_id, state.get(AGENT_IDENTITY)))


@pytest.mark.parametrize(
    ("headers", "heard"),
    [
        ({"x_agent": "a-1"}, ("a-1", "a-1")),
        ({"x_agent": "a-1", "x_llm_d_inference_fairness_id": "tenant"}, ("tenant", "a-1")),
        ({"x_agent": "a-1", "x_gateway_inference_fairness_id": "tenant"}, ("tenant", "a-1")),
        ({"x_agent": "a-1", "x_llm_d_inference_fairness_id": ""}, ("a-1", "a-1")),
        ({"x_agent": ""}, ("default-flow", "")),
        ({"x_agent": "a" * 1024}, ("a" * 1024, "a" * 1024)),
        ({"x_agent": "a" * 1025}, ("default-flow", "a" * 1025)),
        ({}, ("default-flow", None)),
        ({"x_llm_d_inference_fairness_id": "tenant"}, ("tenant", None)),
    ],
)
def test_agent_identity_becomes_the_fairness_id(headers, heard):
    listener = instance(Listener)
    stage = Stage(header_processors=[instance(Reader)], producers=[listener])
    stage.route(**headers)
    assert listener.plugin.heard == [heard]


def test_first_rejection_ends_the_request_before_shedding():
    asked = []
    processors = [
        header_processor_of(lambda request, state: asked.append("a"), "a"),
        header_processor_of(lambda request, state: asked.append("b") or Rejection("who are you", 401, "unknown"), "b"),
        header_processor_of(lambda request, state: asked.append("c"), "c"),
    ]
    stage = Stage(header_processors=processors, detector=detector_of(2.0), objectives={"batch": -1})
    assert stage.refuse(x_llm_d_inference_objective="batch") == Refused(401, "Unauthorized", "who are you", "unknown")
    assert asked == ["a", "b"]


@pytest.mark.parametrize("bad", [lambda request, state: 1 / 0, lambda request, state: True])
def test_header_processor_fault_follows_on_fault(bad):
    assert Stage(header_processors=[header_processor_of(bad, "bad")]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")
    assert Stage(header_processors=[header_processor_of(bad, "bad", OnFault.SKIP)]).route().destinations
