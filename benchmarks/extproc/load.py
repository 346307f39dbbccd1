"""What plays the gateway, and what the server used meanwhile."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.extproc.messages import Conversation
from endpick.transport.methods import EXT_PROC_PATH

_SUCCEEDED = re.compile(r"requests: .* (\d+) succeeded, (\d+) failed")


@dataclass(frozen=True)
class Load:
    """How h2load drives the server."""

    seconds: float
    clients: int
    streams: int
    core: int


@dataclass(frozen=True)
class Sample:
    """One window of load on one server."""

    requests: int
    failed: int
    seconds: float
    cpu_seconds: float
    latencies_ms: tuple[float, ...]

    @property
    def cpu_microseconds(self) -> float:
        """Per request."""
        return self.cpu_seconds / max(1, self.requests) * 1e6


def run(kind: str, port: int, pid: int, conversation: Conversation, session: str, load: Load) -> Sample:
    """Load the server for a while and count what its process used."""
    before = cpu_seconds(pid)
    found = _h2load(port, conversation, load) if kind == "h2load" else _phased(port, conversation, session, load)
    return Sample(found.requests, found.failed, load.seconds, cpu_seconds(pid) - before, found.latencies_ms)


@dataclass(frozen=True)
class Found:
    """What the load saw."""

    requests: int
    failed: int
    latencies_ms: tuple[float, ...]


def _phased(port: int, conversation: Conversation, session: str, load: Load) -> Found:
    """Requests in phases, each ended by a reset; the latency is that of the pick."""
    command = [
        *(sys.executable, "-m", "benchmarks.extproc.phased", str(port), "--conversation", conversation.name, "--session", session),
        *("--seconds", str(load.seconds), "--clients", str(load.clients), "--streams", str(load.streams), "--core", str(load.core)),
    ]
    output = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=load.seconds + 60).stdout
    found = json.loads(output)
    return Found(found["requests"], found["failed"], tuple(found["picks_ms"]))


def _h2load(port: int, conversation: Conversation, load: Load) -> Found:
    """All messages of a request at once, ended by a half-close; the latency is that of the whole stream.

    A request counts as good when h2load has its HTTP 200; the sessions' answers themselves are the tests' concern.
    """
    options = [f"--max-concurrent-streams={load.streams}", "--header=content-type: application/grpc", "--header=te: trailers"]
    return h2load(f"http://127.0.0.1:{port}{EXT_PROC_PATH}", conversation.wire, load, options)


def h2load(url: str, data: bytes, load: Load, options: Sequence[str]) -> Found:
    """POST the data as often as the server answers; a request is good when its HTTP status is."""
    with tempfile.NamedTemporaryFile("wb") as body, tempfile.NamedTemporaryFile("r", suffix=".tsv") as log:
        body.write(data)
        body.flush()
        command = ["taskset", "-c", str(load.core), "h2load", f"--duration={load.seconds:g}", f"--clients={load.clients}", "--threads=1"]
        command += [f"--data={body.name}", f"--log-file={log.name}", *options, url]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=load.seconds + 60).stdout
        latencies = tuple(sorted(int(line.split("\t")[2]) / 1000 for line in log if line.count("\t") >= 2))
    match = _SUCCEEDED.search(output)
    if match is None:
        raise RuntimeError(f"h2load said nothing of its requests:\n{output}")
    return Found(int(match[1]), int(match[2]), latencies)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all threads included."""
    # What clock_getcpuclockid(3) gives, which Python has for threads only. /proc counts in hundredths of a second: too coarse for a window.
    return time.clock_gettime(~pid << 3 | 2)


def resident_mebibytes(pid: int) -> float:
    """Memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
