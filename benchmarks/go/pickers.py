"""The pickers that take part, and how each is started: in a process of its own on one core, with the same configuration and endpoints."""

from __future__ import annotations

import argparse
import asyncio
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import uvloop

from benchmarks.extproc.load import cpu_seconds
from benchmarks.extproc.plan import endpoints_file
from benchmarks.extproc.served import COMPILED_PYTHON
from benchmarks.go.driver import first_decision

GO = "Go"
MISSING = "skipped: no Go endpoint picker is given; build one of llm-d's, then `make bench-go GO_EPP=/path/to/epp`"
_LIMIT_SECONDS = 60.0
_QUIET = (
    "--metrics-endpoint-auth=false",
    "--tracing=false",
    "--enable-pprof=false",
    "--pool-namespace=bench",
    "-v=1",
    "--zap-devel=false",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every comparison is told."""
    parser.add_argument("--epp", default="", help="the Go binary")
    parser.add_argument("--picker-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1)


def commands(epp: str) -> Mapping[str, Sequence[str]]:
    """How each picker is started, by name: the Go one first, then endpick, also compiled where that has been made."""
    own = {"interpreted": sys.executable} | ({"compiled": str(COMPILED_PYTHON.absolute())} if COMPILED_PYTHON.exists() else {})
    return {GO: (epp, *_QUIET)} | {name: (python, "-m", "endpick", "serve", "--host=127.0.0.1") for name, python in own.items()}


@contextmanager
def started(name: str, command: Sequence[str], config: str, endpoints: int, model_server_port: int, core: int) -> Iterator[tuple[int, int]]:
    """Port and process id of a picker that decides; `config` reads `endpoints.yaml`.

    Raises:
        SystemExit: it does not start; with what it wrote.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        files = {each: folder / f"{each}.yaml" for each in ("endpoints", "config")}
        files["endpoints"].write_text(endpoints_file(endpoints, model_server_port))
        files["config"].write_text(_as_v1alpha1(config).replace("endpoints.yaml", str(files["endpoints"])))
        ports = dict(zip(("--grpc-port", "--grpc-health-port", "--metrics-port"), _free_ports(3), strict=True))
        whole = ["taskset", "-c", str(core), *command, f"--config-file={files['config']}", "--secure-serving=false"]
        whole += ["--pool-name=bench", "--refresh-metrics-interval=50ms", *(f"{flag}={port}" for flag, port in ports.items())]
        with (folder / "log").open("wb") as log, subprocess.Popen(whole, stdout=log, stderr=log) as process:
            try:
                uvloop.run(_in_time(process, ports["--grpc-port"]))
                yield ports["--grpc-port"], process.pid
            except (RuntimeError, TimeoutError) as problem:
                raise SystemExit(f"{name}: {problem}\n{(folder / 'log').read_text()[-2000:]}") from problem
            finally:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(5)
                except subprocess.TimeoutExpired:
                    process.kill()


def _as_v1alpha1(config: str) -> str:
    """The same for a Go picker from before llm-d.ai/v1; endpick reads both."""
    return config.replace("llm-d.ai/v1\n", "llm-d.ai/v1alpha1\n").replace("{endpoints: {pluginRef: endpoints}}", "{pluginRef: endpoints}")


async def _in_time(process: subprocess.Popen[bytes], port: int) -> None:
    await asyncio.wait_for(first_decision(process, port), _LIMIT_SECONDS)


def _free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def idle_share(pid: int, seconds: float) -> float:
    """The share of a core that a process takes while nothing is asked of it."""
    began, spent = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - spent) / (time.monotonic() - began)
