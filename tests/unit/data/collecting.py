"""The collection loop over hand-made sources and collectors: parts for tests."""

from __future__ import annotations

import asyncio

from endpick.api import DataCollector, DataKey, Endpoint, PollingSource, Scope
from endpick.data.collection import Collection, CollectionLoop, CollectionSettings
from endpick.data.polling import SourceBinding
from endpick.data.table import EndpointTable

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


class Rig:
    """A table and a loop over some sources, each bindings the same collectors."""

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
