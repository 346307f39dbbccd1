"""How long the command line takes: `--help`, `list` alone and with 30 more plugin packages, and `serve` to SERVING.

python -m benchmarks.startup [--runs N]
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
dataLayer:
  discovery: {pluginRef: file-discovery}
"""
PORTS = ("--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--secure-serving=false", "--host", "127.0.0.1")


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
        serve_ms = _median(lambda: _time_to_serving(folder), max(3, runs // 3))
    print(f"list with 30 more plugin packages against without: {crowded_ms / list_ms:.2f} x\n")
    print(f"{'command':<44}{'median ms':>10}{'budget ms':>11}")
    rows = (("python -c pass", bare, ""), ("endpick --help", help_ms, "150"), ("endpick list", list_ms, "150"))
    for label, median, budget in (
        *rows,
        ("endpick list, 30 more packages", crowded_ms, "150"),
        ("endpick serve to SERVING", serve_ms, "1000"),
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


def _time_to_serving(folder: Path) -> float:
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    started = time.perf_counter()
    process = subprocess.Popen(_endpick("serve", "config.yaml", *PORTS), cwd=folder, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        for line in process.stderr:
            if re.search(r'"event":"serving"', line):
                return (time.perf_counter() - started) * 1000
        raise SystemExit(f"endpick serve ended with status {process.wait()} before it served")
    finally:
        process.terminate()
        process.communicate(timeout=20)


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
