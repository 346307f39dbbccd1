"""Answers that take long to read go one after the other, each with a rest after it."""

from __future__ import annotations

import asyncio
import gzip
from types import SimpleNamespace

import pytest

from endpick_builtin.collection import long_answers
from endpick_builtin.collection.long_answers import LONG_BYTES, LongAnswers
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
        async def read(self, body):
            passed.append(body)
            return await super().read(body)

    monkeypatch.setattr("endpick_builtin.collection.http_pages.LongAnswers", Watched)
    async with speaking(answer(page, *headers)) as (port, _), started(metrics_source()) as source:
        assert LINE in (await source.poll(at(port))).body
    assert len(passed) == passes
