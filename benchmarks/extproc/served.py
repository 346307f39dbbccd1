"""A server under measurement: which transport, which session, on which core."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.extproc.load import Sample
from benchmarks.extproc.plan import serving

SESSIONS = ("echo", "trivial", "plan")
"""echo: transport only; trivial: the real session and one endpoint; plan: `endpick serve`."""
COMPILED = "h2-compiled"
"""The name under which h2 is measured on an endpick whose request path is compiled."""
COMPILED_PYTHON = Path(os.environ.get("ENDPICK_COMPILED_VENV", ".venv-compiled"), "bin", "python")


def contestants() -> tuple[str, ...]:
    """Which transports are measured by default; ratios are to the last. `make compiled` makes the first of three."""
    return (COMPILED, "h2", "grpcio") if COMPILED_PYTHON.exists() else ("h2", "grpcio")


@dataclass
class Served:
    """A server that is up, and what was measured of it, by name of the conversation."""

    name: str
    port: int
    pid: int
    samples: dict[str, list[Sample]] = field(default_factory=dict)

    def cpu(self, conversation: str) -> float:
        """Median CPU microseconds per request."""
        return statistics.median(sample.cpu_microseconds for sample in self.samples[conversation])


@contextmanager
def served(
    transport: str, session: str, core: int, model_server_port: int, endpoints: int = 16, config: Path | None = None
) -> Iterator[Served]:
    """A server in a process of its own, for as long as the block lasts.

    Args:
        transport: `h2`, `grpcio` or `h2-compiled`.
        session: one of `SESSIONS`.
        core: where it is pinned.
        model_server_port: where requests are routed, and what `endpick serve` collects metrics from.
        endpoints: for plan: how many.
        config: for plan: a configuration that reads `endpoints.yaml`; None: llm-d's default profile.
    """
    python = str(COMPILED_PYTHON.absolute()) if transport == COMPILED else sys.executable
    spoken = "h2" if transport == COMPILED else transport
    if session == "plan":
        with serving(python, spoken, core, endpoints, config, model_server_port) as (port, _metrics_port, pid):
            yield Served(transport, port, pid)
        return
    command = [python, "-m", "benchmarks.extproc.serve", "--transport", spoken, "--session", session]
    command += ["--core", str(core), "--destination", f"127.0.0.1:{model_server_port}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield Served(transport, int(process.stdout.readline()), process.pid)
