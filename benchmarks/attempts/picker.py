"""The `endpick serve` that one attempt is made on, its log, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.attempts.catalogue import MAX_MEMORY, MAY_END_SECONDS, Attempt
from benchmarks.extproc.plan import ON_LOOPBACK, endpoints_file
from benchmarks.siege import beat

ENDPOINTS = 12
_FLAGS = (*ON_LOOPBACK, "--drain-timeout=1s", "--finish-timeout=5s", f"--max-memory={MAX_MEMORY}")


@dataclass(slots=True)
class Picker:
    """A process that serves, or has."""

    process: subprocess.Popen[bytes]
    folder: Path
    ext_proc_port: int
    health_port: int
    metrics_port: int
    blames: str = ""
    """As that of `Attempt`."""
    exit_code: int | None = None
    """Once it was told to end: None where it had to be killed."""
    ended_early: bool = False

    def _blames_a_plugin(self, event: Mapping[str, object], line: str) -> bool:
        if event.get("logger") == "endpick.uncaught":
            return "/site/" in line or "/endpick/" not in line  # nothing of endpick called it
        return f"while stopping {self.blames}" in line or self.blames in f"{event.get('event')} {event.get('plugin')} {event.get('logger')}"

    def faults(self) -> Iterator[str]:
        """Lines of the log that tell of a fault of endpick, or that are none of its lines."""
        for line in (self.folder / "log").read_text(errors="replace").splitlines():
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            if not isinstance(event, dict) or "level" not in event:
                yield f"the log has a line of another kind: {line[:120]!r}"
            elif self.blames and self._blames_a_plugin(event, line):
                continue
            elif event["level"] == "critical" or "traceback" in line.lower():
                yield f"the log tells of a fault: {line[:300]}"


@contextmanager
def picking(attempt: Attempt, folder: Path, model_server_port: int, python: str, transport: str, core: int | None) -> Iterator[Picker]:
    """A picker as the attempt wants it, told to end with SIGTERM after the block.

    Args:
        attempt: its flags, configuration, files and environment.
        folder: the working directory, empty.
        model_server_port: of the endpoints, which have addresses of 127/8.
        python: the interpreter for which endpick is installed.
        transport: `h2` or `grpcio`.
        core: where it is pinned; None where all share all processors.
    """
    beat.install(folder / "site")
    for name, text in {
        "config.yaml": attempt.config,
        "endpoints.yaml": endpoints_file(ENDPOINTS, model_server_port),
        **attempt.files,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pinned = [] if core is None else ["taskset", "-c", str(core)]
    command = [*pinned, python, "-m", "endpick", "serve", "config.yaml", *_FLAGS, f"--transport={transport}", *attempt.flags]
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, env=_environment(folder, attempt.environment))
    try:
        with _running(attempt.until_serving, model_server_port):
            picker = _started(process, folder)
        picker.blames = attempt.blames
        yield picker
        picker.ended_early = process.poll() is not None
        process.terminate()
        picker.exit_code = _ended(process)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def _running(module: str, model_server_port: int) -> Iterator[None]:
    """A module that the attempt names, if it does."""
    if not module:
        yield
        return
    with subprocess.Popen([sys.executable, "-m", module, str(model_server_port)]) as process:
        try:
            yield
        finally:
            process.kill()


def _environment(folder: Path, more: Mapping[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "SIEGE_TIMELINE": str(folder / "timeline"), "PYTHONPATH": path, **more}


def _started(process: subprocess.Popen[bytes], folder: Path) -> Picker:
    for _ in range(600):
        for line in (folder / "log").read_text(errors="replace").splitlines():
            if '"event": "serving"' in line or '"event":"serving"' in line:
                event = json.loads(line)
                return Picker(process, folder, event["ext_proc_port"], event["health_port"], event["metrics_port"])
        if process.poll() is not None:
            break
        threading.Event().wait(0.05)
    raise RuntimeError(f"endpick serve did not start:\n{(folder / 'log').read_text(errors='replace')}")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(MAY_END_SECONDS + 6)  # the drain and the finish of `_FLAGS`
    except subprocess.TimeoutExpired:
        return None
