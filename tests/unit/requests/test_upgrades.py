"""Upgrades and unread bodies take the whole pipeline without a body."""

from __future__ import annotations

import pytest

from endpick.api import Parser, Usage
from endpick.api.keys import INFLIGHT_REQUESTS
from endpick.requests.model import CloseCause, IncomingRequest, Routed, is_upgrade
from endpick_builtin.producers.inflight_load import InflightLoadProducer
from unit.requests.stage import CHAT, JSON_OK, Stage, before_request_of, parser_of
from unit.scheduling.workbench import instance, pool

WEBSOCKET = {":method": "GET", ":path": "/v1/realtime", "connection": "keep-alive, Upgrade", "upgrade": "websocket"}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (WEBSOCKET, True),
        ({"connection": "upgrade", "upgrade": "spdy/3.1"}, True),
        ({":method": "CONNECT"}, True),
        ({":method": "CONNECT", ":protocol": "websocket", ":path": "/v1/realtime"}, True),
        ({":method": "GET", ":protocol": "websocket"}, True),
        ({":method": "POST"}, False),
        ({"upgrade": "websocket"}, False),
        ({"connection": "keep-alive", "upgrade": "websocket"}, False),
        ({"connection": "Upgrade, HTTP2-Settings", "upgrade": "h2c"}, False),
    ],
)
def test_upgrade_is_recognised(headers, expected):
    assert is_upgrade(headers) is expected


@pytest.mark.parametrize(
    ("headers", "wants"),
    [
        ({":path": "/v1/chat/completions"}, True),
        ({":path": "/v1/chat/completions?x=1"}, True),
        ({":path": "/v1/rerank"}, False),
        ({":path": "/v1/chat/completions", **WEBSOCKET}, False),
        ({":method": "CONNECT", ":path": "/v1/chat/completions"}, False),
    ],
)
def test_body_is_awaited_only_for_a_parser_that_reads_it(headers, wants):
    assert Stage().director.wants_body({":method": "POST", **headers}) is wants


def unread(stage: Stage, headers) -> object:
    return stage.director.decide(IncomingRequest(headers, None, None, stage.now, unread=True))


def test_upgrade_is_scheduled_and_in_flight_until_its_end():
    seen = []
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: seen.append(request))])
    routed = unread(stage, WEBSOCKET)
    assert isinstance(routed, Routed)
    assert [(request.path, request.model, request.size_bytes) for request in seen] == [("/v1/realtime", "", 0)]
    assert routed.exchange.response_headers({":status": "101"}, None) == {}
    assert routed.exchange.response_chunk(b'\x81{"usage":{"prompt_tokens":1}}', False) is None
    assert stage.telemetry.ended == []
    routed.exchange.finish(CloseCause.END)
    (end,) = stage.telemetry.ended
    assert (end.status, end.usage, end.response_bytes) == (101, None, 30)


def test_upgrade_counts_as_load_until_its_end():
    table = pool(size=1)
    producer = instance(InflightLoadProducer, columns=table.writer(instance(InflightLoadProducer).scope))
    stage = Stage(table=table, observers=[producer], producers=[producer], pre_request=[producer])

    def load() -> list[float]:
        return table.view(stage.director.access)[INFLIGHT_REQUESTS].tolist()

    routed = unread(stage, WEBSOCKET)
    for chunk in (b"", b"frame", b"frame"):
        assert load() == [1.0]
        routed.exchange.response_headers({":status": "101"}, None)
        routed.exchange.response_chunk(chunk, False)
    routed.exchange.finish(CloseCause.END)
    assert load() == [0.0]


def test_upgrade_without_endpoints_is_refused():
    stage = Stage()
    for endpoint in list(stage.table.generation.endpoints):
        stage.table.remove(endpoint.name)
    assert unread(stage, WEBSOCKET).status == 503


def test_unread_path_reports_size_and_usage():
    stage = Stage()
    routed = unread(stage, {":method": "POST", ":path": "/v1/rerank", "content-length": "123"})
    routed.exchange.response_headers(JSON_OK, None)
    routed.exchange.response_chunk(b'{"results":[],"usage":{"total_tokens":56}}', True)
    routed.exchange.finish(CloseCause.END)
    assert stage.telemetry.decided[0][-1] == 123
    assert stage.telemetry.ended[0].usage == Usage(56, 0)


def test_path_without_parser_is_refused_at_the_headers():
    stage = Stage(parsers=[parser_of("only", ("/chat",))])
    headers = {":method": "POST", ":path": "/other"}
    assert not stage.director.wants_body(headers)
    refused = unread(stage, headers)
    assert (refused.status, refused.message) == (400, "no parser is configured for path '/other'")


def test_parser_reads_bodies_unless_it_says_otherwise():
    assert Parser.reads_body
    assert Stage().route(CHAT)
