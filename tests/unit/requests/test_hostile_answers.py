"""Answers that look like what was asked for: halves of an API's own classes, subclasses that answer otherwise, prompts that fail later."""

from __future__ import annotations

import asyncio
import itertools

import numpy as np
import pytest

from endpick.api import DisaggregationDecider, ParsedRequest, Prompt, Rejection, Scorer, Usage
from endpick.api.endpoints import Endpoints
from endpick.api.state import CycleState
from endpick.host.kinds import OnFault
from endpick.host.proxies import proxy_for
from endpick.requests.intake import MOST_ADDED
from endpick.requests.model import CloseCause, Refused, Routed
from unit.oddities import OddText, Own, half, odd, sly, spoilt
from unit.requests.stage import (
    JSON_OK,
    Stage,
    admitter_of,
    async_producer_of,
    before_request_of,
    candidate_filter_of,
    header_processor_of,
    observer_of,
    parser_of,
    producer_of,
)
from unit.scheduling.workbench import REQUEST, Recording, access, filter_of, picker_of, plugin_of, pool

CHAT = ("/v1/chat/completions",)


class OddNumber(int):
    __eq__ = __le__ = __ge__ = __lt__ = __gt__ = __add__ = __int__ = odd
    __hash__ = odd


REFUSALS = {
    "half": lambda: half(Rejection),
    "sly": lambda: sly(Rejection, "message", "status", "reason"),
    "a status that is a text": lambda: spoilt(Rejection("no"), status="429"),
    "a status that is none": lambda: spoilt(Rejection("no"), status=10**400),
    "a reason with a line end": lambda: spoilt(Rejection("no"), reason="a\r\nb: c"),
}
REFUSING = {
    "parser": lambda answer: {"parsers": [parser_of("bad", CHAT, parse=answer)]},
    "header processor": lambda answer: {"header_processors": [header_processor_of(answer, "bad")]},
    "admitter": lambda answer: {"admitters": [admitter_of(answer, "bad")]},
    "pre-request": lambda answer: {"pre_request": [before_request_of(answer, "bad", OnFault.REFUSE)]},
}


@pytest.mark.parametrize("answer", REFUSALS)
@pytest.mark.parametrize("place", REFUSING)
def test_a_rejection_that_is_none_is_a_fault_of_who_answers_it(place, answer):
    stage = Stage(**REFUSING[place](lambda *_: REFUSALS[answer]()))

    assert stage.refuse() == Refused(500, "Internal", "plugin 'bad' failed")
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


@pytest.mark.parametrize("place", REFUSING)
def test_a_rejection_of_odd_texts_and_numbers_is_told_as_plain_ones(place):
    rejection = spoilt(Rejection("no", 403), message=OddText("no"), status=OddNumber(403), reason=OddText("why"))
    refusal = Stage(**REFUSING[place](lambda *_: rejection)).refuse()

    assert (refusal.status, refusal.message, refusal.reason) == (403, "no", "why")
    assert {type(refusal.message), type(refusal.reason)} == {str}


class OwnView(Endpoints):
    """A view that answers otherwise when others look at it."""

    members = property(odd)


def own_view(endpoints):
    return OwnView(endpoints._generation, np.array([0]), endpoints._access)


VIEWS = {
    "Picker": lambda answer: {"picker": picker_of(lambda scored: answer(scored.endpoints), "bad", OnFault.SKIP)},
    "Filter": lambda answer: {"filters": [filter_of(answer, "bad", OnFault.SKIP)]},
    "CandidateFilter": lambda answer: {"candidate_filters": [candidate_filter_of(answer, "bad", OnFault.SKIP)]},
}


@pytest.mark.parametrize("answer", [own_view, lambda _: half(Endpoints), lambda _: sly(Endpoints, "_size")], ids=["own", "half", "sly"])
@pytest.mark.parametrize("place", VIEWS)
def test_a_view_of_an_own_class_is_a_fault_and_skipped(place, answer):
    stage = Stage(**VIEWS[place](answer))

    assert isinstance(stage.decide(), Routed)
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


def stubborn_coroutine(*_arguments):
    async def never():
        while True:
            try:
                await asyncio.sleep(0)
            except GeneratorExit:
                continue

    begun = never()
    begun.send(None)
    return begun


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_coroutine_that_has_begun_and_does_not_end_is_a_fault_of_the_producer():
    stage = Stage(producers=[producer_of(stubborn_coroutine, "bad")])

    assert isinstance(stage.decide(), Routed)
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


THROWN = (GeneratorExit(), Own("own kind"), BaseExceptionGroup("g", [Own()]), StopAsyncIteration(), MemoryError())


@pytest.mark.asyncio
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("thrown", THROWN, ids=lambda thrown: type(thrown).__name__)
async def test_what_no_library_knows_is_a_fault_of_the_producer_that_throws_it(thrown, waits):
    async def throw(request, endpoints, state):
        if waits:
            await asyncio.sleep(0)
        raise thrown

    stage = Stage(producers=[async_producer_of(throw, "bad")])
    assert isinstance(await stage.decide(), Routed)
    assert stage.telemetry.faults == [("bad", "DataProducer", f"{type(thrown).__name__}: {thrown}")]


@pytest.mark.asyncio
async def test_producers_that_swallow_their_cancellation_hold_up_no_request_and_are_not_asked_for_ever(monkeypatch):
    monkeypatch.setattr("endpick.requests.producing.MOST_ENDLESS", 2)
    release, asked = asyncio.Event(), []

    async def swallow(request, endpoints, state):
        asked.append(request.id)
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    stage = Stage(producers=[async_producer_of(swallow, "bad", timeout_seconds=0.01)])
    for _ in range(4):
        assert isinstance(await stage.decide(), Routed)
    assert len(asked) == 2
    assert [problem for *_, problem in stage.telemetry.faults] == [
        *["took longer than 0.01 s"] * 2,
        *["is not asked: 2 calls of it have not ended since they were cancelled"] * 2,
    ]
    release.set()
    await asyncio.wait([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])


def prompt_reader(name):
    """A scorer that reads the prompt in all ways there are."""

    def score(request, endpoints, _state):
        assert b"".join(request.prompt.texts) is not None
        assert request.prompt.estimated_tokens >= 0
        assert len(request.prompt.pieces) == len(request.prompt.texts) or not request.prompt.pieces
        assert isinstance(request.prompt.media, tuple)
        return np.ones(len(endpoints))

    return plugin_of(Scorer, name, score=score)


PROMPTS = {
    "raises": lambda: Prompt(odd),
    "raises in its pieces": lambda: Prompt(lambda: (b"x",), odd),
    "renders nothing": lambda: Prompt(lambda: None),
    "renders texts": lambda: Prompt(lambda: ("x",)),
    "renders pieces of nothing": lambda: Prompt(lambda: (b"x",), lambda: ((5,),)),
    "renders without an end": lambda: Prompt(lambda: iter(int, 1)),
    "is half": lambda: half(Prompt),
    "is of an own class": lambda: sly(Prompt, "texts", "pieces", "media"),
    "exits": lambda: Prompt(lambda: (_ for _ in ()).throw(SystemExit(3))),
}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_a_prompt_that_cannot_be_rendered_is_the_parsers_fault_and_not_the_readers(prompt):
    parser = parser_of("bad", CHAT, OnFault.SKIP, parse=lambda *_: ParsedRequest("m", PROMPTS[prompt]()))
    stage = Stage(parsers=[parser], scorers=[(prompt_reader("reader"), 1.0)])

    assert isinstance(stage.decide(), Routed)
    assert {name for name, *_ in stage.telemetry.faults} == {"bad"}


def test_a_prompt_that_cannot_be_rendered_refuses_the_request_where_the_parser_must_not_fail():
    parser = parser_of("bad", CHAT, OnFault.REFUSE, parse=lambda *_: ParsedRequest("m", Prompt(odd)))
    stage = Stage(parsers=[parser], scorers=[(prompt_reader("reader"), 1.0)])

    assert stage.refuse().status == 500
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


USAGES = {
    "half": lambda: half(Usage),
    "spoilt": lambda: spoilt(Usage(1, 1), prompt_tokens=None),
    "below nothing": lambda: Usage(-5, 1),
    "without bounds": lambda: Usage(1, 10**400),
    "odd": lambda: spoilt(Usage(1, 1), completion_tokens=OddNumber(1)),
}


@pytest.mark.parametrize("usage", USAGES)
def test_a_usage_that_is_none_is_the_parsers_fault(usage):
    parser = parser_of("bad", CHAT, parse=lambda *_: ParsedRequest("m"), usage=lambda *_: USAGES[usage]())
    type(parser.plugin).reads_usage, type(parser.plugin).usage_mark = True, b""
    stage = Stage(parsers=[parser])
    exchange = stage.route().exchange
    exchange.response_headers(JSON_OK, None)
    exchange.response_chunk(b"{}", True)
    exchange.finish(CloseCause.END)

    assert stage.telemetry.ended[0].usage is None
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


HEADERS = {
    "odd name": lambda headers: headers.set(OddText("x-a"), "v"),
    "line end": lambda headers: headers.set("x-a", "v\r\nx-b: c"),
    "blank in its name": lambda headers: headers.set("x a", "v"),
    "no name": lambda headers: headers.set("", "v"),
    "bracket in its name": lambda headers: headers.set("x-a(b)", "v"),
    "half a surrogate pair": lambda headers: headers.set("x-a", "\ud800"),
    "metadata without bounds": lambda headers: headers.set_metadata("n", "k", 10**400),
}


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_no_gateway_would_take_is_a_fault_of_who_sets_it(header):
    stage = Stage(pre_request=[before_request_of(lambda _request, _result, headers: HEADERS[header](headers), "bad")])
    routed = stage.route()

    assert "x-a" not in routed.set_headers
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


def test_a_header_that_compares_as_it_likes_is_set_as_plain_text():
    class Plain(str):
        __eq__ = odd
        __hash__ = str.__hash__

    stage = Stage(pre_request=[before_request_of(lambda _request, _result, headers: headers.set("x-a", Plain("v")), "fine")])

    assert {type(value) for value in stage.route().set_headers.values()} == {str}
    assert stage.telemetry.faults == []


def test_what_plugins_add_to_a_request_has_a_measure():
    def many(_request, _result, headers):
        for number in range(100_000):
            headers.set(f"x-{number}", "v")

    stage = Stage(pre_request=[before_request_of(many, "bad")])
    routed = stage.route()

    assert sum(len(name) + len(value) for name, value in routed.set_headers.items()) < 2 * MOST_ADDED
    (fault,) = stage.telemetry.faults
    assert fault[2] == "ValueError: plugins add more than 65536 characters of headers and metadata to the request"


class Unending(dict):
    """A mapping whose entries have no end."""

    def items(self):
        return ((f"x-{number}", "v") for number in itertools.count())


class WrongForEver(dict):
    """As `Unending`, and none of the entries is right."""

    def items(self):
        return zip(itertools.count(), itertools.count(), strict=True)


@pytest.mark.parametrize("answer", [Unending, WrongForEver, lambda: {"x-a": "v" * 100_000}], ids=["unending", "wrong", "long"])
@pytest.mark.parametrize("method", ["response_started", "response_metadata"])
def test_what_an_observer_adds_has_a_measure(method, answer):
    made = answer()
    stage = Stage(observers=[observer_of("bad", **{method: lambda *_: made if method == "response_started" else {"n": made}})])
    exchange = stage.route().exchange
    added = exchange.response_headers(JSON_OK, None)
    exchange.response_chunk(b"{}", True)
    told = exchange.response_metadata()

    assert sum(map(len, added)) <= MOST_ADDED
    assert sum(map(len, told.get("n", {}))) <= MOST_ADDED
    assert stage.telemetry.faults[-1][2] == "ValueError: answered more than 65536 characters"
    assert len(stage.telemetry.faults) <= 66


def test_a_response_header_that_no_gateway_would_take_is_a_fault():
    stage = Stage(observers=[observer_of("bad", response_started=lambda *_: {"x-a": "v\r\nx-b: c"})])

    assert stage.route().exchange.response_headers(JSON_OK, None) == {}
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


def test_of_a_refusal_the_client_reads_a_sentence():
    refusal = Stage(admitters=[admitter_of(lambda *_: Rejection("no " * 1_000_000, 403), "strict")]).refuse()

    assert len(refusal.message) == 4096


def test_what_a_decider_takes_or_answers_is_not_blamed_on_the_handler_that_asks_it():
    class Faceless:
        @property
        def __class__(self):
            raise Own("do not look")

    telemetry, asked = Recording(), access()
    now = itertools.count(1.0)
    decider = plugin_of(DisaggregationDecider, "decider", disaggregate=lambda *_: Faceless())
    proxy = proxy_for(decider)
    proxy.connect(decider, telemetry)
    asked.called.append((None, next(now)))

    assert proxy.disaggregate(REQUEST, pool().view(asked).take([0]), CycleState(asked)) is False
    assert [name for name, *_ in telemetry.faults] == ["decider"]
    assert asked.called[-1][0] is None, "the time of the handler begins anew"


@pytest.mark.parametrize("name", ["values", "metadata", "removed", "headers"])
def test_what_is_added_to_a_request_is_added_by_its_methods_alone(name):
    def assign(_request, _result, headers):
        setattr(headers, name, {5: 6})

    stage = Stage(pre_request=[before_request_of(assign, "bad")])

    assert stage.route().set_headers.keys() == {"x-request-id"}
    assert [fault[0] for fault in stage.telemetry.faults] == ["bad"]
