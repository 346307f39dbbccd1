"""`endpick serve` under load: a real configuration, and endpoints that are all the same model server."""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PROFILE = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: max-score-picker
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - pluginRef: max-score-picker
"""
"""llm-d's default profile, spelled out; endpoints are not its business."""
CONFIG = (
    PROFILE.replace("plugins:\n", "plugins:\n- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml}}\n", 1)
    + "dataLayer: {discovery: {endpoints: {pluginRef: endpoints}}}\n"
)
ON_LOOPBACK = (
    "--host=127.0.0.1",
    "--grpc-port=0",
    "--grpc-health-port=0",
    "--metrics-port=0",
    "--secure-serving=false",
    "--log-format=json",
)
"""Flags with which `ports_of` finds the ports."""
REFRESH = "1s"
"""Collection is measured elsewhere; here it only has to keep the columns fresh."""


@contextmanager
def serving(python: str, transport: str, core: int, endpoints: int, config: Path | None, port: int) -> Iterator[tuple[int, int, int]]:
    """Ports of ext_proc and of the metrics, and process id, of `endpick serve` on one core.

    Args:
        python: the interpreter for which endpick is installed.
        transport: `h2` or `grpcio`.
        core: where it is pinned.
        endpoints: how many `endpoints.yaml` beside the configuration lists.
        config: a configuration that reads `endpoints.yaml`; None: llm-d's default profile.
        port: where a model server is found under every loopback address.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(CONFIG if config is None else config.read_text())
        Path(folder, "endpoints.yaml").write_text(endpoints_file(endpoints, port))
        command = ["taskset", "-c", str(core), python, "-m", "endpick", "serve", str(path), *ON_LOOPBACK]
        command += [f"--transport={transport}", f"--refresh-metrics-interval={REFRESH}"]
        with Path(folder, "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, cwd=folder) as process:
            try:
                yield *ports_of(process, Path(folder, "log")), process.pid
            finally:
                process.terminate()


def endpoints_file(count: int, port: int) -> str:
    # All of 127/8 is this machine, so one server is as many endpoints as wanted.
    addresses = [f"127.0.{100 + index // 100}.{100 + index % 100}" for index in range(count)]
    return "endpoints:\n" + "".join(f'- {{name: e{index}, address: {ip}, port: "{port}"}}\n' for index, ip in enumerate(addresses))


def ports_of(process: subprocess.Popen[bytes], log: Path) -> tuple[int, int]:
    """Those of ext_proc and of the metrics, once a picker that logs JSON to this file serves."""
    for _ in range(600):
        for line in log.read_text().splitlines():
            if line.startswith("{") and (event := json.loads(line)).get("event") == "serving":
                return int(event["ext_proc_port"]), int(event["metrics_port"])
        if process.poll() is not None:
            break
        threading.Event().wait(0.1)
    raise RuntimeError(f"endpick serve did not start:\n{log.read_text()}")
