"""Mixed traffic for a long time: bodies of all sizes, clients that leave, connections that come and go. Memory must stay flat.

python -m benchmarks.extproc.soak --seconds 600
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Sequence

import uvloop

from benchmarks.extproc.load import cpu_seconds, resident_mebibytes
from benchmarks.extproc.messages import conversations
from benchmarks.extproc.phased import Phase, phases
from benchmarks.extproc.served import COMPILED, served
from benchmarks.extproc.steady import Steady
from benchmarks.model_server import model_server

_STUCK_SECONDS = 30.0
_LEAVING_SHARE = 0.1
"""Requests whose client leaves before the response is complete, half of them before the first answer."""
_CONNECTION_SECONDS = (5.0, 20.0)


class Wanderer(Steady):
    """A gateway that sometimes gives a request up."""

    def choose(self) -> Sequence[Phase]:
        """One of the scripts, perhaps cut short."""
        script = super().choose()
        if self._rng.random() < _LEAVING_SHARE:
            script = script[: self._rng.randrange(len(script))] if self._rng.random() < 0.5 else (Phase(script[0].payloads, 0),)
        return script or (Phase((), 0),)

    def stuck(self) -> int:
        """Requests that should have ended long ago."""
        before = time.perf_counter() - _STUCK_SECONDS
        return sum(stream.opened_at < before for stream in self.streams.values())


async def wander(port: int, scripts: Sequence[Sequence[Phase]], options: argparse.Namespace, seed: int, tally: dict[str, int]) -> None:
    """One gateway thread's connections, one after the other, until the time is up."""
    rng = random.Random(seed)
    until = time.monotonic() + options.seconds
    while time.monotonic() < until:
        make = lambda: Wanderer(scripts, rng, [], options.streams, options.pause_seconds)  # noqa: E731
        _, gateway = await asyncio.get_running_loop().create_connection(make, "127.0.0.1", port)
        tally["connections"] += 1
        await asyncio.sleep(min(rng.uniform(*_CONNECTION_SECONDS), max(0.0, until - time.monotonic())))
        abrupt = rng.random() < 0.3
        gateway.retiring = True
        for _ in range(0 if abrupt else int(_STUCK_SECONDS * 10)):
            if not gateway.streams or gateway.lost:
                break
            await asyncio.sleep(0.1)
        tally["requests"] += gateway.done
        tally["lost"] += gateway.stuck() + gateway.lost
        gateway.transport.abort()


async def soak(port: int, pid: int, options: argparse.Namespace) -> bool:
    """Whether nothing was lost."""
    scripts = [phases(conversation, "trivial") for conversation in conversations()]
    tally = dict.fromkeys(("requests", "lost", "connections"), 0)
    walkers = [asyncio.create_task(wander(port, scripts, options, seed, tally)) for seed in range(options.clients)]
    print("| minute | requests | connections | lost | RSS MiB | CPU s |\n|---|---|---|---|---|---|")
    started = time.monotonic()
    while not all(walker.done() for walker in walkers):
        print(
            f"| {(time.monotonic() - started) / 60:.1f} | {tally['requests']} | {tally['connections']} | {tally['lost']} "
            f"| {resident_mebibytes(pid):.1f} | {cpu_seconds(pid):.1f} |",
            flush=True,
        )
        await asyncio.wait(walkers, timeout=options.every_seconds)
    for walker in walkers:
        walker.result()
    print(f"{tally['requests']} requests over {tally['connections']} connections, {tally['lost']} lost; {resident_mebibytes(pid):.1f} MiB")
    return tally["lost"] == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.extproc.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--transport", choices=(COMPILED, "h2", "grpcio"), default="h2")
    parser.add_argument("--session", choices=("trivial", "plan"), default="trivial")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--every-seconds", type=float, default=30)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--streams", type=int, default=8, help="per client")
    parser.add_argument("--pause-seconds", type=float, default=0.05, help="mean pause of a stream between requests")
    parser.add_argument("--server-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)
    options = parser.parse_args()
    with (
        model_server(options.load_core) as port,
        served(options.transport, options.session, options.server_core, port) as server,
    ):
        return 0 if uvloop.run(soak(server.port, server.pid, options)) else 1


if __name__ == "__main__":
    sys.exit(main())
