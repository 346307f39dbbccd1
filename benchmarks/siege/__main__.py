"""A long run in which much goes wrong at once: `make soak`, or `python -m benchmarks.siege --seconds 600`.

A real `endpick serve` with a plugin that fails and blocks, model servers whose pages are garbage or never end, an operator who reloads
right and wrong configurations, scrapers, and clients that mean harm. Beside them gateways that behave: they may lose no request, the 99th
percentile of their picks stays under 20 ms but for those during which the plugin blocks, no turn of the event loop in a thousand takes
more than 10 ms of processor time, and the memory of the picker is flat. The exit code is 1 when that is not so.

The picker has the first processor to itself, and everything else the others (`--together`: all share all), because clients and model
servers do not run on a picker's machine. What slow picks waited for is told: a processor, the plugin that blocks, or the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import uvloop

from benchmarks.extproc.load import cpu_seconds, resident_mebibytes
from benchmarks.extproc.plan import ON_LOOPBACK, PROFILE, ports_of
from benchmarks.model_server import model_server
from benchmarks.siege import beat, moody
from benchmarks.siege.timeline import Interval, Spent, Timeline

GOAL_P99_MS = 20.0
MAY_GROW_MIB = 8.0
"""Between the medians of the second and the last quarter of the run."""
MAY_BE_LONG = 0.001
"""Of the turns of the event loop."""
MAY_WAIT = 0.1
"""Of the time, for a processor: where the machine is busier than that, the percentile says how busy, and is told but not judged."""
_SLOWEST = 0.02
"""Share of the picks whose time is looked into."""

_INSTANCES = """\
- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}
- type: siege.beat
- type: siege.moody
"""
_CONFIG = (
    PROFILE.replace("llm-d.ai/v1alpha1", "endpick/v1alpha1")
    .replace("plugins:\n", f"plugins:\n{_INSTANCES}", 1)
    .replace("  - pluginRef: max", "  - pluginRef: siege.beat\n  - {pluginRef: siege.moody, weight: WEIGHT}\n  - pluginRef: max")
    + "dataLayer: {discovery: {pluginRef: endpoints}}\n"
)
_WRONG = _CONFIG.replace("queue-scorer, weight: 2", "queue-scorre, weight: 2")


@dataclass
class Report:
    """What the run came to."""

    picks: list[Interval] = field(default_factory=list)
    """When each request was sent and its endpoint was known, by the clock of the system."""
    requests: int = 0
    lost: int = 0
    resident: list[float] = field(default_factory=list)
    probes: list[float] = field(default_factory=list)
    """Seconds that `/healthz` took."""
    failed_probes: int = 0
    reloads: int = 0
    turns: dict[str, float] = field(default_factory=dict)
    """What `beat` measured of the event loop: turns, those of more than 10 ms of processor time, and the longest."""
    waited_seconds: float = 0.0
    """For a processor, by the thread of the event loop: what the machine lacks, not what the picker takes."""
    own_p99_ms: float = 0.0
    """Of the picks without those waits: what the picker itself took, whatever else the machine did."""

    def p99_ms(self) -> float:
        """Of all picks."""
        return p99_ms(self.picks)

    def growth_mib(self) -> float:
        quarter = max(1, len(self.resident) // 4)
        return statistics.median(self.resident[-quarter:]) - statistics.median(self.resident[quarter : 2 * quarter] or self.resident)

    def failures(self) -> list[str]:
        """What is not as it has to be."""
        found = []
        if self.lost:
            found.append(f"{self.lost} requests of well-behaved gateways were lost")
        if self.turns.get("long_turns", 0.0) > MAY_BE_LONG * self.turns.get("turns", 0.0):
            found.append(f"{self.turns['long_turns']:.0f} turns of the event loop took more than 10 ms of processor time")
        if self.p99_ms() >= GOAL_P99_MS and self.waited_seconds < MAY_WAIT * len(self.resident):
            found.append(f"p99 of the pick is {self.p99_ms():.1f} ms; the goal is {GOAL_P99_MS:g}")
        if not self.requests:
            found.append("no request was made")
        if self.growth_mib() > MAY_GROW_MIB:
            found.append(f"memory grew by {self.growth_mib():.1f} MiB")
        if self.failed_probes:
            found.append(f"{self.failed_probes} probes of /healthz were not answered with 200")
        return found


@dataclass
class Serving:
    """The process under siege."""

    process: subprocess.Popen[bytes]
    folder: Path
    ports: dict[str, int]


@contextmanager
def besieged(folder: Path, model_server_port: int, transport: str = "h2", *flags: str) -> Iterator[Serving]:
    """`endpick serve` with these flags beside its own, and with everything that is wrong with its surroundings."""
    beat.install(folder / "site")
    moody.install(folder / "site")
    (folder / "config.yaml").write_text(_CONFIG.replace("WEIGHT", "1"))
    write_endpoints(folder, model_server_port, 12)
    options = [*ON_LOOPBACK, f"--transport={transport}", *flags]
    environment = {
        **os.environ,
        "SIEGE_TIMELINE": str(folder / "timeline"),
        "PYTHONPATH": os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-m", "endpick", "serve", "config.yaml", *options]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=environment) as process:
        try:
            yield Serving(process, folder, dict(zip(("ext_proc", "metrics"), ports_of(process, folder / "log"), strict=True)))
        finally:
            process.terminate()


def write_endpoints(folder: Path, port: int, count: int) -> None:
    """Endpoints that answer, one that refuses connections, and one whose page is garbage: ext_proc's own port speaks no HTTP/1.1."""
    lines = [f'- {{name: e{index}, address: 127.0.1.{index + 1}, port: "{port}"}}\n' for index in range(count)]
    lines.append('- {name: refuses, address: 127.0.2.1, port: "9"}\n')
    whole = folder / "endpoints.new"
    whole.write_text("endpoints:\n" + "".join(lines))
    whole.replace(folder / "endpoints.yaml")


def waited_seconds(pid: int) -> float:
    """How long the main thread of a process was ready to run, and no processor was free."""
    return int(Path(f"/proc/{pid}/schedstat").read_text(encoding="ascii").split()[1]) / 1e9


async def operate(serving: Serving, until: float, report: Report, model_server_port: int) -> None:
    """Reload every three seconds, each third time a wrong configuration; endpoints come and go."""
    while time.monotonic() < until:
        await asyncio.sleep(3)
        report.reloads += 1
        wrong = report.reloads % 3 == 0
        (serving.folder / "config.yaml").write_text(_WRONG if wrong else _CONFIG.replace("WEIGHT", str(1 + report.reloads % 2)))
        serving.process.send_signal(signal.SIGHUP)
        write_endpoints(serving.folder, model_server_port, 8 + report.reloads % 5)


async def observe(serving: Serving, until: float, report: Report) -> None:
    """Scrape and probe every second, and print a line every half minute."""
    address = f"http://127.0.0.1:{serving.ports['metrics']}"
    started = printed = time.monotonic()
    print("| minute | probes' worst ms | RSS MiB | CPU s | reloads |\n|---|---|---|---|---|")
    while time.monotonic() < until:
        await asyncio.sleep(1)
        try:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session:
                async with session.get(f"{address}/metrics") as page:
                    samples = re.findall(r"^siege_(\w+)\S* (\S+)$", await page.text(), re.MULTILINE)
                report.turns.update({name: float(value) for name, value in samples})
                before = time.perf_counter()
                async with session.get(f"{address}/healthz") as health:
                    report.failed_probes += health.status != 200
                report.probes.append(time.perf_counter() - before)
        except (TimeoutError, aiohttp.ClientError):
            report.failed_probes += 1
        report.resident.append(resident_mebibytes(serving.process.pid))
        report.waited_seconds = waited_seconds(serving.process.pid)
        if time.monotonic() - printed >= 30:
            printed = time.monotonic()
            figures = f"{max(report.probes, default=0.0) * 1000:.0f} | {report.resident[-1]:.1f}"
            print(f"| {(printed - started) / 60:.1f} | {figures} | {cpu_seconds(serving.process.pid):.1f} | {report.reloads} |", flush=True)


async def siege(serving: Serving, seconds: float, model_server_port: int, attacks: Sequence[str]) -> Report:
    """Everything at once, or only some attacks beside what else is wrong."""
    report, until = Report(), time.monotonic() + seconds
    ext_proc, metrics = (str(serving.ports[name]) for name in ("ext_proc", "metrics"))
    # Attackers get the processor time that gateways, model servers and the siege itself leave them.
    hostile = await _part("nice", "-n", "19", *_module("hostile"), ext_proc, metrics, str(seconds), *attacks)
    gateways = await _part(*_module("gateways"), ext_proc, str(seconds))
    try:
        answers = asyncio.gather(*(asyncio.wait_for(part.communicate(), seconds + 90) for part in (gateways, hostile)))
        await asyncio.gather(operate(serving, until, report, model_server_port), observe(serving, until, report))
        (behaved, _), (told, _) = await answers
        print(f"attacks: {told.decode().strip()}")
        found = json.loads(behaved)
        report.requests, report.lost = found["requests"], found["lost"]
        report.picks = [(begin, end) for begin, end in found["picks"]]
    finally:
        for part in (hostile, gateways):
            if part.returncode is None:
                part.kill()
                await part.wait()
    return report


def _module(name: str) -> tuple[str, ...]:
    return sys.executable, "-m", f"benchmarks.siege.{name}"


async def _part(*command: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)


def p99_ms(picks: Sequence[Interval]) -> float:
    """The 99th percentile of how long picks took."""
    return sorted(end - begin for begin, end in picks)[int(len(picks) * 0.99)] * 1000 if picks else 0.0


def where(picks: Sequence[Interval], timeline: Timeline) -> Iterator[str]:
    """What the slowest picks waited for, as lines to print."""
    slowest = sorted(picks, key=lambda pick: pick[0] - pick[1])[: max(1, int(len(picks) * _SLOWEST))]
    total, whole = Spent(), sum(end - begin for begin, end in slowest)
    for pick in slowest:
        total += timeline.spent(pick)
    shares = {name: getattr(total, name) / whole for name in Spent.__slots__} if whole else {}
    told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
    yield f"the slowest {_SLOWEST:.0%}, {slowest[-1][1] - slowest[-1][0]:.4f} s and more, spent their time so: {told}"
    free = [pick for pick in picks if not timeline.is_blocked(pick)]
    yield f"p99 of the {len(free)} picks during which no plugin blocked: {p99_ms(free):.1f} ms"
    longest = max((end - begin for begin, end in timeline.collections), default=0.0)
    yield f"{len(timeline.collections)} garbage collections, the longest {longest * 1000:.1f} ms"


def own_p99_ms(picks: Sequence[Interval], timeline: Timeline) -> float:
    """The 99th percentile of the picks without the time in which the event loop waited for a processor."""
    return p99_ms([(0.0, end - begin - timeline.spent((begin, end)).waited) for begin, end in picks])


def keep_apart() -> None:
    """Leave the first processor to the picker, which is started before this."""
    processors = sorted(os.sched_getaffinity(0))
    if len(processors) > 1:
        os.sched_setaffinity(0, processors[1:])


def main() -> int:
    """Run the siege; 1 when a well-behaved gateway noticed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.siege", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", help="methods of `Attacker`, to see what one of them does; default all")
    parser.add_argument("--transport", choices=("h2", "grpcio"), default="h2", help="that the picker serves on")
    parser.add_argument("--flag", action="append", default=[], help="of `endpick serve`, as --flag=--grpc-max-concurrent-streams=128")
    parser.add_argument("--together", action="store_true", help="on all processors, instead of the picker on one and all others elsewhere")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, model_server(1) as port:
        with besieged(Path(place), port, options.transport, *options.flag) as serving:
            if not options.together:
                keep_apart()
            report = uvloop.run(siege(serving, options.seconds, port, options.attacks))
            ended = serving.process.poll()
        serving.process.wait()
        timeline = Timeline(serving.folder / "timeline")
        explained = [*where(report.picks, timeline)] if report.picks else []
        report.own_p99_ms = own_p99_ms(report.picks, timeline)
    slowest = max(report.probes, default=0.0) * 1000
    print(f"{report.requests} requests, {report.lost} lost; p99 of the pick {report.p99_ms():.1f} ms; slowest probe {slowest:.0f} ms")
    print(f"p99 of the pick without the time in which the event loop waited for a processor: {report.own_p99_ms:.1f} ms")
    print("\n".join(explained))
    print(
        f"memory {min(report.resident):.1f} to {max(report.resident):.1f} MiB, grew by {report.growth_mib():.1f}; {report.reloads} reloads"
    )
    longest, over, turns = (report.turns.get(name, 0.0) for name in ("longest_turn_seconds", "long_turns", "turns"))
    print(f"{turns:.0f} turns of the event loop, {over:.0f} of more than 10 ms of processor time, the longest {longest * 1000:.1f} ms")
    print(f"the event loop waited {report.waited_seconds:.1f} s of {options.seconds:g} for a processor")
    failures = [*report.failures(), *([f"endpick serve ended with {ended}"] if ended is not None else [])]
    for failure in failures:
        print(f"FAILED: {failure}")
    return int(bool(failures))


if __name__ == "__main__":
    sys.exit(main())
