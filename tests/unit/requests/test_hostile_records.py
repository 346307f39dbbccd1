"""What parsers and others answer that only looks like a parsed request, a rejection or a usage is their fault, and reaches no client."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from endpick.api import ParsedRequest, Rejection, Usage
from endpick.extproc.replies import immediate
from endpick.host.boundary import Fault
from endpick.requests.model import CloseCause, Routed
from endpick.requests.waiting import LaterDecision
from unit.oddities import OddText, Own, Unfriendly, half, odd, sly, spoilt
from unit.requests.stage import Stage, admitter_of, before_request_of, header_processor_of, parser_of

PLACES = {
    "Parser": lambda answer: {"parsers": [parser_of("bad", ("/v1/chat/completions",), parse=answer)]},
    "RequestHeaderProcessor": lambda answer: {"header_processors": [header_processor_of(answer, "bad")]},
    "Admitter": lambda answer: {"admitters": [admitter_of(answer, "bad")]},
    "PreRequest": lambda answer: {"pre_request": [before_request_of(answer, "bad")]},
}


def test_names_of_a_class_of_their_own_are_read_as_plain_text():
    stage = Stage(
        parsers=[parser_of("bad", ("/v1/chat/completions",), parse=lambda *_: ParsedRequest(OddText("m"), cache_salt=OddText("s")))]
    )
    decision = stage.decide()
    assert isinstance(decision, Routed)
    assert stage.telemetry.faults == []


class OddRequest(ParsedRequest):
    __slots__ = ()

    @property
    def skip_response(self):
        raise Own("do not look")

    model = needs_model = cache_salt = skip_response


def _changed_afterwards(*_arguments):
    parsed = ParsedRequest("m")
    object.__setattr__(parsed, "model", OddText("m"))
    object.__setattr__(parsed, "cache_salt", OddText("s"))
    return parsed


def test_a_parsed_request_that_was_changed_after_it_was_made_is_read_as_plain_text():
    stage = Stage(parsers=[parser_of("bad", ("/v1/chat/completions",), parse=_changed_afterwards)])
    assert isinstance(stage.decide(), Routed)
    assert stage.telemetry.faults == []


@pytest.mark.parametrize("field", ["model", "cache_salt", "streaming", "needs_model", "skip_response", "max_output_tokens", "prompt"])
def test_a_parsed_request_that_raises_when_it_is_read_is_the_parsers_fault(field):
    class Raises:
        __bool__ = __len__ = __eq__ = __hash__ = odd

    def parse(*_arguments):
        parsed = ParsedRequest("m", max_output_tokens=1)
        object.__setattr__(parsed, field, Raises())
        return parsed

    stage = Stage(parsers=[parser_of("bad", ("/v1/chat/completions",), parse=parse)])
    assert not isinstance(stage.decide(), Routed)
    assert [fault[0] for fault in stage.telemetry.faults] == ["bad"]


def test_a_kind_of_parsed_request_that_raises_when_it_is_read_is_the_parsers_fault():
    stage = Stage(parsers=[parser_of("bad", ("/v1/chat/completions",), parse=lambda *_: object.__new__(OddRequest))])
    assert not isinstance(stage.decide(), Routed)
    assert [fault[0] for fault in stage.telemetry.faults] == ["bad"]


ODD_REJECTIONS = {
    "raises": lambda: sly(Rejection, "message", "status", "reason"),
    "empty": lambda: half(Rejection),
    "a status that is no number": lambda: spoilt(Rejection("no", 403), status=None),
    "a status that is none of an error": lambda: spoilt(Rejection("no", 403), status=10**30),
    "a message that is no text": lambda: spoilt(Rejection("no", 403), message=None),
    "a reason of two lines": lambda: spoilt(Rejection("no", 403), reason="a\r\nb: c"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ODD_REJECTIONS)
def test_a_rejection_that_is_not_what_it_has_to_be_is_a_fault_of_the_plugin(place, kind):
    stage = Stage(**PLACES[place](lambda *_arguments: ODD_REJECTIONS[kind]()))
    decision = stage.decide()
    assert isinstance(decision, Routed) if place == "PreRequest" else decision.status == 500
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


def test_a_rejection_with_texts_of_classes_of_their_own_is_told_as_plain_text():
    stage = Stage(
        admitters=[admitter_of(lambda *_: spoilt(Rejection("no", 403), message=OddText("no"), reason=OddText("because")), "strict")]
    )
    refusal = stage.refuse()
    assert (type(refusal.message), refusal.message, refusal.reason) == (str, "no", "because")
    assert stage.telemetry.faults == []


@pytest.mark.parametrize(
    "answer",
    [
        lambda: half(Usage),
        lambda: spoilt(Usage(1, 2, 3), prompt_tokens="x"),
        lambda: spoilt(Usage(1, 2, 3), cached_tokens=Unfriendly(1.0)),
        lambda: Usage(-1, 1),
        lambda: Usage(1, 1, -1),
    ],
)
def test_usage_that_is_not_what_it_has_to_be_is_the_parsers_fault(answer):
    bad = parser_of("bad", ("/v1/chat/completions",), parse=lambda *_: ParsedRequest("m"), usage=lambda *_: answer())
    type(bad.plugin).reads_usage = True
    stage = Stage(parsers=[bad])
    exchange = stage.route().exchange
    exchange.response_headers({":status": "200", "content-type": "application/json"}, None)
    exchange.response_chunk(b'{"usage":{}}', True)
    exchange.finish(CloseCause.END)
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]
    assert stage.telemetry.ended[0].usage is None


def test_a_refusal_with_half_a_surrogate_pair_reaches_the_client():
    stage = Stage(admitters=[admitter_of(lambda *_: Rejection("no \ud800", 403), "strict")])
    assert b"no ?" in immediate(stage.refuse())


class Unwilling(ParsedRequest):
    @property
    def payload(self):
        raise SystemExit("not again")


def test_what_a_parser_answers_when_a_body_is_read_again_is_looked_at_under_a_guard():
    told = []
    step = SimpleNamespace(
        run=lambda *_arguments: object.__new__(Unwilling), fault=lambda problem: told.append(problem) or Fault("bad", "no", refuses=True)
    )
    waiting = SimpleNamespace(
        _incoming=SimpleNamespace(headers={}, body=b""),
        _room=SimpleNamespace(access=None),
        built=SimpleNamespace(parser=SimpleNamespace(parse=step), request=SimpleNamespace(path="/v1/completions")),
    )

    assert LaterDecision.read_again(waiting).message == "plugin 'bad' failed"
    assert len(told) == 1
