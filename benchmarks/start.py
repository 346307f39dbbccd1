"""How soon a started `endpick serve` decides, and what it holds when idle: python -m benchmarks.start.

Each start is a process of its own with llm-d's default profile and a file of endpoints. A client connects as soon as the port is open and
sends a request; the clock stops at the pick. Memory is what `/proc/PID/smaps_rollup` says a second later. The number of imported modules
is the same from run to run, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.extproc.load import cpu_seconds
from benchmarks.extproc.plan import CONFIG, REFRESH, endpoints_file
from benchmarks.extproc.served import COMPILED_PYTHON
from benchmarks.go.driver import first_decision
from benchmarks.model_server import model_server

_ENDPOINTS = 4
_LIMIT_SECONDS = 20.0
_IDLE_SECONDS = 1.0
_MODULES = "import atexit, sys; from endpick.cli.main import main; atexit.register(lambda: print(len(sys.modules))); main()"


@dataclass(frozen=True)
class Start:
    """One start of one contestant."""

    decided_ms: float
    cpu_ms: float
    """Of the process, until then: what of `decided_ms` other processes did not add."""
    resident_mebibytes: float
    private_mebibytes: float
    """Written by the process itself, shared with no other."""
    modules: int


def main() -> None:
    """Measure in turns and print medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.start", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--python",
        action="append",
        metavar="NAME=PATH",
        help="an interpreter for which endpick is installed; may be repeated; default: this one, and that of .venv-compiled",
    )
    options = parser.parse_args()
    named = (each.split("=", 1) for each in options.python or ())
    pythons = {name: str(Path(path).absolute()) for name, path in named} or _pythons()
    with tempfile.TemporaryDirectory() as name, model_server(0) as port:
        folder = Path(name)
        (folder / "config.yaml").write_text(CONFIG)
        (folder / "endpoints.yaml").write_text(endpoints_file(_ENDPOINTS, port))
        starts: dict[str, list[Start]] = {name: [] for name in pythons}
        for number in range(options.rounds + 1):
            for contestant, python in pythons.items():
                start = uvloop.run(_measured(python, folder))
                if number:  # the first one compiles byte code and fills the page cache
                    starts[contestant].append(start)
    _report(starts)


def _pythons() -> dict[str, str]:
    found = {"interpreted": sys.executable}
    return found | ({"compiled": str(COMPILED_PYTHON.absolute())} if COMPILED_PYTHON.exists() else {})


def _report(starts: dict[str, list[Start]]) -> None:
    print(
        "| endpick | first decision, ms | CPU until then, ms | idle, MiB resident | of these private | modules |\n|---|---|---|---|---|---|"
    )
    for name, measured in starts.items():
        decided = _spread(start.decided_ms for start in measured)
        cpu = _spread(start.cpu_ms for start in measured)
        resident = statistics.median(start.resident_mebibytes for start in measured)
        private = statistics.median(start.private_mebibytes for start in measured)
        modules = statistics.median(start.modules for start in measured)
        print(f"| {name} | {decided} | {cpu} | {resident:.1f} | {private:.1f} | {modules:.0f} |")


def _spread(values: Iterable[float]) -> str:
    ordered = sorted(values)
    return f"{statistics.median(ordered):.0f} ({ordered[0]:.0f} to {ordered[-1]:.0f})"


async def _measured(python: str, folder: Path) -> Start:
    port = _free_port()
    began = time.perf_counter()
    with _serving(python, folder, port) as process:
        await asyncio.wait_for(first_decision(process, port), _LIMIT_SECONDS)
        decided_ms, cpu_ms = (time.perf_counter() - began) * 1000, cpu_seconds(process.pid) * 1000
        await asyncio.sleep(_IDLE_SECONDS)
        memory = _memory(process.pid)
        process.send_signal(signal.SIGTERM)
        said, _ = process.communicate(timeout=_LIMIT_SECONDS)
    return Start(decided_ms, cpu_ms, memory["Rss"], memory["Private_Clean"] + memory["Private_Dirty"], int(said.split()[-1]))


@contextmanager
def _serving(python: str, folder: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    command = [python, "-c", _MODULES, "serve", "config.yaml", "--host=127.0.0.1", f"--grpc-port={port}", "--grpc-health-port=0"]
    command += ["--metrics-port=0", "--secure-serving=false", "--log-format=json", f"--refresh-metrics-interval={REFRESH}"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}  # installed code has byte code
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _memory(pid: int) -> dict[str, float]:
    """Mebibytes by the kernel's names."""
    lines = (line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name.rstrip(":"): int(kibibytes) / 1024 for name, kibibytes, *_ in lines}


if __name__ == "__main__":
    main()
