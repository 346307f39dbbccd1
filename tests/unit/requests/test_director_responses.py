"""Plugins that answer a request themselves: responders, and pre-request plugins."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from endpick._proto.ext_proc_pb2 import ProcessingResponse
from endpick.api import DirectResponse, PreRequest, Rejection, Responder
from endpick.api.request import MAX_RESPONSE_BYTES
from endpick.extproc.replies import direct
from endpick.host.kinds import OnFault
from endpick.requests.model import NOT_RESERVED, Refused, Routed
from endpick_builtin.coordination import ReserveEndpoint
from endpick_builtin.producers.inflight_load import InflightLoadProducer
from unit.requests.stage import CHAT, Stage
from unit.scheduling.workbench import instance, plugin_of, pool

HELLO = DirectResponse(200, b"hello", {"x-by": "plugin"})
BODIES = [None, CHAT]


def responder_of(function, name="responder", on_fault=None):
    return plugin_of(Responder, name, on_fault, respond=lambda request, endpoints, state: function(request, endpoints))


def pre_request_of(answer, name):
    return plugin_of(PreRequest, name, None, before_request=lambda request, result, headers, state: answer)


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("size", [0, 3])
def test_responder_answers_with_and_without_body_and_endpoints(body, size):
    stage = Stage(table=pool(size=size), responders=[responder_of(lambda request, endpoints: HELLO)])

    assert stage.decide(body) is HELLO


@pytest.mark.parametrize("body", BODIES)
def test_requests_that_no_responder_answers_are_routed(body):
    assert isinstance(Stage(responders=[responder_of(lambda request, endpoints: None)]).decide(body), Routed)


def test_responder_sees_method_path_and_candidates():
    seen = []

    def look(request, endpoints):
        seen.append((request.method, request.path, request.headers["x-a"], len(endpoints)))

    Stage(responders=[responder_of(look)]).decide(None, "/v1/models?x=1", method="GET", x_a="1", subset=("10.0.0.1",))

    assert seen == [("GET", "/v1/models", "1", 1)]


def test_first_response_counts():
    answers = [None, HELLO, DirectResponse(204)]
    stage = Stage(responders=[responder_of(lambda *_, answer=answer: answer, f"r{number}") for number, answer in enumerate(answers)])

    assert stage.decide() is HELLO


@pytest.mark.parametrize(
    "bad", [lambda *_: 1 / 0, lambda *_: "text", lambda *_: Rejection("no"), lambda *_: DirectResponse(200, b"x" * 10_000_000)]
)
@pytest.mark.parametrize("body", BODIES)
def test_responder_fault_follows_on_fault(bad, body):
    assert isinstance(Stage(responders=[responder_of(bad)]).decide(body), Routed)
    refused = Refused(500, "Internal", "plugin 'responder' failed")
    assert Stage(responders=[responder_of(bad, on_fault=OnFault.REFUSE)]).decide(body) == refused


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([None, HELLO], HELLO),
        ([HELLO, DirectResponse(204)], HELLO),
        ([HELLO, Rejection("no", 403)], Refused(403, "Forbidden", "no")),
        ([Rejection("no", 403), HELLO], Refused(403, "Forbidden", "no")),
    ],
)
def test_rejections_of_pre_request_plugins_beat_responses(answers, expected):
    stage = Stage(pre_request=[pre_request_of(answer, f"p{number}") for number, answer in enumerate(answers)])

    assert stage.decide() == expected


def test_reservation_releases_the_load_and_is_not_counted():
    load = instance(InflightLoadProducer)
    stage = Stage(producers=[load], pre_request=[load, instance(ReserveEndpoint)], observers=[load])

    answer = stage.decide(prefer="reserve-endpoint")

    assert answer.status == 204
    assert answer.headers["x-llm-d-reserved-host-port"].startswith("10.0.0.")
    assert not list(load.plugin._ledger.loads())


def test_a_reservation_is_recorded_once():
    stage = Stage(pre_request=[instance(ReserveEndpoint)], records=True)
    stage.decide(prefer="reserve-endpoint")

    (record,) = stage.records
    assert (record.status, record.refusal, record.is_refused) == (204, "", False)
    assert record.runs
    assert record.snapshot is not None


def test_unclaimed_reservations_are_refused():
    assert Stage().decide(prefer="reserve-endpoint") is NOT_RESERVED


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"status": 199}, ValueError),
        ({"status": 600}, ValueError),
        ({"status": "200"}, TypeError),
        ({"body": "text"}, TypeError),
        ({"body": b"x" * (MAX_RESPONSE_BYTES + 1)}, ValueError),
        ({"headers": {"a b": "c"}}, ValueError),
        ({"headers": {"a": 1}}, TypeError),
        ({"headers": None}, TypeError),
    ],
)
def test_impossible_responses_are_refused(wrong, error):
    with pytest.raises(error):
        DirectResponse(**wrong)


@pytest.mark.parametrize(("status", "sent"), [(200, 200), (204, 204), (503, 503), (299, 500)])
def test_response_as_the_gateway_gets_it(status, sent):
    message: Message = ProcessingResponse.FromString(direct(DirectResponse(status, b"body", {"X-A": "1", "content-length": "4"})))
    answer = message.immediate_response

    assert (answer.status.code, answer.body, answer.details) == (sent, b"body", "endpick_direct_response")
    assert [(one.header.key, one.header.raw_value) for one in answer.headers.set_headers] == [("x-a", b"1")]
