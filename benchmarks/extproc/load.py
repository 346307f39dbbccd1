"""h2load as the gateway, and what a process used meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from endpick.transport.server import EXT_PROC_PATH

_SUCCEEDED = re.compile(r"requests: .* (\d+) succeeded, (\d+) failed")
_CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


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


def run(port: int, pid: int, body: Path, load: Load) -> Sample:
    """Load the server for a while and count what its process used.

    A request counts as good when h2load has its HTTP 200; the sessions' answers themselves are the tests' concern.
    """
    with tempfile.NamedTemporaryFile("r", suffix=".tsv") as log:
        command = [
            *("taskset", "-c", str(load.core), "h2load", f"--duration={load.seconds:g}", f"--clients={load.clients}"),
            *(f"--max-concurrent-streams={load.streams}", "--threads=1", f"--data={body}", f"--log-file={log.name}"),
            *("--header=content-type: application/grpc", "--header=te: trailers", f"http://127.0.0.1:{port}{EXT_PROC_PATH}"),
        ]
        before = cpu_seconds(pid)
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=load.seconds + 60).stdout
        used = cpu_seconds(pid) - before
        latencies = tuple(sorted(int(line.split("\t")[2]) / 1000 for line in log if line.count("\t") >= 2))
    match = _SUCCEEDED.search(output)
    if match is None:
        raise RuntimeError(f"h2load said nothing of its requests:\n{output}")
    return Sample(int(match[1]), int(match[2]), load.seconds, used, latencies)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS


def resident_mebibytes(pid: int) -> float:
    """Memory that a process holds now."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
