"""Measure ext_proc behind a real Envoy, both transports and Envoy without ext_proc in one run: python -m benchmarks.envoy."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from benchmarks.extproc.load import Load, Sample, cpu_seconds, h2load
from benchmarks.extproc.messages import chat
from benchmarks.extproc.served import SESSIONS, contestants, served
from benchmarks.model_server import CHUNKS, model_server
from endpick.api import Endpoint
from endpick.extproc.messages import DESTINATION_HEADER
from endpick.serve.eds import write_eds
from endpick_gateway.envoy import find_envoy
from endpick_gateway.envoy_config import EnvoySettings, bootstrap

BODIES = {"1 KB": chat(1024), f"1 KB + {CHUNKS} chunks": chat(1024, stream=True), "16 KB": chat(16 * 1024)}
_READY_SECONDS = 20.0


@dataclass
class Gateway:
    """An Envoy that is up, the picker behind it, and what was measured of both."""

    name: str
    port: int
    pid: int
    picker_pid: int | None
    picker: dict[str, list[Sample]] = field(default_factory=dict)
    envoy: dict[str, list[Sample]] = field(default_factory=dict)

    def measure(self, body: str, load: Load, destination: str) -> None:
        """Load it for one window."""
        pids = (self.pid, self.picker_pid or self.pid)
        before = [cpu_seconds(pid) for pid in pids]
        headers = [
            "--header=content-type: application/json",
            "--header=x-request-id: bench",
            f"--header={DESTINATION_HEADER}: {destination}",
        ]
        found = h2load(f"http://127.0.0.1:{self.port}/v1/chat/completions", BODIES[body], load, ["--h1", *headers])
        envoy, picker = (cpu_seconds(pid) - spent for pid, spent in zip(pids, before, strict=True))
        sample = Sample(found.requests, found.failed, load.seconds, envoy, found.latencies_ms)
        self.envoy.setdefault(body, []).append(sample)
        self.picker.setdefault(body, []).append(replace(sample, cpu_seconds=picker if self.picker_pid else 0.0))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.envoy", description=__doc__)
    parser.add_argument("--session", choices=SESSIONS[1:], default="trivial", help="trivial: one endpoint; plan: endpick serve")
    parser.add_argument("--endpoints", type=int, default=16, help="for plan: how many")
    parser.add_argument("--only", default="", help="bodies whose name contains this")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=3, help="windows per gateway and body, round robin")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--picker-core", type=int, default=0)
    parser.add_argument("--load-core", type=int, default=1, help="of Envoy, the model server and h2load")
    options = parser.parse_args()
    if shutil.which("h2load") is None:
        parser.error("h2load is not installed: apt-get install nghttp2-client")
    load = Load(options.seconds, options.clients, 1, options.load_core)
    chosen = [name for name in BODIES if options.only in name]
    with ExitStack() as stack:
        model_port = stack.enter_context(model_server(options.load_core))
        gateways = [stack.enter_context(gateway("no ext_proc", None, None, options.load_core, model_port))]
        for transport in contestants():
            picker = stack.enter_context(served(transport, options.session, options.picker_core, model_port, options.endpoints))
            gateways.append(stack.enter_context(gateway(transport, picker.port, picker.pid, options.load_core, model_port)))
        for body in chosen:
            for _ in range(options.rounds):
                for each in gateways:
                    each.measure(body, load, f"127.0.0.1:{model_port}")
        report(gateways, chosen)
    return int(any(sample.failed for each in gateways for samples in each.envoy.values() for sample in samples))


@contextmanager
def gateway(name: str, picker_port: int | None, picker_pid: int | None, core: int, model_port: int) -> Iterator[Gateway]:
    """An Envoy with one worker and one model server."""
    with tempfile.TemporaryDirectory() as folder:
        path, admin, log, eds = Path(folder, "envoy.json"), Path(folder, "admin"), Path(folder, "log"), Path(folder, "endpoints.json")
        write_eds(eds, [Endpoint("model", "127.0.0.1", model_port)])
        config = bootstrap(EnvoySettings(picker_port or 1, eds))
        if picker_port is None:
            _without_ext_proc(config)
        path.write_bytes(orjson.dumps(config))
        command = ["taskset", "-c", str(core), str(find_envoy(os.environ, Path.cwd())), "--config-path", str(path)]
        command += ["--admin-address-path", str(admin), "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"]
        with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
            try:
                yield Gateway(name, _listener_port(admin, process, log), process.pid, picker_pid)
            finally:
                process.terminate()


def _without_ext_proc(config: dict[str, object]) -> None:
    listener = config["static_resources"]["listeners"][0]  # type: ignore[index]
    filters = listener["filter_chains"][0]["filters"][0]["typed_config"]["http_filters"]
    del filters[0]


def _listener_port(admin: Path, process: subprocess.Popen[bytes], log: Path) -> int:
    until = time.monotonic() + _READY_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{admin.read_text()}/listeners?format=json") as page:
                statuses = orjson.loads(page.read()).get("listener_statuses")
            if statuses:
                return int(statuses[0]["local_address"]["socket_address"]["port_value"])
        except (OSError, ValueError, urllib.error.URLError):
            pass
        time.sleep(0.05)
    raise RuntimeError(f"Envoy did not get ready:\n{log.read_text()}")


def report(gateways: Sequence[Gateway], chosen: Sequence[str]) -> None:
    *_, reference = gateways
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python {platform.python_version()}")
    print("| body | x grpcio | gateway | picker CPU µs | Envoy CPU µs | req/s | p50 ms | p99 ms | failed |")
    print("|---|---|---|---|---|---|---|---|---|")
    for body in chosen:
        for each in gateways:
            samples = each.envoy[body]
            picker = statistics.median(sample.cpu_microseconds for sample in each.picker[body])
            envoy = statistics.median(sample.cpu_microseconds for sample in samples)
            rate = statistics.median(sample.requests / sample.seconds for sample in samples)
            latencies = sorted(latency for sample in samples for latency in sample.latencies_ms)
            p50, p99 = (latencies[int(len(latencies) * share)] if latencies else 0.0 for share in (0.5, 0.99))
            failed = sum(sample.failed for sample in samples)
            pairs = zip(each.picker[body], reference.picker[body], strict=True)
            ratio = statistics.median(theirs.cpu_microseconds / (mine.cpu_microseconds or 1.0) for mine, theirs in pairs)
            shown = f"{ratio:.1f}" if each.picker_pid else ""
            print(f"| {body} | {shown} | {each.name} | {picker:.0f} | {envoy:.0f} | {rate:.0f} | {p50:.2f} | {p99:.2f} | {failed} |")


if __name__ == "__main__":
    sys.exit(main())
