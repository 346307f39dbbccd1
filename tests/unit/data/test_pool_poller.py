"""Polls of what belongs to the whole pool, in virtual time."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import DataCollector, PollingPoolSource, Unavailable
from endpick.data.pool_poller import wait_after
from unit.data.collecting import PRICE, Rig, now


class Market(PollingPoolSource):
    """Fails when it is told to, and remembers when it was asked."""

    interval_seconds = 4.0
    failures = frozenset()
    takes_seconds = 0.0

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.times: list[float] = []

    async def poll_pool(self):
        self.times.append(now())
        await asyncio.sleep(self.takes_seconds)
        if len(self.times) in self.failures:
            raise Unavailable("closed")
        return float(len(self.times))


class Prices(DataCollector):
    def collect(self, payload, writer):
        assert writer.endpoint is None
        writer.set_pool(PRICE, payload)


def polled(run_virtual, recorder, make_instance, source_class, seconds):
    """The gaps between polls, and the price and its age at the end."""
    source = make_instance(source_class, "market")

    async def scenario():
        async with Rig(recorder, [source], [make_instance(Prices, "prices", (PRICE,))]) as table:
            await asyncio.sleep(seconds)
            return table.view().pool(PRICE), table.view().pool_age(PRICE)

    price, age = run_virtual(scenario())
    times = source.plugin.times
    return [later - earlier for earlier, later in itertools.pairwise(times)], price, age


def test_it_is_asked_at_once_and_then_at_its_interval_even_without_endpoints(run_virtual, recorder, make_instance):
    class Slow(Market):
        takes_seconds = 1.5

    gaps, price, age = polled(run_virtual, recorder, make_instance, Slow, 14.0)

    assert gaps == pytest.approx([4.0, 4.0, 4.0])
    assert (price, age) == (4.0, pytest.approx(0.5))
    assert recorder.polls == []


def test_after_failures_it_is_asked_with_growing_delays_which_a_success_resets(run_virtual, recorder, make_instance):
    class Shaky(Market):
        failures = frozenset({2, 3, 4, 5, 8})

    gaps, price, _ = polled(run_virtual, recorder, make_instance, Shaky, 40.0)

    assert gaps[:9] == pytest.approx([4.0, 1.0, 2.0, 4.0, 8.0, 4.0, 4.0, 1.0, 4.0])
    assert price == float(len(gaps) + 1)
    assert recorder.polls == [("market", "", "closed")] * 5


def test_what_is_known_stays_while_there_is_nothing_to_have_and_grows_older(run_virtual, recorder, make_instance):
    class Gone(Market):
        failures = frozenset(range(2, 100))

    _, price, age = polled(run_virtual, recorder, make_instance, Gone, 300.0)

    assert (price, age) == (1.0, pytest.approx(300.0))


@pytest.mark.parametrize("ending", ["hangs", "cancels itself", "exits"])
def test_a_poll_that_does_not_come_back_is_one_that_failed(run_virtual, recorder, make_instance, ending):
    class Bad(Market):
        timeout_seconds = 2.5

        async def poll_pool(self):
            self.times.append(now())
            if ending == "hangs":
                await asyncio.Event().wait()
            raise SystemExit(1) if ending == "exits" else asyncio.CancelledError

    gaps, _, _ = polled(run_virtual, recorder, make_instance, Bad, 9.0)

    assert gaps[:2] == pytest.approx([2.5, 2.5] if ending == "hangs" else [1.0, 2.0])
    if ending == "hangs":
        assert recorder.polls[0] == ("market", "", "no answer within 2.5 s")
    assert len(recorder.polls) >= 3


@given(st.floats(0.01, 10_000), st.integers(1, 500))
def test_delays_grow_from_a_second_or_less_to_the_interval_or_half_a_minute(interval, failures):
    delays = [wait_after(count, interval) for count in range(1, failures + 1)]

    assert delays[0] == min(interval, 1.0)
    assert delays == sorted(delays)
    assert delays[-1] <= max(interval, 30.0)
    assert wait_after(0, interval) == interval
