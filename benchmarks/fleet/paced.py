"""A gateway that sends so many requests a second, each with a prompt of its own: python -m benchmarks.fleet.paced PORT --rate 1000.

The gateways of `benchmarks.extproc` keep a picker as busy as it can be, and then the other processes of the machine decide what a request
costs. This one leaves it idle in between.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvloop

from benchmarks.extproc.messages import variants
from benchmarks.go.driver import Reader, conversation_phases

_TICK_SECONDS = 0.002
PROMPTS = 10_000


@dataclass(frozen=True)
class Pace:
    """What a gateway does."""

    rate: float
    seconds: float
    connections: int
    size: int
    core: int


class Paced(Reader):
    """One connection, on which requests are opened from outside."""

    def proceed(self) -> None:
        """A request is over; the next one has its time."""


class Windows:
    """The connections, and one window of requests after the other."""

    def __init__(self, pace: Pace, first: int) -> None:
        self._pace = pace
        self._picks: list[float] = []
        self._scripts = itertools.cycle([conversation_phases(messages, 0) for messages in variants(pace.size, 0, PROMPTS, first)])
        self._readers: list[Paced] = []

    async def connect(self, port: int) -> None:
        """Open the connections."""
        loop = asyncio.get_running_loop()
        for _ in range(self._pace.connections):
            self._readers.append((await loop.create_connection(lambda: Paced(self._scripts, 0, self._picks), "127.0.0.1", port))[1])

    async def window(self) -> dict[str, object]:
        """Requests at a rate, spread over the connections."""
        loop = asyncio.get_running_loop()
        turns = itertools.cycle(self._readers)
        done = sum(reader.done for reader in self._readers)
        self._picks.clear()
        began, opened = loop.time(), 0
        while (passed := loop.time() - began) < self._pace.seconds:
            for _ in range(int(passed * self._pace.rate) - opened):
                reader = next(turns)
                reader.open()
                reader.flush()
                opened += 1
            await asyncio.sleep(_TICK_SECONDS)
        async with asyncio.timeout(10):
            while any(reader.streams for reader in self._readers):  # noqa: ASYNC110 - answers come by themselves
                await asyncio.sleep(_TICK_SECONDS)
        return {
            "requests": sum(reader.done for reader in self._readers) - done,
            "failed": sum(reader.failed + reader.lost for reader in self._readers),
            "picks_ms": sorted(round(pick * 1000, 3) for pick in self._picks),
        }


class PacedGateway:
    """The process of one gateway."""

    def __init__(self, port: int, pace: Pace, first: int) -> None:
        """Its prompts are numbered from `first` on."""
        command = [sys.executable, "-m", "benchmarks.fleet.paced", str(port), "--rate", str(pace.rate), "--seconds", str(pace.seconds)]
        command += ["--connections", str(pace.connections), "--size", str(pace.size), "--core", str(pace.core), "--first", str(first)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "ready\n"

    def begin(self) -> None:
        """Begin a window."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def requests(self) -> int:
        """Wait for the end of the window; returns how many there were."""
        found = json.loads(self._line())
        assert not found["failed"], f"{found['failed']} requests failed"
        return int(found["requests"])

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def awake(core: int) -> Iterator[None]:
    """Keep a core busy whenever nothing else is to do: a virtual machine takes longer to wake a core than a picker to decide."""
    spin = f"import os; os.sched_setaffinity(0, {{{core}}}); os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as process:
        try:
            yield
        finally:
            process.kill()


async def serve(port: int, pace: Pace, first: int) -> None:
    """A window for each line of standard input."""
    windows = Windows(pace, first)
    await windows.connect(port)
    print("ready", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await windows.window()), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("port", type=int)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--connections", type=int, default=4)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    uvloop.run(serve(options.port, Pace(options.rate, options.seconds, options.connections, options.size, options.core), options.first))


if __name__ == "__main__":
    main()
