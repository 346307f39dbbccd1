"""Loads a real `endpick serve` with floods, faults and reloads: `make soak`, or `python -m benchmarks.soak --seconds 600`.

Model servers: twelve that answer, one that refuses connections, one whose metrics page is garbage. A plugin raises, returns NaN and
blocks. An operator reloads right and wrong configurations while endpoints come and go, and ends the run with SIGTERM under load. Hostile
clients repeat nine attacks. The run fails if a well-behaved gateway loses a request, a probe fails, memory grows, the metrics page exceeds
2 MiB, or the process does not exit with 0.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from benchmarks.extproc.load import cpu_seconds, resident_mebibytes
from benchmarks.extproc.plan import ON_LOOPBACK, PROFILE, ports_of
from benchmarks.model_server import model_server
from benchmarks.soak import faulty

MAX_GROWTH_MIB = 16.0  # between the medians of the second and the last quarter
MIN_QUARTER = 60  # seconds; caches still fill during shorter runs
MAX_PAGE_BYTES = 2 << 20
RELOAD_SECONDS = 3.0
DRAIN_SECONDS = 3.0

_CONFIG = (
    PROFILE.replace("llm-d.ai/v1", "endpick/v1alpha1")
    .replace(
        "plugins:\n",
        "plugins:\n- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}\n- type: soak.faulty\n",
        1,
    )
    .replace("  - pluginRef: max", "  - {pluginRef: soak.faulty, weight: WEIGHT}\n  - pluginRef: max")
    + "dataLayer: {discovery: {endpoints: {pluginRef: endpoints}}}\n"
)
_WRONG = _CONFIG.replace("queue-scorer, weight: 2", "queue-scorre, weight: 2").replace("WEIGHT", "1")


@dataclass
class Picker:
    """The process under load."""

    process: subprocess.Popen[bytes]
    folder: Path
    ext_proc: int
    metrics: int


@dataclass
class Report:
    """What was observed."""

    requests: int = 0
    lost: list[str] = field(default_factory=list)
    picks: list[float] = field(default_factory=list)
    resident: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    failed_probes: list[str] = field(default_factory=list)
    page_bytes: int = 0
    reloads: int = 0
    exit_code: int | None = None

    @property
    def growth_mib(self) -> float:
        quarter = len(self.resident) // 4
        if quarter < MIN_QUARTER:
            return 0.0
        return statistics.median(self.resident[-quarter:]) - statistics.median(self.resident[quarter : 2 * quarter])

    def failures(self) -> Iterator[str]:
        if not self.requests:
            yield "no request was made"
        if self.lost:
            yield f"{len(self.lost)} requests were lost; the first: {self.lost[0]}"
        if self.failed_probes:
            yield f"{len(self.failed_probes)} probes failed; the first: {self.failed_probes[0]}"
        if self.growth_mib > MAX_GROWTH_MIB:
            yield f"memory grew by {self.growth_mib:.1f} MiB"
        if self.page_bytes > MAX_PAGE_BYTES:
            yield f"the metrics page has {self.page_bytes} bytes"
        if self.exit_code != 0:
            yield f"endpick serve exited with {self.exit_code}"


@contextmanager
def serving(folder: Path, model_server_port: int, transport: str) -> Iterator[Picker]:
    faulty.install(folder / "site")
    (folder / "config.yaml").write_text(_CONFIG.replace("WEIGHT", "1"))
    write_endpoints(folder, model_server_port, 12)
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "endpick", "serve", "config.yaml", *ON_LOOPBACK, f"--transport={transport}", "--drain-timeout=5s"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env={**os.environ, "PYTHONPATH": path})
        try:
            yield Picker(process, folder, *ports_of(process, folder / "log"))
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def write_endpoints(folder: Path, port: int, count: int, garbage: int = 9) -> None:
    """Endpoints that answer, one that refuses connections, and one whose metrics page is the picker's own."""
    lines = [f'- {{name: e{index}, address: 127.0.1.{index + 1}, port: "{port}"}}\n' for index in range(count)]
    lines.append('- {name: refuses, address: 127.0.2.1, port: "9"}\n')
    lines.append(f'- {{name: garbage, address: 127.0.0.1, port: "{garbage}"}}\n')
    (folder / "endpoints.new").write_text("endpoints:\n" + "".join(lines))
    (folder / "endpoints.new").replace(folder / "endpoints.yaml")


async def operate(picker: Picker, until: float, report: Report, port: int) -> None:
    """Reload every three seconds, each third time a wrong configuration; endpoints come and go."""
    while time.monotonic() < until:
        await asyncio.sleep(RELOAD_SECONDS)
        report.reloads += 1
        wrong = report.reloads % 3 == 0
        (picker.folder / "config.yaml").write_text(_WRONG if wrong else _CONFIG.replace("WEIGHT", str(1 + report.reloads % 2)))
        picker.process.send_signal(signal.SIGHUP)
        write_endpoints(picker.folder, port, 8 + report.reloads % 5, garbage=picker.metrics)


async def observe(picker: Picker, until: float, report: Report) -> None:
    """Scrape and probe every second; print a line every half minute."""
    address, started = f"http://127.0.0.1:{picker.metrics}", time.monotonic()
    print("| minute | worst probe ms | RSS MiB | CPU s | page KiB | reloads |\n|---|---|---|---|---|---|", flush=True)
    while time.monotonic() < until:
        await asyncio.sleep(1)
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session:
                async with session.get(f"{address}/metrics") as page:
                    report.page_bytes = max(report.page_bytes, len(await page.read()))
                before = time.perf_counter()
                async with session.get(f"{address}/healthz") as health:
                    if health.status != 200:
                        report.failed_probes.append(f"{health.status} {(await health.text()).strip()}")
                report.probes.append(time.perf_counter() - before)
        except (TimeoutError, aiohttp.ClientError) as error:
            report.failed_probes.append(repr(error))
        report.resident.append(resident_mebibytes(picker.process.pid))
        if len(report.resident) % 30 == 0:
            figures = f"{max(report.probes, default=0) * 1000:.0f} | {report.resident[-1]:.0f} | {cpu_seconds(picker.process.pid):.0f}"
            print(f"| {(time.monotonic() - started) / 60:.1f} | {figures} | {report.page_bytes >> 10} | {report.reloads} |", flush=True)


async def _part(name: str, *arguments: object) -> asyncio.subprocess.Process:
    command = ("nice", sys.executable, "-m", f"benchmarks.soak.{name}", *map(str, arguments))
    return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)


async def soak(picker: Picker, seconds: float, port: int, attacks: list[str]) -> Report:
    report, until = Report(), time.monotonic() + seconds
    gateways = await _part("gateways", picker.ext_proc, seconds + DRAIN_SECONDS)
    hostile = await _part("hostile", picker.ext_proc, picker.metrics, seconds, *attacks)
    try:
        await asyncio.gather(operate(picker, until, report, port), observe(picker, until, report))
        print(f"attacks: {(await hostile.communicate())[0].decode().strip()}")
        picker.process.send_signal(signal.SIGTERM)
        found = json.loads((await asyncio.wait_for(gateways.communicate(), 60))[0])
        report.requests, report.lost, report.picks = found["requests"], found["lost"], sorted(found["picks"])
        report.exit_code = await asyncio.to_thread(picker.process.wait, 60)
    finally:
        for part in (hostile, gateways):
            if part.returncode is None:
                part.kill()
                await part.wait()
    return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--transport", choices=("h2", "grpcio"), default="h2")
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="names of attacks; default all")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, model_server(1) as port, serving(Path(folder), port, options.transport) as picker:
        report = asyncio.run(soak(picker, options.seconds, port, options.attacks))
        tail = (picker.folder / "log").read_text().splitlines()[-20:]
    p50, p99 = (report.picks[int(len(report.picks) * share)] * 1000 if report.picks else 0.0 for share in (0.5, 0.99))
    print(f"{report.requests} requests, {len(report.lost)} lost; pick p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    print(f"probes: {len(report.probes)}, {len(report.failed_probes)} failed, slowest {max(report.probes, default=0) * 1000:.0f} ms")
    print(f"memory {min(report.resident):.0f} to {max(report.resident):.0f} MiB, grew by {report.growth_mib:.1f}; {report.reloads} reloads")
    failures = list(report.failures())
    for failure in failures:
        print(f"FAILED: {failure}")
    if failures:
        print("\n".join(tail))
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
