"""The gateways that behave, in a process of their own, and how long each of their requests waited for its pick.

A pick takes from the moment in which the request is handed to the kernel to that in which the kernel gets the first replies: both are
stamped outside of Python (`SO_TIMESTAMPNS`), so that a driver which has to wait for a processor makes no pick look slow.

python -m benchmarks.siege.gateways EXT_PROC_PORT SECONDS

They behave for so many seconds, or until SIGTERM tells them that it is enough.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import cast

import uvloop

from benchmarks.extproc.messages import conversations
from benchmarks.extproc.phased import Phase, Stream, phases
from benchmarks.extproc.steady import Steady

_GATEWAYS, _STREAMS, _PAUSE_SECONDS = 2, 4, 0.03
_STUCK_SECONDS = 30.0
_SO_TIMESTAMPNS = 35
"""Of Linux; Python has no name for it. The stamp is that of the last byte that was read."""
_READ_BYTES = 65_536
_STAMP = struct.Struct("qq")


class _StampedSocket:
    """What a gateway needs of a transport, with the time at which the kernel got what is read."""

    def __init__(self, port: int, gateway: TimedGateway) -> None:
        self._loop = asyncio.get_running_loop()
        self._gateway = gateway
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._unsent = b""
        self._loop.add_reader(self._socket, self._read)

    def write(self, data: bytes) -> None:
        """As `asyncio.Transport.write`."""
        waits = bool(self._unsent)
        self._unsent += data
        if not waits:
            self._send()

    def abort(self) -> None:
        """As `asyncio.Transport.abort`."""
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()

    def _send(self) -> None:
        with suppress(BlockingIOError):
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        if self._unsent:
            self._loop.add_writer(self._socket, self._send)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data, ancillary, _, _ = self._socket.recvmsg(_READ_BYTES, 64)
        except OSError:
            data, ancillary = b"", []
        if not data:
            self._loop.remove_reader(self._socket)
            self._gateway.connection_lost(None)
            return
        self._gateway.received_at = next((_seconds(stamp) for _, kind, stamp in ancillary if kind == _SO_TIMESTAMPNS), time.time())
        self._gateway.data_received(data)


class TimedGateway(Steady):
    """A gateway that behaves, and remembers when each of its picks began and ended, on the clock of the system."""

    def __init__(self, scripts: Sequence[Sequence[Phase]], rng: random.Random) -> None:
        super().__init__(scripts, rng, [], _STREAMS, _PAUSE_SECONDS)
        self.received_at = 0.0
        self.intervals: list[tuple[float, float]] = []
        self._fresh: list[Stream] = []

    def open(self) -> None:
        super().open()
        self._fresh.append(next(reversed(self.streams.values())))

    def flush(self) -> None:
        now = time.time()
        for stream in self._fresh:
            stream.opened_at = now
        self._fresh.clear()
        super().flush()

    def picked(self, stream: Stream) -> None:
        self.intervals.append((stream.opened_at, self.received_at))


async def behave(port: int, seconds: float) -> dict[str, object]:
    """Ask until the time is up or the caller says so, then let every request come to its end."""
    scripts = [phases(conversation, "plan") for conversation in conversations()[:3]]
    until, told = time.monotonic() + seconds, asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    gateways = [TimedGateway(scripts, random.Random(seed)) for seed in range(_GATEWAYS)]
    sockets = [_StampedSocket(port, gateway) for gateway in gateways]
    for gateway, connected in zip(gateways, sockets, strict=True):
        gateway.connection_made(cast("asyncio.Transport", connected))
    while time.monotonic() < until and not told.is_set() and not any(gateway.lost for gateway in gateways):  # noqa: ASYNC110 - plain protocols
        await asyncio.sleep(0.1)
    for gateway in gateways:
        gateway.retiring = True
    stuck_at = time.monotonic() + _STUCK_SECONDS
    while time.monotonic() < stuck_at and any(gateway.streams and not gateway.lost for gateway in gateways):  # noqa: ASYNC110 - the same
        await asyncio.sleep(0.1)
    for connected in sockets:
        connected.abort()
    return {
        "requests": sum(gateway.done for gateway in gateways),
        "lost": sum(len(gateway.streams) + gateway.lost for gateway in gateways),
        "picks": sorted(interval for gateway in gateways for interval in gateway.intervals),
    }


def _seconds(stamp: bytes) -> float:
    seconds, nanoseconds = _STAMP.unpack(stamp)
    return cast("float", seconds + nanoseconds / 1e9)


def main() -> int:
    """Print what became of the requests, as JSON."""
    behaved = uvloop.run(behave(int(sys.argv[1]), float(sys.argv[2])))
    # Where PYTHONUNBUFFERED is set, `print` loses the rest of what a signal interrupts.
    with open(sys.stdout.fileno(), "w", encoding="utf-8", closefd=False) as output:
        json.dump(behaved, output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
