"""Answers that take long to read go one after the other, each with a rest after it."""

from __future__ import annotations

import asyncio
import gzip
import threading
import weakref
from types import SimpleNamespace

import pytest

from endpick.api import Unavailable
from endpick.data.pace import Pace, PollCounts
from endpick_builtin.collection import long_answers
from endpick_builtin.collection.long_answers import LONG_BYTES, LongAnswers
from unit.builtin.kv_publisher import until
from unit.builtin.pages import at, metrics_source, started
from unit.builtin.test_http_pages import answer, speaking

pytestmark = pytest.mark.asyncio
LINE = b"vllm:num_requests_waiting 3\n"
MEBIBYTE = 1024 * 1024


@pytest.fixture
def rests(monkeypatch):
    """How long was rested, each time; a rest takes no time here, so that the next one is as long and what was left of the last."""
    rested = []

    async def sleep(seconds):
        rested.append(seconds)
        await asyncio.sleep(0)

    monkeypatch.setattr(
        long_answers, "asyncio", SimpleNamespace(Lock=asyncio.Lock, get_running_loop=lambda: SimpleNamespace(time=lambda: 0.0), sleep=sleep)
    )
    return rested


async def test_each_answer_waits_for_the_one_before_and_rests_for_its_length(rests):
    gate, bodies = LongAnswers(), [b"a" * MEBIBYTE, b"b" * 2 * MEBIBYTE, b"c"]

    read = await asyncio.gather(*(gate.read(lambda body=body: body) for body in bodies))

    assert read == bodies
    assert rests == [1 / 64, 2 / 64]


async def test_answers_that_may_be_longer_keep_their_seats_for_longer_and_are_unpacked_beside_everything_else(monkeypatch):
    monkeypatch.setattr(long_answers, "_SEAT_SECONDS", 0.01)
    monkeypatch.setattr(long_answers, "_SEATS", 1)
    gate, slow, waiting = LongAnswers(64 * MEBIBYTE), Received(), Received()
    assert gate.enter(slow)
    assert not gate.enter(waiting)
    await asyncio.sleep(0.04)
    assert (slow.told, waiting.told) == ([], [])
    await until(lambda: waiting.told, "a seat")
    assert (slow.told, waiting.told) == (["give up"], ["go on"])

    assert await gate.read(lambda: b"%d" % threading.get_ident()) != b"%d" % threading.get_ident()


async def test_an_answer_that_cannot_be_unpacked_lets_the_next_one_through(rests):
    gate = LongAnswers()

    def fails():
        raise ValueError("cut short")

    with pytest.raises(ValueError, match="cut short"):
        await gate.read(fails)
    assert await gate.read(lambda: b"whole") == b"whole"


@pytest.mark.parametrize(
    ("page", "headers", "passes"),
    [
        (LINE, (), False),
        (LINE * (LONG_BYTES // len(LINE) + 1), (), True),
        (gzip.compress(LINE), (b"Content-Encoding: gzip",), True),
    ],
    ids=["short", "long", "packed"],
)
async def test_answers_that_are_long_or_packed_pass_the_gate_and_no_others(monkeypatch, page, headers, passes):
    passed = []

    class Watched(LongAnswers):
        async def read(self, body, answer=None):
            passed.append(body)
            return await super().read(body, answer)

    monkeypatch.setattr("endpick_builtin.collection.http_pages.LongAnswers", Watched)
    async with speaking(answer(page, *headers)) as (port, _), started(metrics_source()) as source:
        assert LINE in (await source.poll(at(port))).body
    assert len(passed) == passes


class Received:
    """A long answer, and what it was told."""

    def __init__(self):
        self.told = []

    def go_on(self):
        self.told.append("go on")

    def give_up(self):
        self.told.append("give up")


async def test_no_more_than_four_long_answers_are_received_at_once_and_each_that_leaves_lets_one_in():
    gate, answers = LongAnswers(), [Received() for _ in range(6)]

    assert [gate.enter(one) for one in answers] == [True, True, True, True, False, False]
    gate.leave(answers[4])
    gate.leave(answers[1])
    gate.leave(answers[1])
    assert [one.told for one in answers] == [[], [], [], [], [], ["go on"]]


async def test_an_answer_that_comes_slowly_gives_up_its_seat_where_others_wait_and_one_that_is_complete_does_not(monkeypatch):
    monkeypatch.setattr(long_answers, "_SEAT_SECONDS", 0.01)
    gate, complete, waiting = LongAnswers(), Received(), [Received(), Received()]
    slow = [Received() for _ in range(3)]
    for one in (complete, *slow):
        assert gate.enter(one)
    await gate._turn.acquire()
    reading = asyncio.create_task(gate.read(lambda: b"", complete))
    assert [one.told for one in slow] == [[], [], []]

    for one in waiting:
        assert not gate.enter(one)
    await until(lambda: waiting[1].told)
    assert (complete.told, slow[0].told) == ([], ["give up"])
    gate._turn.release()
    assert await reading == b""


async def test_servers_that_stop_in_the_middle_of_long_answers_do_not_keep_others_from_being_read(monkeypatch):
    monkeypatch.setattr(long_answers, "_SEATS", 1)
    page = LINE * (LONG_BYTES // len(LINE) + 1)
    whole = answer(page)
    async with (
        speaking(whole[: len(whole) // 2 + LONG_BYTES // 2]) as (stalls, _),
        speaking(whole) as (goes_on, _),
        started(metrics_source()) as source,
    ):
        stalling = asyncio.create_task(source.fetch(at(stalls)))
        await until(lambda: source._pages._long_answers._seated)
        assert await source.fetch(at(goes_on)) == page
        with pytest.raises(Unavailable, match="others are waiting"):
            await stalling


async def test_a_long_page_is_kept_by_nothing_once_it_was_read():
    page = LINE * (LONG_BYTES // len(LINE) + 1)
    pace = Pace(20, PollCounts())
    async with speaking(answer(page), answer(page), answer(LINE), answer(LINE)) as (port, _), started(metrics_source()) as source:
        for _ in range(2):
            read = await source.poll(at(port))
            pace.answered(read)
            kept = weakref.ref(read)
            del read
            assert kept() is None
        assert await source.poll(at(port)) is await source.poll(at(port)), "and a short one is"
