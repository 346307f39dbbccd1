"""In which order streams of grpcio's begin, and which never do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from endpick.requests.memory import MemoryAccount
from endpick.transport.grpcio_door import Door
from endpick.transport.grpcio_guests import Guests
from endpick.transport.limits import Limits, TransportCounters

pytestmark = pytest.mark.asyncio
FLOOD, SECOND, GATEWAY = "ipv4:192.0.2.1:1000", "ipv4:192.0.2.1:1001", "ipv4:192.0.2.2:2000"


class Stage:
    """A door, and who began."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.counters = TransportCounters()
        self.guests = Guests(limits or Limits(), self.counters, MemoryAccount())
        self.door = Door(self.guests, self.counters)
        self.began: list[str] = []
        self.came = 0

    def come(self, peer: str, times: int = 1) -> None:
        self.came += times
        for _ in range(times):
            self.door.came(peer, self._begin(peer))

    def _begin(self, peer: str) -> Callable[[], None]:
        return lambda: self.began.append(peer)

    async def all_begin(self) -> None:
        """As many turns of the event loop as streams have come are more than the door needs."""
        for _ in range(self.came):
            await asyncio.sleep(0)


async def test_a_stream_begins_at_once_where_none_waits():
    stage = Stage()
    stage.come(GATEWAY)
    assert stage.began == [GATEWAY]


async def test_a_stream_waits_for_those_of_its_connection_and_not_for_those_of_another():
    stage = Stage()
    stage.come(FLOOD, 1000)
    already = len(stage.began)
    assert already < 10
    stage.come(GATEWAY)
    await stage.all_begin()
    assert stage.began.index(GATEWAY) <= already + 1


async def test_an_address_with_many_connections_has_one_turn_for_all_of_them():
    stage = Stage()
    flood = [f"ipv4:192.0.2.1:{port}" for port in range(1, 101)]
    for peer in flood:
        stage.come(peer, 10)
    already = len(stage.began)
    stage.come(GATEWAY, 3)
    await stage.all_begin()
    assert [number for number, peer in enumerate(stage.began[already:]) if peer == GATEWAY] == [1, 3, 5]
    assert set(stage.began[already : already + 100 + 3]) >= set(flood[10:]), "connections of one address take turns"


async def test_of_more_streams_than_there_is_memory_for_those_of_who_has_most_are_dropped():
    stage = Stage(Limits(max_buffered_bytes=1))
    stage.come(FLOOD, 2000)
    assert 900 <= stage.counters.streams_refused <= 1000
    before = stage.counters.streams_refused
    stage.come(GATEWAY, 100)
    assert stage.counters.streams_refused == before
    await stage.all_begin()
    assert stage.began.count(GATEWAY) == 100


@pytest.mark.parametrize("why", ["is_banned", "is_leaving", "is_gone"])
async def test_streams_of_a_connection_that_goes_begin_no_more(why):
    stage = Stage()
    stage.come(FLOOD, 100)
    already = stage.began.count(FLOOD)
    setattr(stage.guests.of(FLOOD), why, True)
    stage.come(FLOOD, 100)
    stage.come(SECOND, 20)
    await stage.all_begin()
    assert stage.began.count(FLOOD) == already
    assert stage.began.count(SECOND) == 20
    assert stage.guests.of(FLOOD).waiting == 0


async def test_what_waits_counts_for_its_connection_until_it_begins_or_the_server_ends():
    stage = Stage()
    stage.come(FLOOD, 100)
    flood = stage.guests.of(FLOOD)
    assert flood.waiting == 100 - len(stage.began)
    assert flood.weight > 1_000_000
    stage.door.close()
    assert (flood.waiting, flood.weight) == (0, 0)
