"""`endpick demo` from start to report: the same load under two configurations."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from endpick.demo.configurations import Configuration, built_in
from endpick.demo.report import Summary, render_report, summarize
from endpick.demo.table import LiveTable
from endpick.demo.trial import Trial, run_trial
from endpick.demo.workload import WorkloadSettings, make_workload

PICKER = (sys.executable, "-m", "endpick", "serve")
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
    tried: Configuration = field(default_factory=lambda: built_in("prefix-aware"))
    """What is measured against random picks."""


async def run_demo(settings: DemoSettings, output: TextIO) -> bool:
    """Run both trials and write the comparison; True when no request failed.

    Raises:
        ChildFailed: a process did not start, or ended during the load.
        OSError: a process cannot be started.
    """
    configurations = (settings.tried, built_in("random-picker"))
    half_seconds = settings.duration_seconds / len(configurations)
    span = max(half_seconds - _LAST_ANSWERS_SECONDS, 1.0)
    workload = make_workload(WorkloadSettings(span, settings.requests_per_second), settings.seed)
    turns = sum(len(chat.turns) for chat in workload)
    output.write(
        f"{turns} requests of {len(workload)} chats, through Envoy to {settings.servers} simulated model servers,"
        f" twice: {' and '.join(each.name for each in configurations)}\n\n"
    )
    results: list[tuple[str, Summary]] = []
    with tempfile.TemporaryDirectory(prefix="endpick-demo-") as folder:
        for config in configurations:
            limit = half_seconds + _GRACE_SECONDS
            trial = Trial(config, settings.servers, settings.envoy, workload, limit, PICKER)
            trial_folder = Path(tempfile.mkdtemp(dir=folder))
            outcomes = await run_trial(trial, trial_folder, LiveTable(output))
            results.append((config.name, summarize(outcomes)))
            output.write("\n")
    output.write(render_report(*results))
    return not any(summary.failed for _, summary in results)
