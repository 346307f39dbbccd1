"""Who is connected to a port of grpcio's, and what they have it hold: grpcio limits neither, so connections beyond limits end here.

grpcio tells of a connection only what its client is called, and only while a stream is open. The rest is asked of the system.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from endpick.requests.memory import MemoryAccount, MemoryBudget, OverloadStage
from endpick.transport.grpcio_sockets import PortSockets, bytes_received, hang_up, open_files
from endpick.transport.h2.errors import RateBudget
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.listener import descriptors_of, site_of

__all__ = ["WAITING_STREAM_BYTES", "Guest", "Guests", "Resets"]

_log = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 0.1
_HASTY_SECONDS: Final = 0.02
"""While connections send much that no stream has taken, or are too many."""
_MUCH_BYTES: Final = 4 * 2**20
_SHARE_OF_TIME: Final = 0.02
"""Looking takes no more of it, however many connections there are."""
_NEWCOMER_SECONDS: Final = 1.0
_MOST_NEWCOMERS: Final = 32
"""The last connections are about to ask, and go last."""
_SPARE: Final = 8
"""Of so many seats one is kept free: grpcio refuses a connection as soon as all are taken."""
_LOG_SECONDS: Final = 60.0
_STREAM_BYTES: Final = 512
_MESSAGE_BYTES: Final = 64
_PER_FRAMING_BYTE: Final = 512
"""What comes on a connection beside headers and messages, at most: so much for a stream, for a message, and a byte for so many of one."""
WAITING_STREAM_BYTES: Final = 20_000
"""What a stream takes in grpcio and in Python before it has said anything: 32,000 of them took 690 MiB."""
_LEAST_TO_BLAME_BYTES: Final = 2**20
_PART_OF_MEMORY: Final = 4
"""grpcio may hold one part of so many of what the process may use."""
_FEW_RESETS: Final = 128
_FEW_RESETS_PER_SECOND: Final = 10.0
"""A connection may have so many in any case, so that others from its address do not end it."""
_MOST_SITES: Final = 4096


@dataclass(slots=True, eq=False)
class Guest:
    """One connection.

    Attributes:
        peer: As grpcio names its client.
        site: Whom its address belongs to.
        descriptor: -1 until the system has been asked.
        inode: That of its socket.
        came_at: When it was seen first, in monotonic seconds, as all times here.
        streams: How many are open.
        waiting: How many have come and have not begun.
        silent: How many of them have sent nothing but headers.
        idle_since: When the last one ended.
        has_served: Whether it ever had one.
        explained: Bytes that came since the last look and that grpcio need not hold, at least so many: headers, and what streams took.
        gone: How many streams have ended since then.
        received: Bytes that had come at the last look.
        held: Bytes that grpcio holds of it, at least so many.
        is_banned: It is to be ended, and none of its streams begins any more.
        is_leaving: It was ended, and grpcio has not noticed yet.
        is_gone: The system does not have it any more.
    """

    peer: str
    came_at: float
    idle_since: float
    site: str = ""
    descriptor: int = -1
    inode: int = 0
    streams: int = 0
    waiting: int = 0
    silent: int = 0
    has_served: bool = False
    explained: int = 0
    gone: int = 0
    received: int = 0
    held: int = 0
    is_banned: bool = False
    is_leaving: bool = False
    is_gone: bool = False

    @property
    def is_done_with(self) -> bool:
        """Whether none of its streams begins any more."""
        return self.is_banned or self.is_leaving or self.is_gone

    @property
    def port(self) -> int:
        """That of its client; 0 where its name has none."""
        number = self.peer.rpartition(":")[2]
        return int(number) if number.isdecimal() else 0

    def began(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> None:
        """It has opened a stream with these headers."""
        self.streams += 1
        self.silent += 1
        self.has_served = True
        self.explained += _STREAM_BYTES
        for name, value in metadata or ():
            self.explained += len(name) + len(value)

    def took(self, size: int, *, is_first: bool) -> None:
        """A stream has taken a message of this size."""
        self.silent -= is_first
        self.explained += size + _MESSAGE_BYTES + size // _PER_FRAMING_BYTE

    def ended(self, *, was_silent: bool) -> None:
        """A stream is over."""
        self.silent -= was_silent
        self.streams -= 1
        self.gone += 1
        self.idle_since = time.monotonic()

    @property
    def weight(self) -> int:
        """What it has grpcio hold in all."""
        return self.held + (self.silent + self.waiting) * WAITING_STREAM_BYTES

    def sits_at(self, descriptor: int, inode: int) -> None:
        """Here the system has it; another inode than before is that of another connection from the same port."""
        if self.inode and inode != self.inode:
            self.received, self.held = bytes_received(descriptor, inode) or 0, 0
            self.explained, self.gone, self.is_leaving, self.is_banned = 0, 0, False, False
        self.descriptor, self.inode, self.is_gone = descriptor, inode, False

    def measure(self) -> None:
        """Ask how much has come, and reckon what of it no stream has taken.

        What a stream had not taken goes with it. How much that was grpcio does not tell, so all streams count alike: of a gateway, whose
        streams end all the time, less is believed to be held than is, and never more.
        """
        if not (self.streams or self.waiting or self.gone or self.explained):
            return
        received = bytes_received(self.descriptor, self.inode)
        if received is not None:
            held = max(0, self.held + received - self.received - self.explained)
            open_streams = self.streams + self.waiting
            self.held = held * open_streams // (open_streams + self.gone) if open_streams else 0
            self.received = received
        self.explained = self.gone = 0


class Resets:
    """Counts streams that end before their answer, by connection, and by address, since a connection that was ended is soon made again."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of_sites: dict[str, RateBudget] = {}
        self._of_peers: dict[str, tuple[RateBudget, RateBudget]] = {}
        """What each connection may have as long as its address has not used up its own, and what it may have in any case."""

    def may_be(self, peer: str, site: str) -> bool:
        """Count one more of this connection; False when it is one too many."""
        now = time.monotonic()
        if peer not in self._of_peers:
            self._of_peers[peer] = self._usual(now), RateBudget(_FEW_RESETS, _FEW_RESETS_PER_SECOND, now)
        if site not in self._of_sites:
            if len(self._of_sites) >= _MOST_SITES:
                self._of_sites.clear()
            self._of_sites[site] = self._usual(now)
        own, few = self._of_peers[peer]
        is_own, is_of_site, is_few = own.spend(now), self._of_sites[site].spend(now), few.spend(now)
        return is_own and (is_of_site or is_few)

    def forget(self, peer: str) -> None:
        """The connection is gone."""
        self._of_peers.pop(peer, None)

    def _usual(self, now: float) -> RateBudget:
        return RateBudget(self._limits.unanswered_resets_burst, self._limits.unanswered_resets_per_second, now)


class Guests:
    """Looks at the connections of one port some times a second."""

    def __init__(self, limits: Limits, counters: TransportCounters, account: MemoryAccount) -> None:
        self.memory = MemoryBudget(min(limits.max_buffered_bytes, account.limit_bytes // _PART_OF_MEMORY), account)
        """What grpcio holds of messages that no stream has taken, and for streams that said nothing."""
        self.replies = MemoryBudget(self.memory.limit_bytes, account)
        """What it holds of replies that no client has taken."""
        self._limits = limits
        self._counters = counters
        self._most_of_a_site = max(1, int(limits.max_connections * limits.max_peer_share))
        self._open_files, self._most_files = descriptors_of(limits.reserved_descriptors)
        self.seats = max(1, min(limits.max_connections, self._most_files - open_files()))
        """How many connections grpcio may accept, so that the reserved descriptors stay free."""
        self._most = self.seats - self.seats // _SPARE
        self._sockets: PortSockets | None = None
        self._guests: dict[str, Guest] = {}
        self._resets = Resets(limits)
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._logged_at: dict[str, float] = {}

    def start(self, port: int) -> None:
        """Look from now on."""
        if self._open_files < self._limits.max_connections + self._limits.reserved_descriptors:
            self._tell("room for fewer connections than allowed", f"raise the limit of open files (ulimit -n), which is {self._open_files}")
        self._sockets = PortSockets(port)
        self.look()

    def stop(self) -> None:
        """Look no more; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._hold(0)

    def of(self, peer: str) -> Guest:
        """The connection of a stream."""
        name = _plain(peer)
        guest = self._guests.get(name)
        if guest is None:
            now = time.monotonic()
            guest = self._guests[name] = Guest(name, now, now, _site_in(name))
        return guest

    def unanswered(self, guest: Guest) -> None:
        """A stream of this connection has ended before its first answer: with too many of those, the connection ends."""
        if guest.is_done_with or self._resets.may_be(guest.peer, guest.site):
            return
        guest.is_banned = True
        self._counters.reset_floods += 1
        if self._timer is not None and self._timer.when() - asyncio.get_running_loop().time() > _HASTY_SECONDS:
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(_HASTY_SECONDS, self.look)

    def look(self) -> None:
        """See who is there, end connections that are one too many, and look again in a moment."""
        assert self._sockets is not None
        if self._timer is not None:
            self._timer.cancel()
        began, before = time.thread_time(), self._held
        present = self._listed(self._sockets.look())
        for guest in present:
            guest.measure()
        self._account_for(present)
        self._make_room(present)
        leaving = any(guest.is_leaving for guest in self._guests.values())
        is_hasty = leaving or self._held - before > _MUCH_BYTES or self._held > self.memory.limit_bytes // 2
        pause = max(_HASTY_SECONDS if is_hasty else _LOOK_SECONDS, (time.thread_time() - began) / _SHARE_OF_TIME)
        self._timer = asyncio.get_running_loop().call_later(pause, self.look)

    def _listed(self, found: Mapping[int, tuple[int, tuple[str, int]]]) -> list[Guest]:
        """The connections that are there and stay."""
        here, ports, looked_at = set(), set(), time.monotonic()
        for inode, (descriptor, client) in found.items():
            peer = _name_of(client)
            ports.add(client[1])
            here.add(peer)
            guest = self.of(peer)
            guest.sits_at(descriptor, inode)
            if guest.is_banned and not guest.is_leaving:
                self._end(guest)
        for peer, guest in list(self._guests.items()):
            if peer not in here:
                guest.is_gone = bool(ports) and guest.came_at < looked_at and guest.port not in ports
                if not (guest.streams or guest.waiting):
                    del self._guests[peer]
                    self._resets.forget(peer)
        return [guest for peer, guest in self._guests.items() if peer in here and not guest.is_leaving]

    def _account_for(self, present: Sequence[Guest]) -> None:
        """What grpcio holds counts in the account; where that is too much, those that hold most end, until half of it goes with them."""
        held = sum(guest.weight for guest in present)
        # No more than that: requests of others need not be refused for what goes in a moment.
        self._hold(min(held, self.memory.limit_bytes))
        if held <= self.memory.limit_bytes and self.memory.account.stage < OverloadStage.CLOSING:
            return
        too_much = held // 2
        for guest in sorted(present, key=lambda guest: -guest.weight):
            if too_much <= 0 or guest.weight < _LEAST_TO_BLAME_BYTES:
                break
            too_much -= guest.weight
            self._counters.buffer_exhaustions += 1
            self._end(guest)
        self._hold(sum(guest.weight for guest in present if not guest.is_leaving))

    def _hold(self, held: int) -> None:
        self.memory.hold(held - self._held)
        self._held = held

    def _make_room(self, present: Sequence[Guest]) -> None:
        """End idle connections where others need their seats or descriptors, and those of an address that has more than its share."""
        assert self._sockets is not None
        if any(guest.streams and not guest.inode for guest in self._guests.values()):
            return  # which connection these streams are on the system did not say: one that looks idle may have them
        by_site = Counter(guest.site for guest in present)
        for site, count in by_site.items():
            if count > self._most_of_a_site:
                self._limit([guest for guest in present if guest.site == site], count - self._most_of_a_site)
        stay = [guest for guest in present if not guest.is_leaving]
        leaving = sum(guest.is_leaving for guest in self._guests.values())
        missing = max(len(stay) - self._most, self._sockets.open_files - leaving - self._most_files)
        for guest in _idle(stay, by_site)[: max(0, missing)]:
            self._evict(guest)

    def _limit(self, own: Sequence[Guest], excess: int) -> None:
        """Leave an address its share: first what is idle goes, then what came last."""
        idle = _idle(own, Counter())[:excess]
        for guest in idle:
            self._evict(guest)
        busy = sorted((guest for guest in own if guest.streams), key=lambda guest: -guest.came_at)
        for guest in busy[: excess - len(idle)]:
            self._counters.connections_refused_peer += 1
            self._tell("connections refused: one address has its share of them", "raise --max-connections-share")
            self._end(guest)

    def _evict(self, guest: Guest) -> None:
        self._counters.connections_evicted += 1
        self._tell("idle connections closed: others need the room", f"raise {self._limits.connections_flag} if gateways are among them")
        self._end(guest)

    def _end(self, guest: Guest) -> None:
        guest.is_leaving = hang_up(guest.descriptor, guest.inode)

    def _tell(self, what: str, advice: str) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(what, -_LOG_SECONDS) >= _LOG_SECONDS:
            self._logged_at[what] = now
            _log.warning("%s", what, extra={"advice": advice})


def _idle(guests: Sequence[Guest], by_site: Mapping[str, int]) -> list[Guest]:
    """Those without streams, in the order in which they go: what was never of use first, of the address that has most, idle for longest."""
    idle = sorted((guest for guest in guests if not guest.streams), key=lambda guest: guest.came_at)
    newcomers_from = time.monotonic() - _NEWCOMER_SECONDS
    newcomers = {guest.peer for guest in idle[-_MOST_NEWCOMERS:] if guest.came_at > newcomers_from}

    def rank(guest: Guest) -> tuple[int, int, float]:
        order = 1 if guest.has_served else 2 * (guest.peer in newcomers)
        return order, -by_site.get(guest.site, 0), guest.idle_since

    return sorted(idle, key=rank)


def _name_of(client: tuple[str, int]) -> str:
    """As `_plain` of what grpcio calls the client."""
    host, port = client
    host = host.removeprefix("::ffff:") if "." in host else host
    return f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"


def _plain(peer: str) -> str:
    return unquote(peer) if "%" in peer else peer


def _site_in(peer: str) -> str:
    """Whom the address belongs to in what `_plain` says of a client."""
    host = peer.partition(":")[2].rpartition(":")[0].strip("[]")
    try:
        return site_of(host)
    except ValueError:  # no address of IP
        return peer
