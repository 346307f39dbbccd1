"""What gateways that behave, and probes, noticed while an attempt was made."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from benchmarks.attempts.catalogue import Attempt, Noticed
from benchmarks.attempts.picker import Picker
from benchmarks.extproc.load import resident_mebibytes
from benchmarks.siege.timeline import Interval, Timeline

_PROBE_EVERY_SECONDS = 0.25
_PROBE_TIMEOUT_SECONDS = 2.0
"""As Kubernetes has it where an operator gives it some time; its default is one."""
_LONGEST_SECONDS = 120.0
"""Beyond the time of an attempt, for what hangs."""
_NOTICED_SECONDS = 1.0
"""After an attempt, in which the well-behaved go on."""


@dataclass
class Watched:
    """What probes and a look at the process found, a few times a second."""

    waits: list[float] = field(default_factory=list)
    failed: int = 0
    resident: list[float] = field(default_factory=list)


async def watch(picker: Picker, watched: Watched) -> None:
    """Probe until cancelled, each time on a connection of its own."""
    address = f"http://127.0.0.1:{picker.metrics_port}/healthz"
    while picker.process.poll() is None:
        before = time.perf_counter()
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_PROBE_TIMEOUT_SECONDS)) as session,
                session.get(address) as health,
            ):
                watched.failed += health.status != 200
        except (TimeoutError, aiohttp.ClientError):
            watched.failed += 1
        watched.waits.append(time.perf_counter() - before)
        with suppress(ProcessLookupError, FileNotFoundError):
            watched.resident.append(resident_mebibytes(picker.process.pid))
        await asyncio.sleep(_PROBE_EVERY_SECONDS)


async def witness(attempt: Attempt, picker: Picker, model_server_port: int, seconds: float, seed: int) -> dict[str, object]:
    """Have the attempt made beside gateways that behave and probes: what became of all, but for what is known only at the end."""
    target = {
        "folder": str(picker.folder),
        "pid": picker.process.pid,
        "ext_proc_port": picker.ext_proc_port,
        "health_port": picker.health_port,
        "metrics_port": picker.metrics_port,
        "model_server_port": model_server_port,
        "seconds": seconds,
        "seed": seed,
    }
    watched = Watched()
    watching = asyncio.create_task(watch(picker, watched))
    gateways = await _part("benchmarks.siege.gateways", str(picker.ext_proc_port), str(seconds + _LONGEST_SECONDS), told=False)
    hostile = await _part("benchmarks.attempts.hostile", attempt.run.__module__, attempt.name, json.dumps(target), niceness=19)
    try:
        behaving = asyncio.create_task(_output(gateways))
        made = await asyncio.wait_for(_output(hostile), seconds + _LONGEST_SECONDS)
        # What an attempt does just before its end has to be noticed as well, however late it began on a busy machine.
        await asyncio.wait([behaving], timeout=_NOTICED_SECONDS)
        if gateways.returncode is None:
            gateways.terminate()
        behaved = await asyncio.wait_for(behaving, _LONGEST_SECONDS)
    finally:
        watching.cancel()
        for part in (gateways, hostile):
            if part.returncode is None:
                part.kill()
                await part.wait()
    return {
        # They give up where the picker ends streams or connections that it should not, or is gone.
        "behaved": json.loads(behaved or '{"requests": 0, "lost": 1, "picks": []}'),
        "made": json.loads(made or '{"made": 0, "found": ["the attempt itself came to an end before its time"]}'),
        "watched": watched,
    }


def noticed(picker: Picker, seen: dict[str, object], max_memory_mib: float) -> Noticed:
    """All that is to be judged, once the picker has ended."""
    behaved, made, watched = seen["behaved"], seen["made"], seen["watched"]
    assert isinstance(behaved, dict)
    assert isinstance(made, dict)
    assert isinstance(watched, Watched)
    picks: list[Interval] = [(begin, end) for begin, end in behaved["picks"]]
    waits = [end - begin for begin, end in picks]
    return Noticed(
        requests=behaved["requests"],
        lost=behaved["lost"],
        median_wait_seconds=statistics.median(waits or [0.0]),
        longest_wait_seconds=max(waits, default=0.0),
        probes=len(watched.waits),
        failed_probes=watched.failed,
        longest_probe_seconds=max(watched.waits, default=0.0),
        longest_turn_seconds=Timeline(picker.folder / "timeline").longest_turn_seconds(),
        most_resident_mib=max(watched.resident, default=0.0),
        most_memory_mib=max_memory_mib,
        exit_code=picker.exit_code,
        ended_early=picker.ended_early,
        faults=tuple(dict.fromkeys(picker.faults())),
        told=tuple(made["found"]),
        made=made["made"],
    )


async def _part(module: str, *arguments: str, niceness: int = 0, told: bool = True) -> asyncio.subprocess.Process:
    command = [*(["nice", "-n", str(niceness)] if niceness else []), sys.executable, "-m", module, *arguments]
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=None if told else asyncio.subprocess.DEVNULL
    )


async def _output(part: asyncio.subprocess.Process) -> bytes:
    """All that it prints, once it has ended."""
    assert part.stdout is not None
    printed = await part.stdout.read()
    await part.wait()
    return printed
