"""A routed request after the decision: observers, usage, and one end."""

from __future__ import annotations

import gc
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ParsedRequest, PreRequest, Rejection, ResponseObserver, TerminationCause, Usage
from endpick.api.keys import INFLIGHT_REQUESTS
from endpick.requests.model import CloseCause
from endpick_builtin.producers.inflight_load import InflightLoadProducer
from unit.requests.stage import CHAT, JSON_OK, Stage, before_request_of, observer_of, parser_of, pieces
from unit.scheduling.workbench import instance, picker_of, plugin_of, pool

SSE_OK = {":status": "200", "content-type": "text/event-stream; charset=utf-8"}
ANSWER = b'{"object":"chat.completion","model":"m","usage":{"prompt_tokens":10,"completion_tokens":20}}'


def told(log):
    return observer_of(
        response_started=lambda request, head, state: log.append(("started", head.status, head.endpoint and head.endpoint.address)),
        first_chunk=lambda request, state: log.append(("first",)),
        response_ended=lambda request, end, state: log.append(("ended", end)),
    )


def test_observers_see_each_event_once():
    log = []
    stage = Stage(observers=[told(log)])
    exchange = stage.route().exchange
    destination = stage.telemetry.scheduled[0][0]
    assert exchange.response_headers(JSON_OK, None) == {}
    stage.now += 0.25
    assert exchange.response_chunk(ANSWER[:30], False) is None
    stage.now += 0.5
    assert exchange.response_chunk(ANSWER[30:], False) is None
    assert exchange.response_chunk(b"", True) is None
    for cause in (CloseCause.END, CloseCause.RESET):
        exchange.finish(cause)
    [started, first, (_, end)] = log
    assert (started, first) == (("started", 200, destination), ("first",))
    assert (end.cause, end.status, end.usage, end.response_bytes) == (TerminationCause.NATURAL, 200, Usage(10, 20), len(ANSWER))
    assert (end.ttft_seconds, end.duration_seconds) == (0.25, 0.75)
    assert stage.telemetry.ended == [end]


@pytest.mark.parametrize("headers", [JSON_OK, SSE_OK])
def test_finished_request_leaves_no_cycle(headers):
    stage = Stage()
    gc.collect()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        exchange = stage.route().exchange
        exchange.response_headers(headers, None)
        exchange.response_chunk(ANSWER, True)
        exchange.finish(CloseCause.END)
        del exchange
        gc.collect()
        waiting = {type(each).__name__ for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
    assert not waiting & {"TrackedExchange", "InferenceRequest", "WholeUsage", "StreamedUsage"}, (
        "a cycle keeps whole bodies until a collection"
    )


def test_rewritten_body_is_freed_before_the_response_ends():
    routed = Stage().route({"model": "m", "prompt": "word " * 1000}, path="/v1/completions", x_llm_d_model_name_rewrite="another")
    body, exchange = routed.body, routed.exchange
    assert b"another" in body
    del routed
    assert sys.getrefcount(body) == 2, "one for the name, one for the call"
    exchange.finish(CloseCause.END)


@pytest.mark.parametrize(
    ("cause", "termination"),
    [
        (CloseCause.END, TerminationCause.NATURAL),
        (CloseCause.RESET, TerminationCause.CLIENT_DISCONNECT),
        (CloseCause.DISCONNECT, TerminationCause.ERROR),
        (CloseCause.ERROR, TerminationCause.ERROR),
        (CloseCause.DRAIN, TerminationCause.DRAINED),
    ],
)
def test_request_without_response_ends(cause, termination):
    log = []
    stage = Stage(observers=[told(log)])
    stage.route().exchange.finish(cause)
    [(_, end)] = log
    assert (end.cause, end.status, end.usage, end.response_bytes, end.ttft_seconds) == (termination, 0, None, 0, None)


def test_late_rejection_is_not_counted_as_sent():
    log = []
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: Rejection("no"))], observers=[told(log)])
    stage.refuse()
    [(_, end)] = log
    assert end.cause is TerminationCause.ERROR
    assert stage.telemetry.ended == []


@pytest.mark.parametrize("ending", ["answered", "reset before headers", "reset in the middle", "rejected"])
def test_inflight_load_is_released_however_a_request_ends(ending):
    table = pool()
    producer = instance(InflightLoadProducer, columns=table.writer(instance(InflightLoadProducer).scope))
    rejecting = [before_request_of(lambda request, result, headers: Rejection("no"))] if ending == "rejected" else []
    stage = Stage(table=table, producers=[producer], pre_request=[producer, *rejecting], observers=[producer])
    decision = stage.decide()
    if ending != "rejected":
        assert sum(table.view()[INFLIGHT_REQUESTS]) == 1
        if ending != "reset before headers":
            decision.exchange.response_headers(JSON_OK, None)
            decision.exchange.response_chunk(ANSWER, ending == "answered")
        decision.exchange.finish(CloseCause.END if ending == "answered" else CloseCause.RESET)
    assert table.view()[INFLIGHT_REQUESTS].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("served", "address"),
    [(None, "10.0.0.2:8000"), ("10.0.0.2:8000", "10.0.0.2:8000"), ("10.0.0.3:8000", "10.0.0.3:8000"), ("10.9.9.9:1", None)],
)
def test_served_endpoint_comes_from_the_gateway(served, address):
    log = []
    stage = Stage(observers=[told(log)], picker=picker_of(lambda scored: scored.take([1, 0])))
    stage.route().exchange.response_headers(JSON_OK, served)
    assert log == [("started", 200, address)]


def test_observer_faults_do_not_affect_other_observers():
    def fail(*arguments):
        raise RuntimeError("oops")

    log = []
    stage = Stage(
        observers=[
            observer_of("bad", response_started=fail, first_chunk=fail, response_ended=fail),
            observer_of("odd", response_started=lambda request, head, state: "text"),
            observer_of("wrong", response_started=lambda request, head, state: {"x-count": 3, "x-right": "yes"}),
            observer_of("good", response_started=lambda request, head, state: {"x-served-by": head.endpoint.name}),
            told(log),
        ],
        picker=picker_of(lambda scored: scored.take([0])),
    )
    exchange = stage.route().exchange
    assert exchange.response_headers(JSON_OK, None) == {"x-right": "yes", "x-served-by": "pool/e0"}
    exchange.response_chunk(ANSWER, True)
    exchange.finish(CloseCause.END)
    assert [entry[0] for entry in log] == ["started", "first", "ended"]
    assert [(name, point) for name, point, _ in stage.telemetry.faults] == [
        ("bad", "ResponseReceived"),
        ("odd", "ResponseReceived"),
        ("wrong", "ResponseReceived"),
        ("bad", "ResponseStreaming"),
        ("bad", "ResponseComplete"),
    ]


def test_methods_not_overridden_are_not_called():
    stage = Stage(observers=[observer_of("quiet")])
    exchange = stage.route().exchange
    exchange.response_headers(JSON_OK, None)
    exchange.response_chunk(ANSWER, True)
    exchange.finish(CloseCause.END)
    assert [point for point, name in stage.telemetry.timed if name == "quiet"] == []


def test_private_state_lives_until_the_end():

    seen = []

    class Both(PreRequest, ResponseObserver):
        pass

    both = plugin_of(
        Both,
        "both",
        before_request=lambda request, result, headers, state: state.private.update(noted=result.primary),
        response_ended=lambda request, end, state: seen.append(dict(state.private)),
    )
    Stage(pre_request=[both], observers=[both]).route().exchange.finish(CloseCause.END)
    assert seen == [{"noted": "default"}]


def end_of(headers, chunks, body=CHAT):
    stage = Stage()
    exchange = stage.route(body).exchange
    exchange.response_headers(headers, None)
    for chunk in chunks:
        exchange.response_chunk(chunk, False)
    exchange.response_chunk(b"", True)
    exchange.finish(CloseCause.END)
    return stage.telemetry.ended[0]


def test_response_size_counts_all_chunks():
    assert [
        end_of(JSON_OK, chunks).response_bytes
        for chunks in ([b"hello world"], [b"chunk1", b"chunk2", b"chunk3"], [b""], [b"data", b"", b"more"])
    ] == [
        11,
        18,
        0,
        8,
    ]


@pytest.mark.parametrize("status", ["", "abc", "²", "1000", "9" * 5000])
def test_invalid_status_counts_as_zero(status):
    assert end_of({":status": status}, []).status == 0


STREAM = (
    b'data: {"choices":[{"delta":{"content":"the word \\"usage\\""}}],"usage":null}\n\n'
    b'data: {"choices":[{"delta":{"content":"usage"}}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":3}}}\n\n'
    b"data: [DONE]\n\n"
)


@given(st.lists(st.integers(0, 10_000), max_size=30), st.sampled_from([b"\n\n", b"\r\n\r\n"]))
def test_stream_usage_is_found_however_it_is_cut(cuts, separator):
    stream = STREAM.replace(b"\n\n", separator)
    assert end_of(SSE_OK, pieces(stream, cuts)).usage == Usage(5, 10, 3)


@given(st.lists(st.integers(0, 10_000), max_size=10))
def test_json_usage_is_found_however_it_is_cut(cuts):
    assert end_of(JSON_OK, pieces(ANSWER, cuts)).usage == Usage(10, 20)


def test_usage_before_a_cut_is_found():
    assert end_of(SSE_OK, [STREAM.partition(b"data: [DONE]")[0].rstrip()]).usage == Usage(5, 10, 3)


def test_unreadable_response_has_no_usage():
    assert end_of(JSON_OK, [b"<html>", b'"usage": nonsense']).usage is None
    assert end_of(SSE_OK, [b'data: "usage" {\n\n']).usage is None


BAD_USAGES = {
    "more than a metric can be": lambda *_: Usage(10**400, 1),
    "raises": lambda body, streaming: 1 / 0,
    "text": lambda *_: "12",
    "no numbers": lambda *_: Usage("1", "2"),
}


@pytest.mark.parametrize("usage", BAD_USAGES.values(), ids=BAD_USAGES.keys())
def test_invalid_usage_is_a_parser_fault(usage):
    parser = parser_of("broken", parse=lambda *_: ParsedRequest(model="m"), usage=usage)
    type(parser.plugin).reads_usage = True
    stage = Stage(parsers=[parser])
    exchange = stage.route().exchange
    exchange.response_headers(JSON_OK, None)
    exchange.response_chunk(ANSWER, True)
    exchange.finish(CloseCause.END)
    assert [(end.cause, end.usage) for end in stage.telemetry.ended] == [(TerminationCause.NATURAL, None)]
    assert [(name, point) for name, point, _ in stage.telemetry.faults] == [("broken", "ResponseParsing")]


def test_observers_add_metadata_at_the_end():
    usages = []

    def cost(request, usage, state):
        usages.append(usage.completion_tokens)
        return {"acme.example": {"tokens": float(usage.completion_tokens)}}

    stage = Stage(
        observers=[
            observer_of("billing", response_metadata=cost),
            observer_of("broken", response_metadata=lambda request, usage, state: 1 / 0),
            observer_of("odd", response_metadata=lambda request, usage, state: {"acme.example": {"x": None}, "y": 1}),
            observer_of("silent", response_metadata=lambda request, usage, state: None),
        ]
    )
    exchange = stage.route().exchange
    exchange.response_headers({":status": "200", "content-type": "application/json"}, None)
    exchange.response_chunk(b'{"usage":{"prompt_tokens":1,"completion_tokens":7}}', True)

    assert exchange.response_metadata() == {"acme.example": {"tokens": 7.0}}
    assert usages == [7]
    assert [name for name, _, _ in stage.telemetry.faults] == ["broken", "odd", "odd"]


@pytest.mark.parametrize(
    ("status", "headers", "cause", "expected"),
    [
        ("503", {}, None, "unnamed"),
        ("503", {"x-envoy-upstream-service-time": "3"}, None, ""),
        ("500", {}, None, ""),
        ("503", {}, "", ""),
        ("503", {}, "no_healthy_upstream", "no_healthy_upstream"),
        ("504", {"x-envoy-upstream-service-time": "3"}, "response_timeout", "response_timeout"),
    ],
)
def test_end_says_if_the_gateway_answered(status, headers, cause, expected):
    ends = []
    stage = Stage(observers=[observer_of(response_ended=lambda request, end, state: ends.append(end))])
    exchange = stage.route().exchange
    exchange.response_headers({":status": status, **headers}, None, cause)
    exchange.finish(CloseCause.END)
    assert [(end.status, end.gateway_error, end.endpoint) for end in ends] == [(int(status), expected, stage.table.generation.endpoints[0])]


def test_end_names_the_endpoint_that_served():
    ends = []
    stage = Stage(observers=[observer_of(response_ended=lambda request, end, state: ends.append(end.endpoint))])
    members = stage.table.generation.endpoints
    for served in (None, members[1].address, "192.0.2.1:1"):
        exchange = stage.route().exchange
        exchange.response_headers({":status": "200"}, served)
        exchange.finish(CloseCause.END)
    assert ends == [members[0], members[1], None]
