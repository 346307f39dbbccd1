"""What the limits cost on the normal path: `python -m benchmarks.limits`.

Two processes of `endpick serve` stand beside each other, one with its limits as they are by default, one with every limit so high that it
never acts; nothing can be switched off. They are asked in turns, round by round, and each round takes the processor time of the process
for one request. The ratio of the two comes first: it is what a busy machine disturbs least.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from benchmarks.extproc.load import cpu_seconds
from benchmarks.extproc.messages import conversations
from benchmarks.extproc.phased import Gateway, phases
from benchmarks.extproc.plan import ON_LOOPBACK, PROFILE, ports_of

_HIGH_PARSER = "- {type: openai-parser, parameters: {maxContainers: 1000000000, maxValues: 1000000000, maxPrompts: 1000000000}}\n"
_DISCOVERY = "- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml}}\n"
_HIGH_FLAGS = (
    *("--grpc-max-recv-msg-size=1Gi", "--grpc-max-envelope-size=1Gi", "--max-request-body=1Gi", "--large-body=1Gi"),
    *("--large-body-structure=16Gi", "--grpc-max-connections=1000000", "--max-connections-share=1", "--reserved-descriptors=0"),
    *("--grpc-max-concurrent-streams=1000000", "--plugin-time-budget=1h", "--circuit-faults=1000000000", "--stall-limit=1h"),
    *("--metrics-max-combinations=1000000", "--max-memory=1Ti", "--max-held=1Ti", "--grpc-flood-tolerance=1000"),
    *("--grpc-max-header-size=1Mi", "--grpc-header-timeout=1h", "--grpc-write-timeout=1h", "--grpc-max-early-messages=1000000"),
    *("--metrics-max-held=1Gi", "--metrics-max-samples=1000000000", "--max-rush-connections=1000000", "--max-name-length=65536"),
)
_STREAMS = 8


@contextmanager
def served(folder: Path, *, limited: bool) -> Iterator[tuple[int, int]]:
    """The process and its port of ext_proc."""
    folder.mkdir()
    parser = "" if limited else _HIGH_PARSER
    config = PROFILE.replace("llm-d.ai/v1alpha1", "endpick/v1alpha1").replace("plugins:\n", f"plugins:\n{_DISCOVERY}{parser}", 1)
    handler = "" if limited else "requestHandler: {parsers: [{pluginRef: openai-parser}]}\n"
    (folder / "config.yaml").write_text(config + handler + "dataLayer: {discovery: {pluginRef: endpoints}}\n")
    lines = [f'- {{name: e{index}, address: 127.0.3.{index + 1}, port: "9"}}\n' for index in range(12)]
    (folder / "endpoints.yaml").write_text("endpoints:\n" + "".join(lines))
    quiet = ["--refresh-metrics-interval=60s", "--idle-metrics-interval=60s"]
    command = [sys.executable, "-m", "endpick", "serve", "config.yaml", *ON_LOOPBACK, *quiet, *(() if limited else _HIGH_FLAGS)]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=os.environ) as process:
        try:
            yield process.pid, ports_of(process, folder / "log")[0]
        finally:
            process.terminate()


class _Round(Gateway):
    """So many requests, one behind the other in some streams."""

    def __init__(self, scripts: list, requests: int, over: asyncio.Event) -> None:
        rng = random.Random(3)
        super().__init__(lambda: rng.choice(scripts), _STREAMS, [])
        self._requests, self._over = requests, over

    def proceed(self) -> None:
        if self.done >= self._requests:
            self._over.set()
        else:
            self.open()


async def milliseconds(pid: int, port: int, requests: int) -> float:
    """Processor time of one request."""
    scripts = [phases(conversation, "plan") for conversation in conversations()[:3]]
    over = asyncio.Event()
    before = cpu_seconds(pid)
    _, gateway = await asyncio.get_running_loop().create_connection(lambda: _Round(scripts, requests, over), "127.0.0.1", port)
    await over.wait()
    gateway.transport.abort()
    return (cpu_seconds(pid) - before) * 1000 / gateway.done


async def rounds(sides: dict[str, tuple[int, int]], count: int, requests: int) -> dict[str, list[float]]:
    """The figures of each side, one for each round; the side that begins takes turns."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for name, side in sides.items():
        await milliseconds(*side, requests)
        assert not found[name]
    for number in range(count):
        for name in sorted(sides, reverse=bool(number % 2)):
            found[name].append(await milliseconds(*sides[name], requests))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--requests", type=int, default=500)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with served(folder / "default", limited=True) as default, served(folder / "high", limited=False) as high:
            found = uvloop.run(rounds({"default": default, "high": high}, options.rounds, options.requests))
    ratios = sorted(one / other for one, other in zip(found["default"], found["high"], strict=True))
    median = {name: statistics.median(values) for name, values in found.items()}
    print(f"ratio {statistics.median(ratios):.3f} (quartiles {ratios[len(ratios) // 4]:.3f} to {ratios[3 * len(ratios) // 4]:.3f})")
    print(f"processor time of a request: {median['default']:.3f} ms with limits by default, {median['high']:.3f} ms with high ones")
    return 0


if __name__ == "__main__":
    sys.exit(main())
