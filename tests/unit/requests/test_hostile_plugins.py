"""Whatever leaves a plugin, wherever the host calls it, is a fault of that plugin and nothing else."""

from __future__ import annotations

import asyncio
import signal
from functools import partial

import numpy as np
import pytest

from endpick.api import Endpoint, ParsedRequest
from endpick.extproc.headers import as_struct
from endpick.host.failures import is_the_hosts
from endpick.requests.model import CloseCause, Routed
from unit.oddities import Own, Unfriendly, odd
from unit.requests.stage import (
    Stage,
    admitter_of,
    async_producer_of,
    before_request_of,
    candidate_filter_of,
    detector_of,
    header_processor_of,
    observer_of,
    parser_of,
    producer_of,
)
from unit.scheduling.workbench import filter_of, picker_of, scorer_of

THROWN = (
    asyncio.CancelledError(),
    KeyboardInterrupt(),
    SystemExit(3),
    GeneratorExit(),
    RecursionError("too deep"),
    MemoryError(),
    BaseException("of no kind"),
)

AWAITED = tuple(each for each in THROWN if type(each) not in (GeneratorExit, BaseException))
"""`GeneratorExit` closes a coroutine, and asyncio has no place for bare BaseException."""

PLACES = {
    "Parser": lambda throw: {"parsers": [parser_of("bad", ("/v1/chat/completions",), parse=throw)]},
    "RequestHeaderProcessor": lambda throw: {"header_processors": [header_processor_of(throw, "bad")]},
    "CandidateFilter": lambda throw: {"candidate_filters": [candidate_filter_of(throw, "bad")]},
    "DataProducer": lambda throw: {"producers": [producer_of(throw, "bad")]},
    "Admitter": lambda throw: {"admitters": [admitter_of(throw, "bad")]},
    "Filter": lambda throw: {"filters": [filter_of(throw, "bad")]},
    "Scorer": lambda throw: {"scorers": [(scorer_of(throw, "bad"), 1.0)]},
    "Picker": lambda throw: {"picker": picker_of(throw, "bad")},
    "PreRequest": lambda throw: {"pre_request": [before_request_of(throw, "bad")]},
    "ResponseHeaders": lambda throw: {"observers": [observer_of("bad", response_started=throw)]},
    "ResponseFirstChunk": lambda throw: {"observers": [observer_of("bad", first_chunk=throw)]},
    "ResponseMetadata": lambda throw: {"observers": [observer_of("bad", response_metadata=throw)]},
    "ResponseComplete": lambda throw: {"observers": [observer_of("bad", response_ended=throw)]},
}


@pytest.fixture(autouse=True)
def ctrl_c_raises_nothing():
    """As in `endpick serve`, where Ctrl-C raises nothing."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def decided_and_ended(stage: Stage):
    """The decision, after the life of the request that follows from it."""
    decision = stage.decide()
    if isinstance(decision, Routed):
        exchange = decision.exchange
        exchange.response_headers({":status": "200", "content-type": "application/json"}, None)
        exchange.response_chunk(b"{}", True)
        exchange.response_metadata()
        exchange.finish(CloseCause.END)
    return decision


def described(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"


@pytest.mark.parametrize("thrown", THROWN, ids=lambda thrown: type(thrown).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_whatever_a_plugin_throws_is_its_fault_and_not_the_processes(place, thrown):
    def throw(*_arguments):
        raise thrown

    stage = Stage(**PLACES[place](throw))
    decision = decided_and_ended(stage)
    assert isinstance(decision, Routed) or decision.status == 500
    assert [(name, problem) for name, _, problem in stage.telemetry.faults] == [("bad", described(thrown))]


class Faceless:
    @property
    def __class__(self):
        raise Own("do not look")


class NoAnswerError(Exception):
    def __getattribute__(self, name):
        raise Own(f"do not look at {name}")


class NoClassError(Exception):
    @property
    def __class__(self):
        raise Own("do not look")


@pytest.mark.parametrize("kind", [NoAnswerError, NoClassError])
@pytest.mark.parametrize("place", PLACES)
def test_no_exception_is_asked_what_it_is(place, kind):
    def throw(*_arguments):
        raise kind

    stage = Stage(**PLACES[place](throw))
    decided_and_ended(stage)
    assert [(name, problem) for name, _, problem in stage.telemetry.faults] == [("bad", f"{kind.__name__}: ")]


class NamelessKind(type):
    def __getattribute__(cls, name):
        raise Own("do not look")


def nameless():
    """Made when it is needed: a test runner would look at a class of the module."""
    return NamelessKind("Nameless", (), {})()


class Untouchable(np.ndarray):
    __len__ = __getitem__ = __mul__ = argmin = odd


class Unmeasured(np.ndarray):
    shape = dtype = property(odd)


class Uncalculated(np.ndarray):
    __array_ufunc__ = odd


class Unlisted(dict):
    items = __iter__ = __len__ = odd


UNANSWERED = ("ResponseFirstChunk", "ResponseComplete")
ODD_ANSWERS = {
    **{(place, "Faceless"): Faceless for place in PLACES if place not in UNANSWERED},
    **{(place, "Nameless"): nameless for place in PLACES if place not in UNANSWERED},
    **{("Scorer", kind.__name__): partial(np.ndarray.view, np.ones(3), kind) for kind in (Unmeasured, Uncalculated)},
    **{(place, "Unlisted"): lambda: Unlisted(a="b") for place in ("ResponseHeaders", "ResponseMetadata")},
    ("ResponseHeaders", "surrogate"): lambda: {"x-a": "\ud800"},
    ("ResponseMetadata", "surrogate"): lambda: {"a": {"b": "\ud800"}},
    ("ResponseMetadata", "no number"): lambda: {"a": {"b": 10**400}},
    ("ResponseMetadata", "unlisted"): lambda: {"a": Unlisted(b=1)},
}


@pytest.mark.parametrize(("place", "kind"), ODD_ANSWERS)
def test_whatever_a_plugin_answers_is_looked_at_at_its_own_risk(place, kind):
    stage = Stage(**PLACES[place](lambda *_arguments: ODD_ANSWERS[place, kind]()))
    decision = stage.decide()
    if isinstance(decision, Routed):
        assert as_struct(decision.dynamic_metadata) is not None
        added = decision.exchange.response_headers({":status": "200", "content-type": "application/json"}, None)
        assert all(value is None or value.encode() for value in added.values())
        decision.exchange.response_chunk(b"{}", True)
        assert as_struct(decision.exchange.response_metadata()) is not None
        decision.exchange.finish(CloseCause.END)
    else:
        assert decision.status == 500
    assert [name for name, *_ in stage.telemetry.faults] == ["bad"]


@pytest.mark.parametrize("kind", [np.ma.MaskedArray, np.memmap, np.recarray, Untouchable])
def test_scores_in_an_array_of_another_class_reach_the_picker_as_a_plain_one(kind):
    plain = np.array([0.1, 0.9, 0.5])
    scores = np.ma.masked_array(plain, [False, True, False]) if kind is np.ma.MaskedArray else plain.view(kind)
    seen = []

    def pick(scored):
        seen.append((type(scored.scores), scored.scores.tolist()))
        return scored.endpoints.take([1])

    stage = Stage(scorers=[(scorer_of(lambda _endpoints: scores), 1.0)], picker=picker_of(pick))
    stage.route()
    assert seen == [(np.ndarray, [0.1, 0.9, 0.5])]
    assert stage.telemetry.faults == []


@pytest.mark.parametrize("answer", [Faceless, nameless, lambda: Unfriendly(2.0)], ids=["faceless", "nameless", "unfriendly"])
def test_whatever_a_detector_answers_sheds_no_request(answer):
    stage = Stage(detector=detector_of(lambda *_arguments: answer()), objectives={"idle": -1})
    assert isinstance(stage.decide(x_llm_d_inference_objective="idle"), Routed)
    assert [name for name, *_ in stage.telemetry.faults] == ["detector"]


@pytest.mark.parametrize("thrown", THROWN, ids=lambda thrown: type(thrown).__name__)
def test_whatever_a_detector_throws_throws_sheds_no_request(thrown):
    def throw(*_arguments):
        raise thrown

    stage = Stage(detector=detector_of(throw), objectives={"idle": -1})
    assert isinstance(stage.decide(x_llm_d_inference_objective="idle"), Routed)
    assert [name for name, *_ in stage.telemetry.faults] == ["detector"]


@pytest.mark.asyncio
@pytest.mark.parametrize("thrown", AWAITED, ids=lambda thrown: type(thrown).__name__)
async def test_whatever_a_producer_throws_after_waiting_is_its_fault(thrown):
    async def throw(request, endpoints, state):
        await asyncio.sleep(0)
        raise thrown

    stage = Stage(producers=[async_producer_of(throw, "bad")])
    assert isinstance(await stage.decide(), Routed)
    assert stage.telemetry.faults == [("bad", "DataProducer", described(thrown))]


@pytest.mark.asyncio
async def test_a_request_that_is_given_up_while_a_producer_waits_is_no_fault():
    waiting = asyncio.Event()

    async def wait(request, endpoints, state):
        waiting.set()
        await asyncio.Event().wait()

    stage = Stage(producers=[async_producer_of(wait, "slow", timeout_seconds=30.0)])
    task = asyncio.ensure_future(stage.decide())
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stage.telemetry.faults == []


def test_where_ctrl_c_raises_it_is_the_persons():
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert is_the_hosts(KeyboardInterrupt())
    assert not is_the_hosts(SystemExit())


@pytest.mark.parametrize("name", ["headers", "payload"])
def test_what_one_plugin_does_to_headers_or_payload_is_seen_by_no_other(name):
    seen = []

    def spoil(request, *_arguments):
        seen.append(dict(getattr(request, name)))
        getattr(request, name).clear()

    stage = Stage(pre_request=[before_request_of(spoil, "bad"), before_request_of(spoil, "second")])
    stage.route(x_tenant="t")

    assert seen[0] == seen[1]
    assert seen[0]
    assert {fault[0] for fault in stage.telemetry.faults} == {"bad", "second"}


def test_a_parser_cannot_change_the_headers_that_the_host_reads():
    def parse(_path, headers, _body):
        headers.clear()
        return ParsedRequest("m")

    stage = Stage(parsers=[parser_of("bad", ("/v1/chat/completions",), parse=parse)])
    stage.refuse()

    assert {fault[0] for fault in stage.telemetry.faults} == {"bad"}


def test_labels_are_a_read_only_copy():
    given = {"role": "decode"}
    endpoint = Endpoint("a", "127.0.0.1", 1, given)
    given.clear()

    assert endpoint.labels == {"role": "decode"}
    with pytest.raises(TypeError, match="does not support item assignment"):
        endpoint.labels["role"] = "prefill"
