"""The collection loop in virtual time: who is polled when, and what a misbehaving source or collector can do to others."""

from __future__ import annotations

import asyncio
import itertools
import math

import pytest

from endpick.api import DataCollector, DataKey, Endpoint, PollingSource, PoolSource, Scope, StreamSource, Unavailable
from endpick.datalayer.collection import Collection, SourceBinding
from endpick.datalayer.loop import CollectionLoop, CollectionSettings
from endpick.datalayer.table import EndpointTable

SEEN = DataKey("test/seen", float)
PRICE = DataKey("test/price", float, Scope.POOL)
KEYS = (SEEN, PRICE)


def now() -> float:
    return asyncio.get_running_loop().time()


def endpoint(name: str, host: str = "10.0.0.1", **rest) -> Endpoint:
    return Endpoint(name, host, 8000, **rest)


class Polling(PollingSource):
    """Answers at once; remembers when it was asked about whom."""

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.polls: list[tuple[str, float]] = []

    async def poll(self, endpoint):
        self.polls.append((endpoint.name, now()))
        return await self.answer(endpoint)

    async def answer(self, endpoint):
        return len(self.polls)

    def times_of(self, name: str) -> list[float]:
        return [at for who, at in self.polls if who == name]


class Keep(DataCollector):
    """Writes the payload down as it is."""

    def collect(self, payload, writer):
        writer.set(SEEN, float(payload))


@pytest.fixture
def keep(make_instance):
    return make_instance(Keep, "keep", (SEEN,))


class Rig:
    """A table and a loop over some sources, each feeding the same collectors."""

    def __init__(self, recorder, sources, collectors, refresh: float = 0.1) -> None:
        self.table = EndpointTable(now, KEYS)
        bindings = tuple(SourceBinding(source, tuple(collectors)) for source in sources)
        settings = CollectionSettings(refresh_interval_seconds=refresh, stop_grace_seconds=1.0)
        self.loop = CollectionLoop(self.table, Collection(bindings), settings, recorder)

    async def __aenter__(self):
        self.loop.start()
        return self.table

    async def __aexit__(self, *failure):
        self.stubborn = await self.loop.stop()


def test_an_endpoint_is_polled_at_once_and_then_every_interval(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            began = now()
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)
            times = source.plugin.times_of("a")
            assert times[0] == began
            gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
            assert 0.05 <= gaps[0] <= 0.15
            assert gaps[1:] == pytest.approx([0.1] * (len(gaps) - 1))
            assert table.view()[SEEN].tolist() == [float(len(times))]

    run_virtual(scenario())
    assert recorder.polls == []


def test_endpoints_that_join_together_are_not_polled_together_for_long(run_virtual, recorder, make_instance, keep):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.replace_all([endpoint(f"e{number}") for number in range(10)])
            await asyncio.sleep(0.3)
            third_polls = sorted(source.plugin.times_of(f"e{number}")[2] for number in range(10))
            gaps = [later - earlier for earlier, later in itertools.pairwise(third_polls)]
            assert min(gaps) > 0.1 / 30

    run_virtual(scenario())


def test_each_source_keeps_its_own_interval(run_virtual, recorder, make_instance, keep):
    class Slow(Polling):
        interval_seconds = 0.4

    fast, slow = make_instance(Polling, "fast"), make_instance(Slow, "slow")

    async def scenario():
        async with Rig(recorder, [fast, slow], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(4.0)

    run_virtual(scenario())
    assert len(fast.plugin.polls) == pytest.approx(40, abs=1)
    assert len(slow.plugin.polls) == pytest.approx(10, abs=1)
    assert {at for _, at in slow.plugin.polls} <= {at for _, at in fast.plugin.polls}, "one timer serves both"


def test_a_source_that_hangs_is_cut_off_counted_and_delays_nobody(run_virtual, recorder, make_instance, keep):
    class Hanging(Polling):
        timeout_seconds = 0.35

        async def answer(self, endpoint):
            await asyncio.Event().wait()

    hanging, healthy = make_instance(Hanging, "hanging"), make_instance(Polling, "healthy")

    async def scenario():
        async with Rig(recorder, [hanging, healthy], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(2.0)

    run_virtual(scenario())
    assert len(healthy.plugin.polls) == pytest.approx(20, abs=1)
    assert len(hanging.plugin.polls) == 5, "a busy source misses its turn; a second poll never queues up"
    assert set(recorder.polls) == {("hanging", "a", "no answer within 0.35 s")}
    assert len(recorder.polls) == 5


def test_a_slow_poll_is_never_overtaken_by_a_second_one(run_virtual, recorder, make_instance, keep):
    class Slow(Polling):
        at_once = 0
        most_at_once = 0

        async def answer(self, endpoint):
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0.25)
            self.at_once -= 1
            return 1

    slow = make_instance(Slow, "slow")

    async def scenario():
        async with Rig(recorder, [slow], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(3.0)

    run_virtual(scenario())
    assert slow.plugin.most_at_once == 1
    assert len(slow.plugin.polls) == pytest.approx(10, abs=1)


@pytest.mark.parametrize(
    ("raised", "shown"),
    [
        (Unavailable("not today"), "not today"),
        (RuntimeError("broken"), "broken"),
        (TimeoutError("of its own"), "of its own"),
        (SystemExit("rude"), "rude"),
    ],
)
def test_whatever_a_source_raises_is_counted_and_polling_goes_on(run_virtual, recorder, make_instance, keep, raised, shown):
    class Raising(Polling):
        async def answer(self, endpoint):
            raise raised

    source = make_instance(Raising, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)
            assert math.isnan(table.view()[SEEN][0])

    run_virtual(scenario())
    assert len(source.plugin.polls) == pytest.approx(10, abs=1)
    assert recorder.polls == [("source", "a", shown)] * len(source.plugin.polls)


def test_a_source_that_cancels_itself_is_polled_again(run_virtual, recorder, make_instance, keep):
    class Cancelling(Polling):
        async def answer(self, endpoint):
            raise asyncio.CancelledError

    source = make_instance(Cancelling, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert len(source.plugin.polls) == pytest.approx(10, abs=1)


def test_values_age_while_polls_fail(run_virtual, recorder, make_instance, keep):
    class Once(Polling):
        async def answer(self, endpoint):
            if len(self.polls) > 1:
                raise Unavailable("only once")
            return 5

    source = make_instance(Once, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(3.0)
            assert table.view()[SEEN].tolist() == [5.0]
            assert table.view().age(SEEN).tolist() == pytest.approx([3.0])

    run_virtual(scenario())


@pytest.mark.parametrize("raised", [Unavailable("nothing of use"), RuntimeError("bug"), SystemExit("rude")])
def test_a_collector_that_raises_takes_nothing_from_the_next_one(run_virtual, recorder, make_instance, keep, raised):
    class Raising(DataCollector):
        def collect(self, payload, writer):
            raise raised

    source, broken = make_instance(Polling, "source"), make_instance(Raising, "broken")

    async def scenario():
        async with Rig(recorder, [source], [broken, keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.04)
            assert table.view()[SEEN].tolist() == [1.0]

    run_virtual(scenario())
    assert recorder.collects == [("source", "broken", "a", str(raised))]


def test_a_collector_that_writes_what_it_did_not_declare_is_counted(run_virtual, recorder, make_instance):
    source, sneaky = make_instance(Polling, "source"), make_instance(Keep, "sneaky", ())

    async def scenario():
        async with Rig(recorder, [source], [sneaky]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.04)
            assert math.isnan(table.view()[SEEN][0])

    run_virtual(scenario())
    assert [problem for *_, problem in recorder.collects] == ["instance 'sneaky' writes 'test/seen' without declaring it in `produces`"]


def test_no_payload_is_no_news(run_virtual, recorder, make_instance, keep):
    class Silent(Polling):
        async def answer(self, endpoint):
            return None

    source = make_instance(Silent, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert len(source.plugin.polls) > 5
    assert (recorder.polls, recorder.collects) == ([], [])


def test_a_source_nobody_collects_from_is_left_alone(run_virtual, recorder, make_instance):
    source = make_instance(Polling, "source")

    async def scenario():
        async with Rig(recorder, [source], []) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(1.0)

    run_virtual(scenario())
    assert source.plugin.polls == []


def test_an_endpoint_that_leaves_is_not_asked_again_and_its_late_answer_is_dropped(run_virtual, recorder, make_instance, keep):
    class Slow(Polling):
        async def answer(self, endpoint):
            await asyncio.sleep(0.05)
            return 1

    source = make_instance(Slow, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.replace_all([endpoint("a"), endpoint("b")])
            await asyncio.sleep(0.02)
            table.remove("a")
            gone_at = now()
            await asyncio.sleep(1.0)
            assert all(at <= gone_at for at in source.plugin.times_of("a"))
            assert len(source.plugin.times_of("b")) > 5
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.01)
            assert math.isnan(table.view()[SEEN][table.generation.row_of["a"]])

    run_virtual(scenario())


def test_a_new_address_is_polled_at_once_and_the_old_one_never_again(run_virtual, recorder, make_instance, keep):
    class Hosts(Polling):
        async def poll(self, endpoint):
            self.polls.append((endpoint.host, now()))
            return 1

    source = make_instance(Hosts, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a", "10.0.0.1"))
            await asyncio.sleep(0.5)
            table.upsert(endpoint("a", "10.0.0.2"))
            moved_at = now()
            await asyncio.sleep(0.5)
            assert max(source.plugin.times_of("10.0.0.1")) <= moved_at
            assert source.plugin.times_of("10.0.0.2")[0] == moved_at

    run_virtual(scenario())


def test_an_endpoint_whose_metrics_moved_is_polled_there_at_once(run_virtual, recorder, make_instance, keep):
    class Places(Polling):
        async def poll(self, endpoint):
            self.polls.append((endpoint.metrics_address, now()))
            return 1

    source = make_instance(Places, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(0.51)
            table.upsert(endpoint("a", metrics_address="10.0.0.1:9400"))
            moved_at = now()
            assert table.view()[SEEN].tolist() == [1.0], "it is the same server"
            await asyncio.sleep(0.5)
            assert source.plugin.times_of("10.0.0.1:9400")[0] == moved_at
            assert max(source.plugin.times_of("10.0.0.1:8000")) <= moved_at

    run_virtual(scenario())


@pytest.mark.parametrize("refresh", [0.0, -1.0])
def test_without_a_refresh_interval_polls_are_50_ms_apart(run_virtual, recorder, make_instance, keep, refresh):
    source = make_instance(Polling, "source")
    slow = make_instance(type("Slow", (Polling,), {"interval_seconds": 1.0}), "slow")

    async def scenario():
        async with Rig(recorder, [source, slow], [keep], refresh) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(2.0)

    run_virtual(scenario())
    assert len(source.plugin.polls) == pytest.approx(40, abs=1)
    assert len(slow.plugin.polls) == 2


def test_new_labels_reach_the_next_poll_without_disturbing_the_rhythm(run_virtual, recorder, make_instance, keep):
    class Labels(Polling):
        async def answer(self, endpoint):
            self.last_zone = endpoint.labels.get("zone")
            return 1

    source = make_instance(Labels, "source")

    async def scenario():
        async with Rig(recorder, [source], [keep]) as table:
            table.upsert(endpoint("a", labels={"zone": "x"}))
            await asyncio.sleep(0.51)
            assert source.plugin.last_zone == "x"
            table.upsert(endpoint("a", labels={"zone": "y"}))
            await asyncio.sleep(0.5)
            assert source.plugin.last_zone == "y"
        gaps = [later - earlier for (_, earlier), (_, later) in zip(source.plugin.polls[1:], source.plugin.polls[2:], strict=False)]
        assert gaps == pytest.approx([0.1] * len(gaps))

    run_virtual(scenario())


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


def test_a_stream_is_opened_once_per_endpoint_and_its_payloads_are_collected(run_virtual, recorder, make_instance, keep):
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


def test_a_pool_source_runs_once_whoever_is_there(run_virtual, recorder, make_instance):
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


def test_stop_does_not_wait_for_ever_for_a_plugin_that_ignores_cancellation(run_virtual, recorder, make_instance, keep):
    release = asyncio.Event()

    class Stubborn(Polling):
        async def answer(self, endpoint):
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

    async def scenario():
        rig = Rig(recorder, [make_instance(Stubborn, "stubborn")], [keep])
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
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    run_virtual(scenario())
