"""Streams and sources of the whole pool in virtual time, and how everything is stopped."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from endpick.api import DataCollector, PoolSource, StreamSource
from unit.data.collecting import PRICE, SEEN, Polling, Rig, endpoint, now


class Streaming(StreamSource):
    """Publishes three payloads, then does what it is told."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.starts: list[tuple[str, float]] = []

    async def watch(self, endpoint, publish):
        self.starts.append((endpoint.name, now()))
        for payload in (1, 2, 3):
            publish(payload)
            await asyncio.sleep(0.01)
        await self.afterwards()

    async def afterwards(self):
        await asyncio.Event().wait()


def test_stream_opens_once_per_endpoint(run_virtual, recorder, make_instance, keep):
    source = make_instance(Streaming, "stream")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.replace_all([endpoint("a"), endpoint("b")])
            await asyncio.sleep(60)
            assert table.view()[SEEN].tolist() == [3.0, 3.0]
        assert sorted(name for name, _ in source.plugin.starts) == ["a", "b"]

    run_virtual(scenario())
    assert recorder.polls == []


@pytest.mark.parametrize("ending", ["returns", "raises", "cancels itself"])
def test_a_stream_that_ends_is_opened_again_with_growing_delays(run_virtual, recorder, make_instance, keep, ending):
    class Ending(Streaming):
        async def afterwards(self):
            if ending == "raises":
                raise ConnectionResetError("gone")
            if ending == "cancels itself":
                raise asyncio.CancelledError

    source = make_instance(Ending, "stream")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(7)

    run_virtual(scenario())
    times = [at for _, at in source.plugin.starts]
    assert [later - earlier for earlier, later in itertools.pairwise(times)] == pytest.approx([0.53, 1.03, 2.03])
    shown = {"returns": "ended by itself", "raises": "gone", "cancels itself": "cancelled itself"}[ending]
    assert recorder.polls == [("stream", "a", shown)] * 4


def test_a_stream_that_outlives_its_endpoint_writes_nothing(run_virtual, recorder, make_instance, keep):
    kept = []

    class Leaky(StreamSource):
        async def watch(self, endpoint, publish):
            kept.append(publish)
            await asyncio.Event().wait()

    async def scenario():
        async with Rig(recorder, [make_instance(Leaky, "leaky")], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.1)
            table.remove("a")
            kept[0](7)
            assert len(table.view()) == 0

    run_virtual(scenario())
    assert recorder.collects == []


def test_a_pool_source_runs_once_whichever_endpoints_there_are(run_virtual, recorder, make_instance):
    class Market(PoolSource):
        runs = 0

        async def watch_pool(self, publish):
            type(self).runs += 1
            publish(0.25)
            await asyncio.Event().wait()

    class Prices(DataCollector):
        def collect(self, payload, writer):
            assert writer.endpoint is None
            writer.set_pool(PRICE, payload)

    async def scenario():
        source, prices = make_instance(Market, "market"), make_instance(Prices, "prices", (PRICE,))
        async with Rig(recorder, [source], [prices]) as table:
            await asyncio.sleep(1)
            table.replace_all([endpoint("a"), endpoint("b")])
            await asyncio.sleep(60)
            assert table.view().pool(PRICE) == 0.25
        assert Market.runs == 1

    run_virtual(scenario())
    assert (recorder.polls, recorder.collects) == ([], [])


def test_stop_ends_everything_and_may_be_called_twice(run_virtual, recorder, make_instance, keep):
    class Hanging(Polling):
        async def answer(self, endpoint):
            await asyncio.Event().wait()

    async def scenario():
        rig = Rig(recorder, [make_instance(Hanging, "hanging"), make_instance(Streaming, "stream")], [keep])
        async with rig as table:
            table.replace_all([endpoint("a"), endpoint("b")])
            await asyncio.sleep(0.2)
            table.remove("b")
        assert rig.stubborn == 0
        assert await rig.loop.stop() == 0
        assert table.on_changed == []
        table.upsert(endpoint("c"))

    run_virtual(scenario())  # asserts that no task is left


def test_stop_gives_up_on_plugins_ignoring_cancellation(run_virtual, recorder, make_instance, keep):
    release = asyncio.Event()

    class IgnoredCancellation(Polling):
        async def answer(self, endpoint):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

    async def scenario():
        rig = Rig(recorder, [make_instance(IgnoredCancellation, "stubborn")], [keep])
        async with rig as table:
            table.replace_all([endpoint("gone"), endpoint("here")])
            await asyncio.sleep(0.2)
            table.remove("gone")
            table.upsert(endpoint("late"))
            await asyncio.sleep(0.2)
            asked_at = now()
        assert rig.stubborn == 3
        assert now() - asked_at == pytest.approx(1.0)
        release.set()
        await asyncio.sleep(0.2)

    run_virtual(scenario())
