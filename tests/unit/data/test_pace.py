"""Endpoints with nothing to do are asked less often, within what plugins take for fresh, and as usual once there is anything to see."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.dispatch import SourceBinding
from endpick.data.pace import REPEATS_BEFORE_STRETCHING, Pace, PollCounts, longest_stretch
from endpick.data.table import EndpointTable
from unit.data.collecting import KEYS, Keep, Polling, endpoint, now

INTERVAL = 0.1
IDLE = 1.6


class Repeating(Polling):
    """Gives the same page until told that the endpoint has done something."""

    repeats_payload = True

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.page = 300.5
        self.broken = False

    async def answer(self, endpoint):
        if self.broken:
            raise RuntimeError("no page")
        return self.page

    def gaps_since(self, moment: float) -> list[float]:
        return [round(later - earlier, 3) for earlier, later in itertools.pairwise(at for _, at in self.polls) if earlier >= moment]


class Idling:
    """A loop over one endpoint and one source."""

    def __init__(self, recorder, make_instance, source_class=Repeating, tolerated: float = math.inf, idle: float = IDLE) -> None:
        source = make_instance(source_class, "source")
        self.source = source.plugin
        self.table = EndpointTable(now, KEYS)
        self.counts = PollCounts()
        collection = Collection((SourceBinding(source, (make_instance(Keep, "keep", KEYS[:1]),)),), tolerated)
        self.loop = CollectionLoop(self.table, collection, CollectionSettings(INTERVAL, idle), recorder, self.counts)

    async def __aenter__(self):
        self.table.upsert(endpoint("a"))
        self.loop.start()
        return self

    async def __aexit__(self, *failure):
        await self.loop.stop()


def idle_gaps(run_virtual, *arguments, seconds: float = 12.0, **options) -> list[float]:
    async def run():
        async with Idling(*arguments, **options) as idling:
            await asyncio.sleep(seconds)
            return idling.source.gaps_since(0)

    return run_virtual(run())


def test_intervals_double_while_nothing_changes_up_to_the_longest(run_virtual, recorder, make_instance):
    gaps = idle_gaps(run_virtual, recorder, make_instance)

    assert gaps[1:REPEATS_BEFORE_STRETCHING] == [INTERVAL] * (REPEATS_BEFORE_STRETCHING - 1)
    assert gaps[REPEATS_BEFORE_STRETCHING + 1 :][:5] == [0.2, 0.4, 0.8, 1.6, 1.6]


@pytest.mark.parametrize(("tolerated", "longest"), [(2.0, 1.0), (0.5, 0.2), (0.3, 0.1), (0.05, 0.1), (60.0, IDLE)])
def test_no_interval_is_longer_than_half_the_age_at_which_a_plugin_takes_data_for_stale(
    run_virtual, recorder, make_instance, tolerated, longest
):
    assert max(idle_gaps(run_virtual, recorder, make_instance, tolerated=tolerated)[1:]) == pytest.approx(longest)


def test_the_operator_may_have_idle_endpoints_asked_as_often_as_busy_ones(run_virtual, recorder, make_instance):
    assert set(idle_gaps(run_virtual, recorder, make_instance, idle=INTERVAL)[1:]) == {INTERVAL}


class Silent(Repeating):
    """Gives the same object again without saying that this means anything."""

    repeats_payload = False


class Punctual(Repeating):
    """Has an interval of its own."""

    interval_seconds = INTERVAL


@pytest.mark.parametrize("source_class", [Silent, Punctual])
def test_a_source_that_promises_nothing_and_one_with_its_own_interval_are_asked_as_they_say(
    run_virtual, recorder, make_instance, source_class
):
    assert set(idle_gaps(run_virtual, recorder, make_instance, source_class)[1:]) == {INTERVAL}


def disturbed(run_virtual, recorder, make_instance, disturb) -> tuple[float, list[float]]:
    """How long after a disturbance of an idle endpoint the next poll came, and the gaps after it."""

    async def run():
        async with Idling(recorder, make_instance) as idling:
            await asyncio.sleep(12.0)
            polls = len(idling.source.polls)
            while len(idling.source.polls) == polls:  # noqa: ASYNC110 - until right after a poll: the next is as far away as can be
                await asyncio.sleep(0.01)
            moment = now()
            disturb(idling)
            await asyncio.sleep(3.0)
            times = [at for _, at in idling.source.polls if at > moment]
            return times[0] - moment, idling.source.gaps_since(moment)

    return run_virtual(run())


def test_a_request_to_the_endpoint_has_it_asked_at_the_next_tick_and_then_as_usual(run_virtual, recorder, make_instance):
    waited, gaps = disturbed(run_virtual, recorder, make_instance, lambda idling: idling.table.sent.add("10.0.0.1:8000"))

    assert waited <= INTERVAL
    assert gaps[: REPEATS_BEFORE_STRETCHING - 1] == [INTERVAL] * (REPEATS_BEFORE_STRETCHING - 1)


def test_a_request_to_another_endpoint_changes_nothing(run_virtual, recorder, make_instance):
    waited, _ = disturbed(run_virtual, recorder, make_instance, lambda idling: idling.table.sent.add("10.0.0.2:8000"))

    assert waited > 1.0


def changed(idling: Idling) -> None:
    idling.source.page = 400.5


def failing(idling: Idling) -> None:
    idling.source.broken = True


@pytest.mark.parametrize("disturb", [changed, failing])
def test_after_a_new_page_and_after_a_failure_the_endpoint_is_asked_as_usual(run_virtual, recorder, make_instance, disturb):
    waited, gaps = disturbed(run_virtual, recorder, make_instance, disturb)

    assert 1.0 < waited <= IDLE
    assert gaps[: REPEATS_BEFORE_STRETCHING - 1] == [INTERVAL] * (REPEATS_BEFORE_STRETCHING - 1)


def test_polls_are_counted_as_made_and_as_skipped(run_virtual, recorder, make_instance):
    async def run():
        async with Idling(recorder, make_instance) as idling:
            await asyncio.sleep(12.0)
            return idling.counts.snapshot(), len(idling.source.polls)

    counts, polls = run_virtual(run())

    assert counts["made"] == polls < 20
    assert counts["made"] + counts["skipped"] == pytest.approx(12.0 / INTERVAL, abs=2)


def test_addresses_of_endpoints_that_left_are_not_kept(run_virtual, recorder, make_instance):
    async def run():
        async with Idling(recorder, make_instance) as idling:
            idling.table.upsert(endpoint("b", "10.0.0.2"))
            idling.table.sent.update(("10.0.0.2:8000", "10.0.0.3:8000"))
            idling.table.remove("b")
            await asyncio.sleep(1.0)
            return idling.table.sent

    assert run_virtual(run()) == set()


@pytest.mark.parametrize(
    ("interval", "idle", "tolerated", "stretch"),
    [
        (0.05, 1.0, math.inf, 20),
        (0.05, 1.0, 0.2, 2),
        (0.05, 1.0, 0.199, 1),
        (0.1, 0.3, math.inf, 3),
        (2.0, 1.0, 2.0, 1),
        (1.0, 1.0, 9.0, 1),
    ],
)
def test_the_longest_stretch_is_a_whole_number_of_intervals(interval, idle, tolerated, stretch):
    assert longest_stretch(interval, idle, tolerated) == stretch


def test_none_as_first_answer_is_no_repetition():
    pace = Pace(10, PollCounts())
    for _ in range(REPEATS_BEFORE_STRETCHING):
        assert pace.is_due()
        pace.answered(None)
    assert [pace.is_due() for _ in range(3)] == [True, False, True]


def test_an_endpoint_that_does_not_answer_is_asked_less_often_and_as_usual_once_it_does():
    pace = Pace(1, PollCounts(), 0.05)
    made = []
    for tick in range(120):
        if pace.is_due():
            made.append(tick)
            pace.failed()
    gaps = [later - earlier for earlier, later in itertools.pairwise(made)]
    assert gaps[:9] == [1, 1, 1, 1, 1, 2, 4, 8, 16]
    assert set(gaps[9:]) == {20}, "which is a second"
    pace.answered(object())
    assert [pace.is_due() for _ in range(3)] == [True] * 3


def test_a_source_that_is_polled_seldom_anyway_is_polled_no_less_after_failures():
    pace = Pace(1, PollCounts(), 5.0)
    for _ in range(20):
        assert pace.is_due()
        pace.failed()
