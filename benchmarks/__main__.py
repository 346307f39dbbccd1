"""Run every benchmark, each in a process of its own and bounded in time: `make bench`, or `python -m benchmarks [NAME ...]`."""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

_SHORT_WINDOWS = ("--seconds", "1", "--rounds", "3")


@dataclass(frozen=True)
class Benchmark:
    """One command, and what it needs."""

    title: str
    arguments: tuple[str, ...]
    limit_seconds: float
    needs: str = ""
    """A program that must be installed, and how to get it."""

    @property
    def missing(self) -> bool:
        """Whether it cannot run here."""
        return bool(self.needs) and shutil.which(self.needs.split(":")[0]) is None


BENCHMARKS = {
    "scheduling": Benchmark("Deciding, without network or protocol", ("scheduling",), 180),
    "plugins": Benchmark("Every built-in filter, scorer and picker, 16 and 1000 endpoints", ("plugins",), 180),
    "extproc": Benchmark("ext_proc alone, both transports", ("extproc", *_SHORT_WINDOWS), 180),
    "plan": Benchmark("ext_proc with llm-d's default profile, 16 endpoints", ("extproc", "--session", "plan", *_SHORT_WINDOWS), 240),
    "envoy": Benchmark(
        "Through Envoy, beside Envoy alone", ("envoy", *_SHORT_WINDOWS), 240, needs="h2load: apt-get install nghttp2-client"
    ),
    "request": Benchmark("The default profile without sockets, 1 to 1000 endpoints", ("request",), 180),
    "flow_control": Benchmark("Flow control: nothing waits, ten thousand wait", ("flow_control",), 180),
    "scrape": Benchmark("Collecting metrics", ("scrape",), 120),
    "metrics_page": Benchmark("Writing /metrics after requests under made-up names", ("metrics_page",), 180),
    "scraped": Benchmark("What scraping /metrics costs requests", ("scraped", "--rounds", "3"), 120),
    "startup": Benchmark("The command line", ("startup", "--runs", "7"), 120),
    "start": Benchmark("From the start to the first decision, and memory when idle", ("start",), 120),
    "large_forms": Benchmark("The worst forms, and requests beside them", ("large_forms",), 120),
}


def main() -> int:
    """Run what is asked for; 1 when one of them failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)} (all)")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := [name for name in names if name not in BENCHMARKS]:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    print(machine(), flush=True)
    failed = [name for name in names if not _run(name, BENCHMARKS[name])]
    if failed:
        print(f"\nfailed: {', '.join(failed)}")
    return int(bool(failed))


def machine() -> str:
    """When and where, and how busy it is: a busy machine makes every figure but the ratios worthless."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "uvloop", "grpcio", "jh2"))
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {os.cpu_count()} cores of {_processor()}, load average {load}, "
        f"{platform.system()} {platform.release()}, Python {platform.python_version()}, {libraries}"
    )


def _processor() -> str:
    try:
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named[1] if named else platform.processor() or platform.machine()


def _run(name: str, benchmark: Benchmark) -> bool:
    command: Sequence[str] = (sys.executable, "-m", f"benchmarks.{benchmark.arguments[0]}", *benchmark.arguments[1:])
    print(f"\n## {benchmark.title}\n\n$ python {' '.join(command[1:])}\n", flush=True)
    if benchmark.missing:
        print(f"skipped, it needs {benchmark.needs}")
        return True
    began = time.monotonic()
    try:
        status = subprocess.run(command, check=False, timeout=benchmark.limit_seconds).returncode
    except subprocess.TimeoutExpired:
        print(f"\n{name} took longer than {benchmark.limit_seconds:g} s and was stopped")
        return False
    print(f"\n({time.monotonic() - began:.0f} s)", flush=True)
    return status == 0


if __name__ == "__main__":
    sys.exit(main())
