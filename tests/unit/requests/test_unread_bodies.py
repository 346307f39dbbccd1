"""A failing parser that may be skipped: bodies pass unread, unless their model has to change."""

from __future__ import annotations

import json

import pytest

from endpick.api import ParsedRequest, Rejection
from endpick.api.discovery import ModelRewrite, ModelTarget
from endpick.data.model_rules import ModelRules
from endpick.host.breaker import DEFAULT_SETTINGS
from endpick.host.kinds import OnFault
from endpick.requests.director import Director
from endpick.requests.model import CloseCause, Refused
from unit.requests.stage import CHAT, JSON_OK, Stage, observer_of, parser_of, producer_of

PATHS = ("/v1/chat/completions",)
NO_EXCHANGE = Refused(500, "Internal", "plugin 'odd' failed, and the model cannot be changed in a body that was not read")
RULES = {"for all": ModelRewrite((), (ModelTarget("n"),)), "for another": ModelRewrite(("other",), (ModelTarget("n"),))}


def fail(*_arguments):
    raise LookupError("gone")


def odd(on_fault: OnFault = OnFault.SKIP, **methods):
    return parser_of("odd", PATHS, on_fault, **{"parse": fail, **methods})


def with_rule(stage: Stage, rule: ModelRewrite) -> None:
    rules = ModelRules()
    rules.discovered([rule])
    stage.director = Director(stage.pipeline, stage.table, stage.telemetry, lambda: stage.now, rules=rules)


@pytest.mark.parametrize("parse", [fail, lambda *_: "nonsense", lambda *_: None], ids=["raises", "answers text", "answers nothing"])
def test_unread_request_is_routed_without_reading_usage(parse):
    seen, read, ended = [], [], []
    stage = Stage(
        parsers=[odd(parse=parse, usage=lambda *arguments: read.append(arguments))],
        producers=[producer_of(lambda request, endpoints, state: seen.append(request))],
        observers=[observer_of("o", response_ended=lambda request, end, state: ended.append(end))],
    )
    decision = stage.route()
    assert decision.body is None
    (request,) = seen
    assert (request.model, request.incoming_model, request.prompt.texts, request.payload) == ("", "", (), None)
    assert request.size_bytes == len(json.dumps(CHAT).encode())
    decision.exchange.response_headers(JSON_OK, None)
    decision.exchange.response_chunk(b'{"model":"m","usage":{"prompt_tokens":1}}', True)
    decision.exchange.finish(CloseCause.END)
    assert (read, [end.usage for end in ended]) == ([], [None])
    assert [(name, point) for name, point, _ in stage.telemetry.faults] == [("odd", "RequestParsing")]


def test_parser_rejections_are_no_faults():
    stage = Stage(parsers=[odd(parse=lambda *_: Rejection("not mine"))])
    for _ in range(3 * DEFAULT_SETTINGS.faults):
        assert stage.refuse().message == "not mine"
    assert stage.telemetry.faults == stage.telemetry.circuits == []


def test_requests_pass_unread_while_the_circuit_is_open():
    instance = odd()
    stage = Stage(parsers=[instance])
    for _ in range(DEFAULT_SETTINGS.faults + 7):
        stage.route()
    assert len(stage.telemetry.faults) == DEFAULT_SETTINGS.faults
    assert stage.telemetry.outs == [("odd", "RequestParsing")] * 7


def test_decision_record_explains_an_unread_body():
    stage = Stage(parsers=[odd()], records=True)
    stage.route().exchange.finish(CloseCause.END)
    assert [record.unread for record in stage.records] == ["plugin 'odd' failed: LookupError: gone"]


def test_rewrite_header_refuses_an_unread_body():
    stage = Stage(parsers=[odd()])
    assert stage.refuse(x_llm_d_model_name_rewrite="n") == NO_EXCHANGE
    assert len(stage.telemetry.faults) == 1


@pytest.mark.parametrize("rule", RULES)
def test_rewrite_rule_refuses_an_unread_body(rule):
    stage = Stage(parsers=[odd()])
    with_rule(stage, RULES[rule])
    assert stage.refuse() == NO_EXCHANGE


def test_failed_rewrite_refuses_the_request():
    stage = Stage(parsers=[odd(parse=lambda *_: ParsedRequest("m"), rewrite_model=fail)])
    assert stage.refuse(x_llm_d_model_name_rewrite="n") == Refused(500, "Internal", "plugin 'odd' failed")
    assert stage.route().body is None


def test_parser_with_on_fault_refuse_refuses():
    assert Stage(parsers=[odd(OnFault.REFUSE)]).refuse() == Refused(500, "Internal", "plugin 'odd' failed")
