"""How long the command line takes: `--help`, and `list` alone and with 30 more plugin packages.

python -m benchmarks.startup [--runs N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        crowded = os.environ | {"PYTHONPATH": str(_thirty_distributions(folder / "packages"))}
        bare = _median(lambda: _run((sys.executable, "-c", "pass"), os.environ), runs)
        help_ms = _median(lambda: _run(_endpick("--help"), os.environ), runs)
        list_ms = _median(lambda: _run(_endpick("list"), os.environ), runs)
        crowded_ms = _median(lambda: _run(_endpick("list"), crowded), runs)
    print(f"list with 30 more plugin packages against without: {crowded_ms / list_ms:.2f} x\n")
    print(f"{'command':<44}{'median ms':>10}{'budget ms':>11}")
    rows = (("python -c pass", bare, ""), ("endpick --help", help_ms, "150"), ("endpick list", list_ms, "150"))
    for label, median, budget in (
        *rows,
        ("endpick list, 30 more packages", crowded_ms, "150"),
    ):
        print(f"{label:<44}{median:>10.0f}{budget:>11}")


def _endpick(*arguments: str) -> tuple[str, ...]:
    return (str(Path(sys.executable).with_name("endpick")), *arguments)


def _median(measure: Callable[[], float], runs: int) -> float:
    measure()
    return statistics.median(measure() for _ in range(runs))


def _run(command: tuple[str, ...], environment: Mapping[str, str]) -> float:
    started = time.perf_counter()
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return (time.perf_counter() - started) * 1000


def _thirty_distributions(folder: Path) -> Path:
    for number in range(30):
        metadata = folder / f"acme_plugins_{number}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: acme-plugins-{number}\nVersion: 1.0\n")
        entries = "\n".join(f"acme{number}.scorer-{each} = acme_plugins_{number}:Scorer" for each in range(3))
        (metadata / "entry_points.txt").write_text(f"[endpick.plugins.v1]\n{entries}\n")
    return folder


if __name__ == "__main__":
    main()
