"""Timings of a request: endpick's own work, and the gaps between chunks."""

from __future__ import annotations

import json

import pytest

from endpick.requests.model import CloseCause
from unit.requests.stage import CHAT, Stage, observer_of
from unit.requests.test_exchange import ANSWER, JSON_OK, SSE_OK


@pytest.mark.parametrize(("headers", "streaming"), [(JSON_OK, False), (SSE_OK, True)])
@pytest.mark.parametrize("asked", [False, True])
def test_streaming_follows_the_response_headers(headers, streaming, asked):
    stage = Stage()
    exchange = stage.route({**CHAT, "stream": asked}).exchange
    exchange.response_headers(headers, None)
    exchange.response_chunk(ANSWER, True)
    exchange.finish(CloseCause.END)
    assert [pace.streaming for pace in stage.telemetry.paces] == [streaming]


def test_gaps_between_chunks_are_counted():
    stage = Stage()
    exchange = stage.route().exchange
    exchange.response_headers(SSE_OK, None)
    for seconds in (0.4, 0.03, 0.03, 0.18):
        stage.now += seconds
        exchange.response_chunk(b"data: x\n\n", False)
    stage.now += 5
    exchange.response_chunk(b"", True)
    exchange.finish(CloseCause.END)
    [pace] = stage.telemetry.paces
    counts = dict(zip(pace.gaps.bounds, pace.gaps.counts, strict=False))
    assert {bound: count for bound, count in counts.items() if count} == {0.04: 2, 0.2: 1}
    assert pace.gaps.total == pytest.approx(0.24)


def test_gaps_need_two_chunks_of_a_stream():
    for headers, pieces in ((JSON_OK, (ANSWER[:9], ANSWER[9:])), (SSE_OK, (b"data: x\n\n",))):
        stage = Stage()
        exchange = stage.route().exchange
        exchange.response_headers(headers, None)
        for piece in pieces:
            stage.now += 0.1
            exchange.response_chunk(piece, False)
        exchange.finish(CloseCause.END)
        assert [pace.gaps for pace in stage.telemetry.paces] == [None]


def test_processing_time_excludes_the_model_server():
    stage = Stage()

    def started(request, head, state):
        stage.now += 0.125

    def first(request, state):
        stage.now += 0.25

    stage = Stage(observers=[observer_of(response_started=started, first_chunk=first)])
    exchange = stage.route().exchange
    stage.now += 3
    exchange.response_headers(JSON_OK, None)
    stage.now += 4
    exchange.response_chunk(ANSWER, True)
    exchange.finish(CloseCause.END)
    assert [pace.processing_seconds for pace in stage.telemetry.paces] == [0.375]


def test_request_size_is_that_of_the_sent_body():
    stage = Stage()
    body = {**CHAT, "model": "m"}
    routed = stage.route(body, x_llm_d_model_name_rewrite="a-much-longer-name")
    [(*_, size)] = stage.telemetry.decided
    assert size == len(routed.body) > len(json.dumps(body, separators=(",", ":")))


def test_bodiless_request_is_timed_when_complete():
    stage = Stage()
    for cause in (CloseCause.END, CloseCause.RESET):
        exchange = stage.route(body=None, path="/v1/models").exchange
        stage.now += 0.5
        exchange.finish(cause)
        exchange.finish(CloseCause.END)
    assert stage.telemetry.bodiless == [("default-flow", 0.5)]
    assert stage.telemetry.ended == []
