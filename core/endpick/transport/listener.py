"""A port that a flood does not close to others: it limits connections, ends idle ones for new ones, and leaves file descriptors."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import socket
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Protocol, cast

from endpick.api.tls_channel import TlsChannel
from endpick.api.turns import Turns
from endpick.transport.limits import AcceptLimits
from endpick.transport.rush import Rush
from endpick.transport.seats import Guest, Seat, Seats
from endpick.transport.tls import CertificateWatch

__all__ = ["AcceptCounters", "Listener", "descriptors_of", "site_of"]

_log = logging.getLogger(__name__)

_MOST_ACCEPTED_AT_ONCE = 32
"""Connections taken in one turn of the event loop; the others wait in the kernel for the next."""
_ACCEPT_SECONDS = 0.002
"""In one turn of the event loop: where all seats are taken, to find one for a connection means to look at all of them."""
_LEAST_BACKLOG = 4096
"""Where the kernel has no room for a connection, its client asks again after a second: a probe is late then."""
_TURNS_TO_FILL = 16
"""A flood takes so many turns at least to fill all seats, so that a connection's first request is read before its seat is wanted."""
_SHORTEST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_LOG_INTERVAL_SECONDS = 60.0
_NOTHING_LEFT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_DESCRIPTORS = "/proc/self/fd"
_IPV6_SITE_BYTES = 8
"""Who has one IPv6 address has 2^64 of them."""

_TCP_INFO: int | None = getattr(socket, "TCP_INFO", None)
"""Of Linux, where the first byte of what it tells is the state of the connection."""
_ENDED_STATES = (b"\x07", b"\x08")
"""TCP_CLOSE and TCP_CLOSE_WAIT, as Linux numbers them."""


class AcceptCounters(Protocol):
    """What a listener counts; see `TransportCounters`."""

    connections_accepted: int
    connections_refused: int
    connections_refused_peer: int
    connections_evicted: int
    accept_pauses: int
    tls_handshake_failures: int
    tls_handshakes_too_long: int


class Listener:
    """Accepts connections on one port and hands them to the protocols that `new_guest` makes; each calls `arrived` and `left`."""

    def __init__(
        self,
        bound: socket.socket,
        limits: AcceptLimits,
        counters: AcceptCounters,
        new_guest: Callable[[str], Guest],
        turns: Turns,
        tls: CertificateWatch | None = None,
    ) -> None:
        """Keep what is needed.

        Args:
            bound: A socket that does not listen yet; the listener owns it.
            limits: Of this port.
            counters: Where it is counted what becomes of connections.
            new_guest: Makes the protocol of a connection, given the address that it comes from.
            turns: The queue of the port; handshakes stand in it.
            tls: None for plain text.
        """
        self._socket = bound
        self._port: int = bound.getsockname()[1]
        self._limits = limits
        self._counters = counters
        self._new_guest = new_guest
        self._turns = turns
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._seats = Seats(limits)
        self._unwanted: set[Guest] = set()
        """Lost their seat before their connection was made."""
        self._accepted_at_once = min(_MOST_ACCEPTED_AT_ONCE, max(1, limits.max_connections // _TURNS_TO_FILL))
        self._rush = Rush(limits.rush_connections)
        self._pause_seconds = _SHORTEST_PAUSE_SECONDS
        self._resuming: asyncio.TimerHandle | None = None
        self._logged_at: dict[str, float] = {}
        self._open_files, self._first_reserved = descriptors_of(limits.reserved_descriptors)

    def open(self) -> None:
        """Begin to accept."""
        if self._open_files < self._limits.max_connections + self._limits.reserved_descriptors:
            self._log("room for fewer connections than allowed", f"raise the limit of open files (ulimit -n), which is {self._open_files}")
        self._socket.listen(max(_LEAST_BACKLOG, self._limits.max_connections))
        self._loop.add_reader(self._socket, self._accept_some)

    def close(self) -> None:
        """Accept nothing any more; handshakes that are under way end. Idempotent."""
        if self._socket.fileno() < 0:
            return
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        for guest in [guest for guest, seat in self._seats.taken.items() if not seat.arrived]:
            self._unseat(guest)

    def arrived(self, guest: Guest) -> None:
        """A connection has been made; it goes again if it lost its seat meanwhile."""
        if guest in self._unwanted:
            self._loop.call_soon(guest.evict)
        elif guest in self._seats.taken:
            self._seats.taken[guest].arrived = True

    def left(self, guest: Guest) -> None:
        """A connection is gone; idempotent."""
        self._seats.leave(guest)

    def _accept_some(self) -> None:
        now = time.monotonic()
        ends_at = now + _ACCEPT_SECONDS
        taken = 0
        while taken < self._accepted_at_once and now < ends_at:
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                self._rush.turn_ended(now, left_some=False)
                return
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno not in _NOTHING_LEFT:
                    raise
                self._evict(lambda _seat: True, False)
                self._pause()
                return
            self._counters.connections_accepted += 1
            now = time.monotonic()
            if self._is_turned_away(accepted, str(address[0]), now):
                accepted.close()
                continue
            taken += 1
            if not self._take(accepted, *_origin(str(address[0]))):
                return
        self._rush.turn_ended(now, left_some=True)

    def _is_turned_away(self, accepted: socket.socket, address: str, now: float) -> bool:
        """Whether nothing is to be made of a connection: its client has gone again, or has just had its share of a rush.

        One that has said something and gone looks like one that waits for an answer and says no more, which is heard while it alone waits.
        """
        heard = _heard(accepted)
        if heard == b"" or (self._rush.many_wait and _has_ended(accepted)):
            return True
        if not self._rush.lasts or not self._rush.is_one_too_many(site_of(address), now, has_spoken=heard is not None):
            return False
        self._counters.connections_refused_peer += 1
        self._log(
            "connections refused: one address opens more than can be taken",
            "look at what connects from there without a pause; --max-rush-connections says how many it may have",
        )
        return True

    def _take(self, accepted: socket.socket, peer: str, address: str) -> bool:
        """Give a connection its seat, or close it; False if no further one can be accepted for now.

        One that has a reserved descriptor took the place of another, which is closed by the next turn: until then no more are taken.
        """
        takes_reserve = self._takes_reserve(accepted)
        if self._seats.are_all_taken and not self._seats.make_room(peer, self._evict):
            self._counters.connections_refused += 1
            self._log("connections refused: there are as many as allowed, and none is idle", f"raise {self._limits.connections_flag}")
            accepted.close()
        elif not self._seats.make_room_in_share(peer, address, self._evict):
            self._counters.connections_refused_peer += 1
            self._log("connections refused: one address has its share of them", f"raise {self._limits.peer_flag}")
            accepted.close()
        elif takes_reserve and not self._seats.make_room(peer, self._evict):
            accepted.close()
            self._pause()
            return False
        else:
            self._pause_seconds = _SHORTEST_PAUSE_SECONDS
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            guest = self._new_guest(peer)
            channel = self._channel(guest, peer)
            connecting = self._loop.create_task(self._connect(guest, channel, accepted))
            connecting.add_done_callback(lambda task: self._connected(task, guest, accepted))
            has_reserved = accepted.fileno() >= self._first_reserved
            self._seats.take(guest, peer, address, channel, connecting, has_reserved=has_reserved)
        return not takes_reserve

    def _takes_reserve(self, accepted: socket.socket) -> bool:
        """Whether as many descriptors are left as are reserved only without this connection.

        The system gives the lowest free one, so that alone tells while no seat has a reserved one; then they are counted.
        """
        if accepted.fileno() >= self._first_reserved or not self._seats.reserved:
            return accepted.fileno() >= self._first_reserved
        try:
            return len(os.listdir(_DESCRIPTORS)) > self._first_reserved  # noqa: PTH208 - names are enough
        except OSError:
            return True

    def _channel(self, guest: Guest, peer: str) -> TlsChannel | None:
        if self._tls is None:
            return None
        protocol = cast("asyncio.Protocol", guest)
        failed = partial(self._handshake_failed, guest)
        limits = self._limits
        return TlsChannel(
            protocol, self._tls.context, limits.handshake_seconds, self._turns, peer, failed, most_bytes=limits.max_handshake_bytes
        )

    def _handshake_failed(self, guest: Guest, too_long: bool) -> None:
        self._counters.tls_handshake_failures += 1
        self._counters.tls_handshakes_too_long += too_long
        self.left(guest)

    async def _connect(self, guest: Guest, channel: TlsChannel | None, accepted: socket.socket) -> None:
        protocol = cast("asyncio.Protocol", guest) if channel is None else channel
        try:
            await self._loop.connect_accepted_socket(lambda: protocol, accepted)
        except OSError:  # the client is gone already
            accepted.close()
            self.left(guest)

    def _connected(self, task: asyncio.Task[None], guest: Guest, accepted: socket.socket) -> None:
        self._unwanted.discard(guest)
        if task.cancelled():
            accepted.close()
        elif (fault := task.exception()) is not None:
            accepted.close()
            self.left(guest)
            raise fault  # a mistake of ours: the loop logs it, where a task that no caller awaits would keep it to itself

    def _evict(self, concerned: Callable[[Seat], bool], spares_known: bool) -> bool:
        """See `seats.Evict`."""
        victim = self._seats.first_to_go(concerned, spares_known=spares_known)
        if victim is None:
            return False
        self._counters.connections_evicted += 1
        self._log("idle connections closed: others need the room", f"raise {self._limits.connections_flag} if gateways are among them")
        self._unseat(victim)
        return True

    def _unseat(self, guest: Guest) -> None:
        """Have a connection gone, or given up before it is made."""
        seat = self._seats.taken[guest]
        self.left(guest)
        if seat.arrived:
            guest.evict()
            return
        if seat.channel is None:
            self._unwanted.add(guest)
        else:
            seat.channel.abort()

    def _pause(self) -> None:
        """Leave further connections to the kernel for a while: file descriptors have run out, or what is left is reserved."""
        self._counters.accept_pauses += 1
        self._log(
            "no file descriptor is left for a connection, so accepting pauses",
            f"raise the limit of open files (ulimit -n), which is {self._open_files}, or lower {self._limits.connections_flag}",
        )
        self._loop.remove_reader(self._socket)
        self._resuming = self._loop.call_later(self._pause_seconds, self._loop.add_reader, self._socket, self._accept_some)
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def _log(self, what: str, advice: str) -> None:
        now = time.monotonic()
        if now - self._logged_at.get(what, -_LOG_INTERVAL_SECONDS) >= _LOG_INTERVAL_SECONDS:
            self._logged_at[what] = now
            _log.warning("%s", what, extra={"port": self._port, "advice": advice})


def _heard(accepted: socket.socket) -> bytes | None:
    """What the client of a new connection says first: None for nothing yet, no bytes if it has gone again instead.

    To look costs a hundredth of what it costs to make a connection of it.
    """
    try:
        return accepted.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _has_ended(accepted: socket.socket) -> bool:
    """Whether the client of a new connection says no more than it has: it has closed it, reset it, or closed its side of it."""
    if _TCP_INFO is None:
        return False
    return accepted.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1) in _ENDED_STATES


def descriptors_of(reserved: int) -> tuple[int, int]:
    """How many files this process may have open, and the lowest descriptor that connections may not have; at most half are reserved."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return 2**31 - 1, 2**31 - 1
    return limit, limit - min(reserved, limit // 2)


def site_of(address: str) -> str:
    """Who an address belongs to: itself, or the 2^64 addresses around it."""
    return _origin(address)[0]


@lru_cache(maxsize=1024)  # in a flood it is asked for thousands of times a second
def _origin(address: str) -> tuple[str, str]:
    """Who an address belongs to, and itself: the same, but for IPv6, where 2^64 addresses belong together."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is None and not parsed.is_loopback:
        return parsed.packed[:_IPV6_SITE_BYTES].hex(), str(parsed)
    return str(parsed), str(parsed)
