"""From HTTP request to inference request: parsers, model rewrites, ids and limits."""

from __future__ import annotations

import json
from uuid import UUID

import pytest

from endpick.api import ParsedRequest
from endpick.requests.model import Refused
from endpick_builtin.parsers.openai import OpenAIParser, PassthroughParser
from unit.requests.stage import CHAT, Stage, before_request_of, parser_of
from unit.scheduling.workbench import instance


def test_unchanged_body_is_not_replaced():
    assert Stage().route().body is None


@pytest.mark.parametrize("header", ["x_llm_d_model_name_rewrite", "x_gateway_model_name_rewrite"])
def test_rewrite_header_changes_the_model(header):
    seen = []
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: seen.append(request))])
    body = b'{ "model" : "a", "messages": [{"role":"user","content":"hi"}], "n": 12345678901234567890 }'
    routed = stage.route(body, **{header: "b"})
    assert json.loads(routed.body) == {**json.loads(body), "model": "b"}
    assert list(json.loads(routed.body)) == ["model", "messages", "n"]
    assert [(request.incoming_model, request.model) for request in seen] == [("a", "b")]
    assert stage.telemetry.decided[0][:2] == ("a", "b")


def test_rewrite_header_adds_a_missing_model():
    routed = Stage().route({"prompt": "x"}, path="/v1/completions", x_llm_d_model_name_rewrite="b")
    assert json.loads(routed.body) == {"model": "b", "prompt": "x"}


def test_passthrough_body_needs_no_model():
    stage = Stage(parsers=[instance(PassthroughParser)])
    assert stage.route(b"passthrough-parser").body is None
    assert stage.route(b"passthrough-parser", x_llm_d_model_name_rewrite="b").body is None
    assert [decided[:2] for decided in stage.telemetry.decided] == [("", ""), ("", "b")]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "hello world"}, "model not found in request body"),
        ({"model": "", "prompt": "hello world"}, "model not found in request body"),
        ({"model": "m"}, "invalid completions request: must have prompt field"),
    ],
)
def test_incomplete_request_is_400(body, message):
    stage = Stage()
    assert stage.refuse(body, path="/v1/completions") == Refused(400, "BadRequest", message)
    assert [code for _, code in stage.telemetry.refused] == ["BadRequest"]


def test_invalid_json_is_400():
    refused = Stage().refuse(b"no healthy upstream")
    assert (refused.status, refused.code) == (400, "BadRequest")
    assert refused.message.startswith("error unmarshaling request bodyMap: ")


@pytest.mark.parametrize(
    ("path", "headers", "parser"),
    [
        ("/v1/chat/completions", {}, "chat"),
        ("/v1/chat/completions?beta=true", {}, "chat"),
        ("/deep/v1/completions", {}, "completions"),
        ("", {"x_original_path": "/v1/chat/completions"}, "chat"),
        ("", {"x_forwarded_path": "/v1/chat/completions"}, "chat"),
        ("", {}, "completions"),
        ("/nothing/known", {}, "fallback"),
        ("/v1/badchat/completions", {}, "completions"),
        ("/v1/xcompletions", {}, "fallback"),
    ],
)
def test_longest_claimed_suffix_selects_the_parser(path, headers, parser):
    asked = []

    def parsing(name):
        def parse(path, headers, body):
            asked.append(name)
            return ParsedRequest(model="m")

        return parse

    claims = {"completions": ("/completions",), "chat": ("/chat/completions",), "fallback": (), "too-late": ("/chat/completions", "/late")}
    stage = Stage(parsers=[parser_of(name, suffixes, parse=parsing(name)) for name, suffixes in claims.items()])
    stage.route(b"{}", path=path, **headers)
    assert asked == [parser]


def test_unclaimed_path_is_400():
    refused = Stage(parsers=[instance(OpenAIParser)]).refuse(CHAT, path="/v1/rerank")
    assert refused == Refused(400, "BadRequest", "no parser is configured for path '/v1/rerank'")


BAD_PARSES = {
    "raises": lambda path, headers, body: 1 / 0,
    "nothing": lambda path, headers, body: None,
    "a model that is no text": lambda path, headers, body: ParsedRequest(model=b"m"),
}


@pytest.mark.parametrize("parse", BAD_PARSES.values(), ids=BAD_PARSES.keys())
def test_parser_fault_is_500_without_details(parse):
    stage = Stage(parsers=[parser_of("broken", parse=parse)])
    assert stage.refuse() == Refused(500, "Internal", "plugin 'broken' failed")
    assert [(name, point) for name, point, _ in stage.telemetry.faults] == [("broken", "RequestParsing")]


BAD_REWRITES = {"raises": lambda *_: 1 / 0, "text": lambda *_: "{}", "nothing": lambda *_: None}


@pytest.mark.parametrize("rewrite", BAD_REWRITES.values(), ids=BAD_REWRITES.keys())
def test_rewrite_fault_is_500_without_details(rewrite):
    stage = Stage(parsers=[parser_of("broken", parse=lambda *_: ParsedRequest(model="a"), rewrite_model=rewrite)])
    assert stage.refuse(x_llm_d_model_name_rewrite="b") == Refused(500, "Internal", "plugin 'broken' failed")
    assert [(name, point) for name, point, _ in stage.telemetry.faults] == [("broken", "RequestParsing")]


def test_missing_request_id_is_generated():
    stage = Stage()
    generated = {stage.route(body).set_headers["x-request-id"] for body in (CHAT, CHAT, None)}
    assert len(generated) == 3
    assert all(UUID(one) for one in generated)
    assert "x-request-id" not in stage.route(x_request_id="mine").set_headers
    assert "x-request-id" not in stage.route(None, x_request_id="mine").set_headers


@pytest.mark.parametrize(
    ("headers", "fairness_id"),
    [
        ({}, "default-flow"),
        ({"x_gateway_inference_fairness_id": "old"}, "old"),
        ({"x_llm_d_inference_fairness_id": "new", "x_gateway_inference_fairness_id": "old"}, "new"),
        ({"x_llm_d_inference_fairness_id": ""}, "default-flow"),
    ],
)
def test_fairness_id_has_two_headers(headers, fairness_id):
    stage = Stage()
    stage.route(**headers)
    assert stage.telemetry.decided[0][2] == fairness_id


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"model": "{}"}, {}),
        ({"cache_salt": "{}"}, {}),
        ({}, {"x_llm_d_model_name_rewrite": "{}"}),
        ({}, {"x_llm_d_inference_fairness_id": "{}"}),
    ],
)
def test_names_are_limited_to_1024_characters(body, headers):
    def named(length):
        return {**CHAT, **dict.fromkeys(body, "n" * length)}, dict.fromkeys(headers, "n" * length)

    stage = Stage()
    long, long_headers = named(1025)
    assert stage.refuse(long, **long_headers).status == 400
    short, short_headers = named(1024)
    assert stage.route(short, **short_headers).destinations


def test_plugins_see_no_pseudo_headers():
    seen = []
    Stage(pre_request=[before_request_of(lambda request, result, headers: seen.append(dict(request.headers)))]).route(x_mine="1")
    assert seen == [{"x-mine": "1"}]
