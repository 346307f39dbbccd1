"""The seats of one port: who sits there, whether an address may have one more, and who goes first where others need the room."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from endpick.api.tls_channel import TlsChannel
from endpick.transport.limits import AcceptLimits

__all__ = ["Guest", "Seat", "Seats"]

_RANKING_SECONDS: Final = 0.02
"""How long it holds in which order connections would have to go."""
_MOST_NEWCOMERS: Final = 32
"""The last connections, as long as they have not been of use, keep their seats before idle ones that have: they are about to ask."""
_SEATS_PER_NEWCOMER: Final = 4
_LATELY_SECONDS: Final = 60.0
"""A connection that was of use so lately is about to be of use again: a client that asks on it just then would lose what it asks."""
_KNOWN_PART: Final = 2
"""One part of so many of the seats, at most, is kept for connections that were of use lately."""

Rank = tuple[int, int, float]
"""The lower, the sooner a connection has to go."""
_NEVER_OF_USE, _OF_USE_ONCE, _BUSY, _NEWCOMER, _OF_USE_LATELY = range(5)


class Guest(Protocol):
    """A connection as its listener sees it; an asyncio protocol."""

    def idle_since(self) -> float | None:
        """Since when, by `time.monotonic`, it has had nothing to do; None while it has."""

    def served(self) -> bool:
        """Whether it has ever had something to do."""

    def evict(self) -> None:
        """Close at once: another connection needs the room."""


@dataclass(slots=True, eq=False)
class Seat:
    """What is known of a connection beside itself.

    Attributes:
        peer: Whom it counts for.
        address: Of the peer: the same, but for IPv6.
        number: Of all seats ever taken.
        taken_at: By `time.monotonic`.
        channel: What its handshake is made on; None without TLS.
        connecting: Ends when the event loop has the socket.
        has_reserved: Whether its descriptor is one of the reserved ones.
        arrived: Whether its connection has been made.
    """

    peer: str
    address: str
    number: int
    taken_at: float
    channel: TlsChannel | None
    connecting: asyncio.Task[None]
    has_reserved: bool
    arrived: bool = False


Evict = Callable[[Callable[[Seat], bool], bool], bool]
"""Ends a connection whose seat is concerned, and none that was of use lately if the second says so; whether there was one."""


class Seats:
    """Those of one port."""

    def __init__(self, limits: AcceptLimits) -> None:
        self._limits = limits
        self.taken: dict[Guest, Seat] = {}
        self.reserved = 0
        """Seats with a reserved descriptor; others that have been given back are lower ones then, and make no room."""
        self._by_peer: Counter[str] = Counter()
        self._by_address: Counter[str] = Counter()
        self._ever = 0
        """Seats taken."""
        self._newcomers = min(_MOST_NEWCOMERS, limits.max_connections // _SEATS_PER_NEWCOMER)
        self._most_of_peer = max(1, int(limits.max_connections * limits.max_peer_share))
        self._most_of_address = max(1, int(self._most_of_peer * limits.max_peer_share))
        self._ranking: deque[Guest] = deque()
        self._ranked_until = 0.0
        self._ranked_number = 0
        """Of the last seat that was no newcomer's then."""

    def take(
        self, guest: Guest, peer: str, address: str, channel: TlsChannel | None, connecting: asyncio.Task[None], *, has_reserved: bool
    ) -> None:
        """A connection is accepted."""
        self._ever += 1
        self.taken[guest] = Seat(peer, address, self._ever, time.monotonic(), channel, connecting, has_reserved)
        self.reserved += has_reserved
        self._by_peer[peer] += 1
        self._by_address[address] += 1

    def leave(self, guest: Guest) -> None:
        """A connection is gone; idempotent."""
        seat = self.taken.pop(guest, None)
        if seat is not None:
            self.reserved -= seat.has_reserved
            for count, key in ((self._by_peer, seat.peer), (self._by_address, seat.address)):
                count[key] -= 1
                if not count[key]:
                    del count[key]

    @property
    def are_all_taken(self) -> bool:
        """Whether one more needs the seat of another."""
        return len(self.taken) >= self._limits.max_connections

    def make_room(self, peer: str, evict: Evict) -> bool:
        """Have a connection go for one of this peer: any, but none of another peer that was of use lately; whether one did."""
        return evict(_of_any, True) or evict(lambda seat: seat.peer == peer, False)

    def make_room_in_share(self, peer: str, address: str, evict: Evict) -> bool:
        """Whether an address may have one more connection while not all seats are taken; where it has its share, one goes for it.

        `address` is that of the peer: of a /64 of IPv6, one alone leaves some of its share to the others.
        """
        if self._by_peer[peer] >= self._most_of_peer and not evict(lambda seat: seat.peer == peer, False):
            return False
        is_one_of_many = peer != address
        if is_one_of_many and self._by_address[address] >= self._most_of_address and not evict(lambda seat: seat.address == address, False):
            return False
        own = self._by_peer[peer]
        return (
            self._leaves_enough(own)
            or evict(lambda seat: self._by_peer[seat.peer] > own, True)
            or evict(lambda seat: seat.peer == peer, False)
        )

    def _leaves_enough(self, own: int) -> bool:
        """Whether who has so many seats has less than its share of those that others leave.

        Two addresses with half of the seats each would leave none: of what the first leaves the second gets the same share, and so on.
        """
        share = self._limits.max_peer_share
        return own * (1 - share) < share * (self._limits.max_connections - len(self.taken))

    def first_to_go(self, concerned: Callable[[Seat], bool], *, spares_known: bool) -> Guest | None:
        """Who makes room among these: what was never of use, of the address that has most, idle for longest; None if all stay.

        The last that came go late, since what they ask has not been read yet. Before them, where that may be, go those that are busy. Last
        goes what was of use lately, of an address with few, if it does at all.
        """
        first: Guest | None = None
        lowest: Rank = (0, 0, 0.0)
        for guest in self._candidates(concerned):
            rank = self._rank(guest, self.taken[guest])
            if rank is None or (spares_known and rank[0] == _OF_USE_LATELY):
                continue
            if first is None or rank < lowest:
                first, lowest = guest, rank
        return first

    def _candidates(self, concerned: Callable[[Seat], bool]) -> Iterator[Guest]:
        """Who may have to go: the first of those that were ranked last, and all who were newcomers then or are.

        In a flood each connection needs a seat, and to rank a thousand takes a millisecond.
        """
        now = time.monotonic()
        if now > self._ranked_until:
            ranks = ((self._rank(guest, seat), guest) for guest, seat in self.taken.items())
            self._ranking = deque(guest for _, guest in sorted(((rank, guest) for rank, guest in ranks if rank is not None), key=_first))
            self._ranked_until, self._ranked_number = now + _RANKING_SECONDS, self._ever - self._newcomers
        while self._ranking and self._ranking[0] not in self.taken:
            self._ranking.popleft()
        for guest in self._ranking:
            seat = self.taken.get(guest)
            if seat is not None and concerned(seat) and self._rank(guest, seat) is not None:
                yield guest
                break
        for guest, seat in reversed(self.taken.items()):
            if seat.number <= self._ranked_number:
                break
            if concerned(seat):
                yield guest

    def _rank(self, guest: Guest, seat: Seat) -> Rank | None:
        """None if it stays."""
        count = self._by_peer[seat.peer]
        idle_since = guest.idle_since() if seat.arrived else seat.taken_at
        if idle_since is None:
            return None if self._limits.keeps_busy else (_BUSY, -count, seat.taken_at)
        if guest.served():
            order = _OF_USE_LATELY if self._is_known(count) and time.monotonic() - idle_since < _LATELY_SECONDS else _OF_USE_ONCE
        else:
            order = _NEWCOMER if self._ever - seat.number < self._newcomers else _NEVER_OF_USE
        return order, -count, idle_since

    def _is_known(self, count: int) -> bool:
        """Whether who has so many seats may keep them while they are of use: all who have no more can at once, and leave the other half."""
        return self._limits.keeps_busy and count * len(self._by_peer) <= self._limits.max_connections // _KNOWN_PART


def _of_any(_seat: Seat) -> bool:
    return True


def _first(ranked: tuple[Rank, Guest]) -> Rank:
    return ranked[0]
