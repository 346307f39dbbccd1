"""A port under a burst of connections: what has been asked is read before its seat is wanted by others."""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager

import pytest

from endpick.api.turns import Turns
from endpick.transport import listener
from endpick.transport.limits import AcceptLimits, TransportCounters
from endpick.transport.listener import Listener

SEATS = 32


class Visitor(asyncio.Protocol):
    """Answers the first bytes that come, and is idle before."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._since = time.monotonic()
        self._answered = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport):
        self._transport = transport
        self._port.listener.arrived(self)

    def data_received(self, data):
        self._answered = True
        self._transport.write(b"alive")

    def connection_lost(self, error):
        self._port.listener.left(self)

    def idle_since(self):
        return None if self._port.visitors_are_busy and not self._answered else self._since

    def served(self):
        return self._answered

    def evict(self):
        self._port.has_evicted.set()
        self._transport.abort()


class Port:
    """A listener on loopback."""

    def __init__(self, share: float = 1.0, *, rush_connections: int | None = 4) -> None:
        self.visitors_are_busy = False
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=SEATS)
        self.socket.setblocking(False)
        self.counters = TransportCounters()
        self.has_evicted = asyncio.Event()
        self.visitors = 0
        """Connections of which anything was made."""
        limits = AcceptLimits(SEATS, share, 1.0, 0, "--seats", "--share", rush_connections=rush_connections)
        self.listener = Listener(self.socket, limits, self.counters, self._visitor, Turns(0.002))

    def _visitor(self, _peer: str) -> Visitor:
        self.visitors += 1
        return Visitor(self)


@pytest.mark.asyncio
async def test_a_request_that_came_with_a_burst_of_idle_connections_is_answered():
    port = Port()
    address = port.socket.getsockname()
    probe = socket.create_connection(address)
    probe.sendall(b"are you alive?")
    idle = [socket.create_connection(address) for _ in range(SEATS)]  # before the event loop has a turn
    port.listener.open()
    try:
        probe.setblocking(False)
        async with asyncio.timeout(10):
            answer = await asyncio.get_running_loop().sock_recv(probe, 16)
            await port.has_evicted.wait()
    finally:
        port.listener.close()
        for one in (probe, *idle):
            one.close()
    assert answer == b"alive"
    assert (port.counters.connections_accepted, port.counters.connections_evicted) == (SEATS + 1, 1)


@pytest.mark.asyncio
async def test_who_has_just_come_is_heard_before_others_where_all_seats_are_taken_by_clients_that_were_served():
    port, loop = Port(), asyncio.get_running_loop()
    address = port.socket.getsockname()
    port.listener.open()
    clients = []

    async def connected(*, asks: bool) -> socket.socket:
        client = socket.create_connection(address)
        client.setblocking(False)
        clients.append(client)
        if asks:
            client.sendall(b"are you alive?")
            assert await loop.sock_recv(client, 16) == b"alive"
        while port.counters.connections_accepted < len(clients):  # noqa: ASYNC110 - as below
            await asyncio.sleep(0)
        return client

    try:
        async with asyncio.timeout(10):
            for _ in range(SEATS):
                await connected(asks=True)
            probe = await connected(asks=False)
            for _ in range(4):
                await connected(asks=False)
            probe.sendall(b"are you alive?")
            assert await loop.sock_recv(probe, 16) == b"alive"
            for _ in range(SEATS):
                await connected(asks=False)
        assert sum(guest.served() for guest in port.listener._seats.taken) >= SEATS - SEATS // 4 - 1, "no more is given to who never asks"
    finally:
        port.listener.close()
        for one in clients:
            one.close()


@pytest.mark.asyncio
async def test_a_turn_takes_no_more_of_the_reserve_than_is_given_back_by_the_next():
    port = Port()
    address = port.socket.getsockname()
    port.listener.open()
    idle = [socket.create_connection(address) for _ in range(4)]
    while len(port.listener._seats.taken) < 4 or not all(seat.arrived for seat in port.listener._seats.taken.values()):  # noqa: ASYNC110 - as below
        await asyncio.sleep(0)
    port.listener._first_reserved = 0
    idle += [socket.create_connection(address) for _ in range(8)]
    try:
        port.listener._accept_some()
        assert (port.counters.connections_accepted, port.counters.connections_evicted) == (5, 1)
        async with asyncio.timeout(10):
            while port.counters.connections_evicted < 8:  # noqa: ASYNC110 - what is waited for happens in the listener, which signals nothing
                await asyncio.sleep(0)
    finally:
        port.listener.close()
        for one in idle:
            one.close()
    assert port.counters.accept_pauses == 0


@pytest.mark.asyncio
async def test_a_low_descriptor_is_no_room_while_connections_have_reserved_ones(tmp_path, monkeypatch):
    port = Port()
    for number in range(101):
        (tmp_path / str(number)).touch()
    monkeypatch.setattr(listener, "_DESCRIPTORS", str(tmp_path))
    port.listener.open()
    visits = []
    try:
        async with asyncio.timeout(10):
            # The second has a reserved descriptor. The others have low ones, of which there are enough for all but the last.
            for first_reserved, evicted in ((10**6, 0), (0, 1), (10**6, 1), (100, 2)):
                port.listener._first_reserved = first_reserved
                visits.append(socket.create_connection(port.socket.getsockname()))
                while port.counters.connections_accepted < len(visits):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)
                assert port.counters.connections_evicted == evicted
    finally:
        port.listener.close()
        for one in visits:
            one.close()


@pytest.mark.asyncio
async def test_one_address_of_a_site_leaves_some_of_its_share_to_the_others(monkeypatch):
    monkeypatch.setattr(listener, "_origin", lambda _: next(origins))
    origins = iter([("site", "greedy")] * 6 + [("site", "other")] * 6 + [("elsewhere", "elsewhere")])
    port = Port(share=0.25)  # of 32: eight for the site, two for an address of it
    port.visitors_are_busy = True
    port.listener.open()
    visits = []
    try:
        async with asyncio.timeout(10):
            for refused in (0, 0, 1, 2, 3, 4, 4, 4, 5):
                visits.append(socket.create_connection(port.socket.getsockname()))
                while port.counters.connections_accepted < len(visits):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)
                while not all(seat.arrived for seat in port.listener._seats.taken.values()):  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0)
                assert port.counters.connections_refused_peer == refused
    finally:
        port.listener.close()
        for one in visits:
            one.close()


@asynccontextmanager
async def visits(port: Port, origins: list[str], monkeypatch, asks: str = "") -> AsyncIterator[list[socket.socket]]:
    """One connection from each of these addresses, one after another; those of `asks` are answered."""
    coming, clients = iter(origins), []
    monkeypatch.setattr(listener, "_origin", lambda _: (origin := next(coming), origin))
    try:
        async with asyncio.timeout(20):
            await _come(port, origins, asks, clients)
            yield clients
    finally:
        for one in clients:
            one.close()


async def _come(port: Port, origins: list[str], asks: str, clients: list[socket.socket]) -> None:
    loop = asyncio.get_running_loop()
    for origin in origins:
        before = port.counters.connections_accepted
        clients.append(socket.create_connection(port.socket.getsockname()))
        clients[-1].setblocking(False)
        while port.counters.connections_accepted == before:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        while not all(seat.arrived for seat in port.listener._seats.taken.values()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
        if origin == asks:
            await is_answered(clients[-1], loop)


async def is_answered(client: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
    client.sendall(b"are you alive?")
    assert await loop.sock_recv(client, 16) == b"alive"


@contextmanager
def opened(share: float = 1.0, *, busy: bool = True, rush_connections: int | None = 4) -> Iterator[Port]:
    """A port that is open; where it is busy each connection has a request under way until it was answered."""
    port = Port(share, rush_connections=rush_connections)
    port.visitors_are_busy = busy
    port.listener.open()
    try:
        yield port
    finally:
        port.listener.close()


def seats_of(port: Port) -> Counter[str]:
    return Counter(seat.peer for seat in port.listener._seats.taken.values())


@pytest.mark.asyncio
async def test_addresses_that_take_all_they_can_leave_seats_to_others(monkeypatch):
    coming = ["first"] * SEATS + ["second"] * SEATS + ["third"] * SEATS + ["gateway"]
    with opened(share=0.5) as port:
        async with visits(port, coming, monkeypatch, asks="gateway"):
            assert seats_of(port) == {"first": SEATS // 2, "second": SEATS // 4, "third": SEATS // 8, "gateway": 1}
            assert port.counters.connections_evicted == 0


@pytest.mark.asyncio
async def test_an_address_with_few_takes_the_seat_of_one_with_more_where_little_is_free(monkeypatch):
    coming = ["first"] * 16 + ["second"] * 8 + ["third"] * 4 + ["fourth"] * 2 + ["gateway"] * 4
    with opened(share=0.5, busy=False) as port:
        async with visits(port, coming, monkeypatch):
            seats = seats_of(port)
    assert seats["gateway"] == 4
    assert seats["first"] < 16


@pytest.mark.asyncio
async def test_what_was_of_use_lately_keeps_its_seat_while_others_are_busy(monkeypatch):
    coming = ["gateway"] + ["crowd"] * (SEATS - 1) + ["flood"] * 20
    with opened() as port:
        async with visits(port, coming, monkeypatch, asks="gateway") as clients:
            await is_answered(clients[0], asyncio.get_running_loop())
            assert (port.counters.connections_evicted, port.counters.connections_refused) == (0, 20)

            monkeypatch.setattr("endpick.transport.seats._LATELY_SECONDS", 0.0)  # as if that were long ago
            async with visits(port, ["flood"], monkeypatch):
                assert await asyncio.get_running_loop().sock_recv(clients[0], 16) == b""
                assert port.counters.connections_evicted == 1


@pytest.mark.asyncio
async def test_of_clients_that_have_gone_again_nothing_is_made():
    with opened() as port:
        address = port.socket.getsockname()
        for turn in range(300):
            with socket.create_connection(address, 10) as knocks:
                if turn % 2:
                    knocks.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
        with socket.create_connection(address, 10) as probe:
            probe.setblocking(False)
            async with asyncio.timeout(10):
                await is_answered(probe, asyncio.get_running_loop())
    assert port.visitors == 1
    assert port.counters.connections_accepted == 301


@pytest.mark.asyncio
@pytest.mark.parametrize("rush_connections", [4, None])
async def test_where_many_wait_nothing_is_made_of_clients_that_have_gone_after_a_word(rush_connections):
    with opened(busy=False, rush_connections=rush_connections) as port, ExitStack() as half_closed:
        address = port.socket.getsockname()
        for turn in range(300):
            knocks = socket.create_connection(address, 10)
            knocks.sendall(b"are you alive?")
            if turn % 3 == 0:
                half_closed.enter_context(knocks).shutdown(socket.SHUT_WR)
                continue
            if turn % 3 == 1:
                knocks.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            knocks.close()
        with socket.create_connection(address, 10) as probe:
            probe.setblocking(False)
            async with asyncio.timeout(10):
                await is_answered(probe, asyncio.get_running_loop())
    assert port.visitors == 2 * (SEATS // 16) + 1, "two turns take what they can before it is known that many wait"
    assert (port.counters.connections_accepted, port.counters.connections_refused_peer) == (301, 0)


@pytest.mark.asyncio
async def test_who_asks_and_says_no_more_is_answered_where_nobody_else_waits():
    with opened() as port, socket.create_connection(port.socket.getsockname(), 10) as asks_once:
        asks_once.sendall(b"are you alive?")
        asks_once.shutdown(socket.SHUT_WR)
        asks_once.setblocking(False)
        async with asyncio.timeout(10):
            assert await asyncio.get_running_loop().sock_recv(asks_once, 16) == b"alive"


@pytest.mark.asyncio
async def test_behind_more_connections_of_one_address_than_can_be_taken_another_is_heard(caplog):
    with opened(busy=False) as port, ExitStack() as crowd:
        address = port.socket.getsockname()
        for _ in range(600):  # all of them wait in the kernel, since the event loop has no turn
            crowd.enter_context(socket.create_connection(address, 10, ("127.0.0.2", 0)))
        probe = crowd.enter_context(socket.create_connection(address, 10))
        probe.setblocking(False)
        async with asyncio.timeout(20):
            await is_answered(probe, asyncio.get_running_loop())
    assert port.counters.connections_accepted == 601
    assert port.counters.connections_refused_peer == 601 - port.visitors > 300
    assert [line.message for line in caplog.records if "can be taken" in line.message] == [
        "connections refused: one address opens more than can be taken"
    ]


def test_of_ipv6_the_first_half_says_to_whom_an_address_belongs():
    assert listener._origin("fd77::1")[0] == listener._origin("fd77::2%eth0")[0] != listener._origin("fd77:0:0:1::1")[0]
    assert listener._origin("fd77::2%eth0")[1] == "fd77::2"
    for alone in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        peer, address = listener._origin(alone)
        assert peer == address
    assert listener._origin("::ffff:127.0.0.1") != listener._origin("::ffff:127.0.0.2")
