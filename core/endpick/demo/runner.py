"""`endpick demo` from start to report: the same load under two configurations."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from endpick.demo.report import Summary, render_report, summarize
from endpick.demo.table import LiveTable
from endpick.demo.trial import Trial, run_trial
from endpick.demo.workload import WorkloadSettings, make_workload

PICKER = (sys.executable, "-m", "endpick", "serve")
CONFIGURATIONS = (("prefix-aware", "prefix-aware.yaml"), ("random-picker", "random-picker.yaml"))
_LAST_ANSWERS_SECONDS = 1.0
"""The end of each half in which nothing new is asked, so that the last answers come within it."""

_GRACE_SECONDS = 10.0
"""How long answers may be late before the load ends without them."""


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What the demo runs."""

    envoy: Path
    """Envoy's binary."""
    duration_seconds: float = 30.0
    """Load under both configurations together; starting and stopping come on top."""
    requests_per_second: float = 20.0
    servers: int = 4
    seed: int = 1


async def run_demo(settings: DemoSettings, output: TextIO) -> bool:
    """Run both trials and write the comparison; True when no request failed.

    Raises:
        ChildFailed: a process did not start, or ended during the load.
        OSError: a process cannot be started.
    """
    span = max(settings.duration_seconds / len(CONFIGURATIONS) - _LAST_ANSWERS_SECONDS, 1.0)
    workload = make_workload(WorkloadSettings(span, settings.requests_per_second), settings.seed)
    turns = sum(len(chat.turns) for chat in workload)
    output.write(
        f"{turns} requests of {len(workload)} chats, through Envoy to {settings.servers} simulated model servers,"
        f" twice: {' and '.join(name for name, _ in CONFIGURATIONS)}\n\n"
    )
    results: list[tuple[str, Summary]] = []
    with tempfile.TemporaryDirectory(prefix="endpick-demo-") as folder:
        for name, config in CONFIGURATIONS:
            limit = settings.duration_seconds / len(CONFIGURATIONS) + _GRACE_SECONDS
            trial = Trial(name, config, settings.servers, settings.envoy, workload, limit, PICKER)
            trial_folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder))
            outcomes = await run_trial(trial, trial_folder, LiveTable(output))
            results.append((name, summarize(outcomes)))
            output.write("\n")
    output.write(render_report(*results))
    return not any(summary.failed for _, summary in results)
