"""A parser that may be skipped, and fails: its requests go on with their bodies unread, unless its model would have to change."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from endpick.requests.large import BodyRead, ElsewhereError, ParserFailed
from unit.requests.test_large_bodies import LARGE, Elsewhere

from endpick.api import ModelRewrite, ModelTarget, ParsedRequest, Rejection
from endpick.data.model_rules import ModelRules
from endpick.host.breaker import DEFAULT_SETTINGS, Breaker, BreakerSettings
from endpick.host.kinds import OnFault
from endpick.requests.director import Director
from endpick.requests.model import CloseCause, Refused, Routed
from endpick.scheduling.trace import UNREAD, sampled
from unit.oddities import Own
from unit.requests.stage import CHAT, JSON_OK, Stage, observer_of, parser_of, producer_of

PATHS = ("/v1/chat/completions",)
NO_EXCHANGE = Refused(500, "Internal", "plugin 'odd' failed, and no model can be exchanged in a body that was not read")
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
def test_a_request_goes_on_unread_and_its_answer_is_not_read_either(parse):
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


def test_what_a_parser_rejects_is_no_fault_however_often():
    stage = Stage(parsers=[odd(parse=lambda *_: Rejection("not mine"))])
    for _ in range(3 * DEFAULT_SETTINGS.faults):
        assert stage.refuse().message == "not mine"
    assert stage.telemetry.faults == stage.telemetry.circuits == []


def test_requests_go_on_unread_while_the_circuit_is_open():
    instance = odd()
    stage = Stage(parsers=[instance])
    for _ in range(DEFAULT_SETTINGS.faults + 7):
        stage.route()
    assert len(stage.telemetry.faults) == DEFAULT_SETTINGS.faults
    assert stage.telemetry.outs == [("odd", "RequestParsing")] * 7


def test_the_decision_record_says_why_the_body_was_not_read():
    shown = []
    stage = Stage(parsers=[odd()])
    stage.pipeline = replace(stage.pipeline, scheduler=sampled(stage.pipeline.scheduler, lambda: True, shown.append))
    stage.director.switch(stage.pipeline)
    stage.route()
    assert [record.unread for record in shown] == ["plugin 'odd' failed: LookupError: gone"]


def test_a_request_for_which_the_client_asks_for_another_model_is_refused():
    stage = Stage(parsers=[odd()])
    assert stage.refuse(x_llm_d_model_name_rewrite="n") == NO_EXCHANGE
    assert len(stage.telemetry.faults) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_request_that_any_rewrite_may_be_for_is_refused(rule):
    stage = Stage(parsers=[odd()])
    with_rule(stage, RULES[rule])
    assert stage.refuse() == NO_EXCHANGE


def test_a_request_whose_model_cannot_be_exchanged_is_refused_though_the_parser_may_be_skipped():
    stage = Stage(parsers=[odd(parse=lambda *_: ParsedRequest("m"), rewrite_model=fail)])
    assert stage.refuse(x_llm_d_model_name_rewrite="n") == Refused(500, "Internal", "plugin 'odd' failed")
    assert stage.route().body is None


def test_a_parser_that_may_not_be_skipped_refuses_its_requests():
    assert Stage(parsers=[odd(OnFault.REFUSE)]).refuse() == Refused(500, "Internal", "plugin 'odd' failed")


def elsewhere(answer: object, **keywords) -> Stage:
    """A stage whose large bodies another process reads, which says this of them."""
    stage, reader = Stage(parsers=[odd()], **keywords), Elsewhere(answer)
    stage.director = Director(stage.pipeline, stage.table, stage.telemetry, lambda: stage.now, large_bodies=reader)
    reader.release.set()
    return stage


@pytest.mark.asyncio
async def test_a_large_body_that_the_parser_fails_to_read_elsewhere_goes_on_unread():
    left = []
    stage = elsewhere(
        ParserFailed("parse", ElsewhereError("no"), 0.1), producers=[producer_of(lambda _, __, state: left.append(state.get(UNREAD)))]
    )
    decision = await stage.decide(LARGE)
    assert isinstance(decision, Routed)
    assert decision.body is None
    assert left == ["plugin 'odd' failed: ElsewhereError: no"]
    assert await stage.decide(LARGE, x_llm_d_model_name_rewrite="n") == NO_EXCHANGE
    assert len(stage.telemetry.faults) == 2


@pytest.mark.asyncio
async def test_a_large_body_in_which_the_model_cannot_be_exchanged_is_refused():
    stage = elsewhere(ParserFailed("rewrite_model", ElsewhereError("no"), 0.1))
    assert await stage.decide(LARGE, x_llm_d_model_name_rewrite="n") == Refused(500, "Internal", "plugin 'odd' failed")


@pytest.mark.asyncio
async def test_a_large_body_goes_on_unread_while_the_circuit_is_open():
    instance = replace(odd(), breaker=Breaker(BreakerSettings(faults=1), lambda: 0.0))
    stage, reader = Stage(parsers=[instance]), Elsewhere(BodyRead(ParsedRequest("m"), None, 0.1))
    stage.director = Director(stage.pipeline, stage.table, stage.telemetry, lambda: stage.now, large_bodies=reader)
    stage.route()
    assert isinstance(await stage.decide(LARGE), Routed)
    assert reader.asked == []
    assert stage.telemetry.outs == [("odd", "RequestParsing")]


def test_an_answer_that_raises_when_it_is_looked_at_leaves_the_body_unread():
    class OddParsed(ParsedRequest):
        @property
        def model(self):
            raise Own("do not look")

    stage = Stage(parsers=[odd(parse=lambda *_: object.__new__(OddParsed))])
    stage.route()
    assert len(stage.telemetry.faults) == 1
