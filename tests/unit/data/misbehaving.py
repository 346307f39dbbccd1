"""Sources of each shape that misbehave at first: parts for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from endpick.api import DataCollector, PollingPoolSource, PoolSource, StreamSource
from unit.data.collecting import PRICE, SEEN, Keep, Polling, Rig, endpoint


class Prices(DataCollector):
    def collect(self, payload, writer):
        writer.set_pool(PRICE, payload)


def sources_that(misbehave: Callable[[], Awaitable[None]]) -> dict[str, type]:
    """By their name, one of each shape that misbehaves twice and brings a payload from the third time on."""

    class Once:
        calls = 0

        async def once(self):
            self.calls += 1
            if self.calls < 3:
                await misbehave()

    class Poll(Once, Polling):
        async def answer(self, endpoint):
            await self.once()
            return 7.0

    class Watch(Once, StreamSource):
        async def watch(self, endpoint, publish):
            await self.once()
            publish(7.0)
            await asyncio.Event().wait()

    class PollPool(Once, PollingPoolSource):
        async def poll_pool(self):
            await self.once()
            return 7.0

    class WatchPool(Once, PoolSource):
        async def watch_pool(self, publish):
            await self.once()
            publish(7.0)
            await asyncio.Event().wait()

    return {"poll": Poll, "watch": Watch, "poll_pool": PollPool, "watch_pool": WatchPool}


def brought_in_five_seconds(run_virtual, recorder, make_instance, kind: type, *, of_pool: bool) -> float:
    """What a collector has taken from a source of this kind."""
    source = make_instance(kind, "source")
    collector = make_instance(Prices, "prices", (PRICE,)) if of_pool else make_instance(Keep, "keep", (SEEN,))

    async def scenario():
        async with Rig(recorder, [source], [collector]) as table:
            table.upsert(endpoint("a"))
            await asyncio.sleep(5.0)
            return table.view().pool(PRICE) if of_pool else table.view()[SEEN][0]

    return run_virtual(scenario())
