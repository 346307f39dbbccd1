"""Where streams of grpcio's begin: where more have come than can begin at once, addresses take turns, and connections of one.

grpcio hands streams over in the order in which they came, of all connections, those as well that their client has reset meanwhile. So they
are taken from it as fast as it gives them, which costs a fraction of what it costs to begin one, and wait here, where each waits for the
streams of its own connection and not for those of others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from endpick.transport.grpcio_guests import WAITING_STREAM_BYTES, Guest, Guests
from endpick.transport.limits import TransportCounters

__all__ = ["Door"]

_BEGIN_AT_ONCE: Final = 4
"""So many streams begin between two looks at everything else: 1 ms of work, where they are reset as soon as they have begun."""
_DROP_AT_ONCE: Final = 32
"""In place of one that begins, so many can be dropped."""
_LEAST_LINES: Final = 1024
"""So many streams may wait in any case."""

Begin: TypeAlias = "Callable[[], None]"
"""Begins a stream; to drop the stream, nothing keeps this."""


@dataclass(slots=True)
class _Site:
    """What waits of one address: streams of each connection, the connection whose turn comes first at the front."""

    lines: dict[Guest, deque[Begin]] = field(default_factory=dict)
    waiting: int = 0


class Door:
    """Lets the streams of one port begin."""

    def __init__(self, guests: Guests, counters: TransportCounters) -> None:
        self._guests = guests
        self._counters = counters
        self._most = max(_LEAST_LINES, guests.memory.limit_bytes // WAITING_STREAM_BYTES)
        self._sites: dict[str, _Site] = {}
        """The one whose turn comes first at the front."""
        self._waiting = 0
        self._room = _BEGIN_AT_ONCE
        self._turning: asyncio.Handle | None = None

    def came(self, peer: str, begin: Begin) -> None:
        """A stream of this client has come: it begins now, or when its turn comes, and not at all where too much waits of its address."""
        guest = self._guests.of(peer)
        if guest.is_done_with:
            return
        if self._room and not self._sites:
            self._room -= 1
            begin()
        elif self._waiting >= self._most and self._has_its_share(guest.site):
            self._counters.streams_refused += 1
            self._guests.unanswered(guest)
        else:
            self._wait(guest, begin)
        if self._turning is None:
            self._turning = asyncio.get_running_loop().call_soon(self._turn)

    def close(self) -> None:
        """Drop what waits."""
        for site in self._sites.values():
            for guest in site.lines:
                guest.waiting = 0
        self._sites.clear()
        self._waiting = 0

    def _has_its_share(self, site: str) -> bool:
        return site in self._sites and self._sites[site].waiting * len(self._sites) >= self._waiting

    def _wait(self, guest: Guest, begin: Begin) -> None:
        site = self._sites.setdefault(guest.site, _Site())
        site.lines.setdefault(guest, deque()).append(begin)
        self._count(guest, site, 1)

    def _count(self, guest: Guest, site: _Site, change: int) -> None:
        guest.waiting += change
        site.waiting += change
        self._waiting += change

    def _turn(self) -> None:
        self._turning = None
        self._room = _BEGIN_AT_ONCE
        while self._room and self._sites:
            self._room -= 1
            self._next()
        if self._sites:
            self._turning = asyncio.get_running_loop().call_soon(self._turn)

    def _next(self) -> None:
        """Let one stream begin, or drop some of a connection that goes, and move both the connection and its site to the end."""
        name, site = next(iter(self._sites.items()))
        guest, line = next(iter(site.lines.items()))
        del self._sites[name], site.lines[guest]
        if guest.is_done_with:
            dropped = [line.popleft() for _ in range(min(_DROP_AT_ONCE, len(line)))]
            self._count(guest, site, -len(dropped))
        else:
            self._count(guest, site, -1)
            line.popleft()()
        if line:
            site.lines[guest] = line
        if site.lines:
            self._sites[name] = site
