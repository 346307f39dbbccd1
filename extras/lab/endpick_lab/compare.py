"""Runs several configurations on the same trace, each in its own process."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib.resources import files
from multiprocessing.queues import Queue
from pathlib import Path
from queue import Empty
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan
from endpick_lab.decisions import holds_decisions, read_decisions
from endpick_lab.figures import Figures, figures_of, tpot, ttft
from endpick_lab.fleet import FleetSettings
from endpick_lab.pool import PoolSettings
from endpick_lab.run import ONE_PICKER, RunResult, run
from endpick_lab.settings import EngineSettings, Timing
from endpick_lab.trace import TraceError, TraceRequest, read_trace, spread
from endpick_lab.workload import read_workload

ORACLE = "oracle"  # in place of a configuration
BUILT_IN = ("default", "llm-d")  # configurations that come with endpick
_POLL_SECONDS = 0.2
_MAX_LORAS = 4
_HASH_SEED = "PYTHONHASHSEED"
_SPAWN = multiprocessing.get_context("spawn")

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of a run and the number of its requests that have arrived."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A trace and the servers for it.

    Attributes:
        kv_blocks: KV blocks of each server, of the trace's block size.
        until_seconds: Requests that arrive later are left out, after scaling.
        part: The first and last share of these requests to simulate.
    """

    trace: Path
    servers: int = 8
    kv_blocks: int = 4000
    rate_scale: float = 1.0
    until_seconds: float = float("inf")
    seed: int = 1
    timing: Timing = field(default_factory=Timing)
    slo_ttft_seconds: float | None = None
    slo_tpot_seconds: float | None = None
    part: tuple[float, float] = (0.0, 1.0)
    fleet: FleetSettings = ONE_PICKER

    def load(self) -> tuple[list[TraceRequest], PoolSettings]:
        """Read the requests and make the pool's settings; raises OSError, TraceError."""
        pool = PoolSettings(self.servers, EngineSettings())
        if self.trace.suffix in {".yaml", ".yml"}:
            workload = read_workload(self.trace.read_text(encoding="utf-8"))
            requests = workload.requests(self.seed)
            pool = replace(pool, speeds=workload.speeds, failures=workload.failure_list(self.servers))
        else:
            recorded = holds_decisions(self.trace)
            requests = spread(read_decisions(self.trace).trace() if recorded else read_trace(self.trace), self.seed)
        scaled = (replace(request, at=request.at / self.rate_scale) for request in requests)
        chosen = [request for request in scaled if request.at < self.until_seconds]
        first, last = (int(share * len(chosen)) for share in self.part)
        chosen = [replace(request, at=request.at - chosen[first].at) for request in chosen[first:last]]
        if not chosen:
            raise TraceError("no request arrives in the time that is simulated")
        size = chosen[0].block_tokens
        engine = EngineSettings(
            kv_blocks=self.kv_blocks,
            block_size=size,
            max_model_len=self.kv_blocks * size,
            max_loras=_MAX_LORAS if any(request.adapter for request in chosen) else 0,
            timing=self.timing,
        )
        return chosen, replace(pool, engine=engine)


@dataclass(frozen=True, slots=True)
class Compared:
    """One configuration's figures, and its served requests: arrival, time to first token, per further token, and in total."""

    figures: Figures
    samples: NDArray[np.float64]


def path_of(config: str) -> str:
    """Return the file of a configuration, which may be one of `BUILT_IN`."""
    return str(files("endpick.config").joinpath(f"{config}.yaml")) if config in BUILT_IN else config


def plan_of(config: str) -> Plan | None:
    """Return the plan of a configuration that was checked before; None for the oracle."""
    if config == ORACLE:
        return None
    plan = make_plan(load_config(path_of(config)), discover()).plan
    assert plan is not None, f"{config} changed since it was checked"
    return plan


def simulate(config: str, scenario: Scenario, progress: Callable[[int], None] | None = None, record: Path | None = None) -> Compared:
    """Run one configuration; write its decisions to `record`. Raises OSError, TraceError, StartRefused."""
    requests, pool = scenario.load()
    with nullcontext() if record is None else record.open("wb") as file:
        result = run(plan_of(config), requests, pool, scenario.seed, progress, scenario.fleet, file)
    return Compared(figures_of(config, result, scenario.slo_ttft_seconds, scenario.slo_tpot_seconds), _samples(result))


def compare(configs: Sequence[str], scenario: Scenario, progress: Progress, record: Path | None = None) -> list[Compared]:
    """Run the configurations on all cores; returns results in order, and records decisions of the first.

    Raises as `simulate`.
    """
    reports: Queue[tuple[int, int]] = _SPAWN.Queue()
    with worker_pool(min(os.cpu_count() or 1, len(configs)), reports) as pool:
        running = {
            pool.submit(_run_job, number, config, scenario, None if number else record): number for number, config in enumerate(configs)
        }
        outcomes: dict[int, Compared] = {}
        while len(outcomes) < len(configs):
            done, _ = wait([future for future, number in running.items() if number not in outcomes], _POLL_SECONDS, FIRST_COMPLETED)
            outcomes |= {running[future]: future.result() for future in done}
            with suppress(Empty):
                while True:
                    progress(*reports.get_nowait())
    return [outcomes[number] for number in range(len(configs))]


def with_regret(compared: Sequence[Compared]) -> list[Compared]:
    """Add the regret of each configuration, if one of them is the oracle."""
    best = next((result.figures["ttft_seconds"] for result in compared if result.figures["config"] == ORACLE), None)
    if best is None:
        return list(compared)
    rows = []
    for result in compared:
        times = result.figures["ttft_seconds"]
        regret = None if times is None else round(times["mean"] / best["mean"] - 1, 6)
        rows.append(Compared({**result.figures, "regret": regret}, result.samples))
    return rows


@contextmanager
def worker_pool(workers: int | None = None, reports: Queue[tuple[int, int]] | None = None) -> Iterator[ProcessPoolExecutor]:
    """Start processes for simulations, one for each core by default; they end with the block."""
    before = os.environ.get(_HASH_SEED)
    os.environ[_HASH_SEED] = "0"  # plugins may iterate over sets of names
    try:
        with ProcessPoolExecutor(workers, _SPAWN, _init_worker, (reports,)) as pool:
            try:
                yield pool
            except BaseException:
                for child in multiprocessing.active_children():
                    child.terminate()
                raise
    finally:
        if before is None:
            del os.environ[_HASH_SEED]
        else:
            os.environ[_HASH_SEED] = before


_reports: Queue[tuple[int, int]] | None = None


def _init_worker(reports: Queue[tuple[int, int]] | None) -> None:
    global _reports  # noqa: PLW0603 - of the worker process
    _reports = reports
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # end without a traceback
    threading.Thread(target=_end_with_parent, daemon=True).start()
    logging.disable(logging.WARNING)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_job(number: int, config: str, scenario: Scenario, record: Path | None) -> Compared:
    reports = _reports
    assert reports is not None
    return simulate(config, scenario, lambda requests: reports.put((number, requests)), record)


def _samples(result: RunResult) -> NDArray[np.float64]:
    served = [observed for observed in result.observed if observed.finished_at is not None]
    rows = [
        (
            observed.arrived_at,
            ttft(observed),
            tpot(observed) if observed.request.output_tokens > 1 else np.nan,
            (observed.finished_at or 0.0) - observed.arrived_at,
        )
        for observed in served
    ]
    return np.array(rows, float).reshape(-1, 4)
