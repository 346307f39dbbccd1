"""Compares routing policies on traces, in virtual time: `python -m benchmarks.policies`.

Needs a copy of Mooncake's conversation trace in $ENDPICK_TEST_DATA/mooncake. Prints Markdown for docs/explanation/routing-quality.md.
`--raw FILE` keeps the figures of each run, and goes on where an earlier run was interrupted.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import multiprocessing
import os
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.policies import ORACLE, POLICIES, plan_of
from endpick_lab.figures import Figures, figures_of
from endpick_lab.pool import Failure, PoolSettings, Trouble
from endpick_lab.run import run
from endpick_lab.settings import EngineSettings
from endpick_lab.trace import TraceRequest, read_trace, spread
from endpick_lab.workload import read_workload

SUBJECT = "predicted latency"
WINDOW_SECONDS = 200.0
METRICS = (("ttft_seconds", "mean"), ("ttft_seconds", "p50"), ("ttft_seconds", "p90"), ("ttft_seconds", "p99"), ("tpot_seconds", "mean"),
           ("e2e_seconds", "mean"), ("e2e_seconds", "p90"))  # fmt: skip
TIE = 1.02
SHARED_PREFIX = """
duration: 120s
blockTokens: 64
traffic: [{{rate: {rate}, tenants: 150, prefixTokens: 6000, questionTokens: 1200, outputTokens: 1000}}]
"""


@dataclass(frozen=True, slots=True)
class Cell:
    """One situation; `rate` is the factor for 8 servers on the trace, or requests per second of the shared-prefix workload."""

    name: str
    servers: int
    kv_blocks: int
    rate: float
    is_shared_prefix: bool = False
    speeds: tuple[float, ...] = ()
    failures: tuple[Failure, ...] = ()

    def load(self, seed: int) -> tuple[list[TraceRequest], PoolSettings]:
        """The requests: of the second half of the trace, which served for no choice in the policy."""
        if self.is_shared_prefix:
            requests = read_workload(SHARED_PREFIX.format(rate=self.rate)).requests(seed)
        else:
            whole = spread(read_trace(_trace()), seed)
            start = whole[len(whole) // 2].at
            scale = self.rate * self.servers / 8
            moved = (replace(one, at=(one.at - start) / scale) for one in whole if one.at >= start)
            requests = [one for one in moved if one.at < WINDOW_SECONDS]
        size = requests[0].block_tokens
        engine = EngineSettings(kv_blocks=self.kv_blocks, block_size=size, max_model_len=self.kv_blocks * size)
        return requests, PoolSettings(self.servers, engine, self.speeds, self.failures)


def _trace() -> Path:
    return Path(os.environ.get("ENDPICK_TEST_DATA", "../shared/data")) / "mooncake" / "conversation_trace.jsonl"


CELLS = (
    *(
        Cell(f"conversation, {servers} servers, {blocks} blocks, load {rate:g}", servers, blocks, rate)
        for servers in (4, 8, 16)
        for blocks in (1000, 4000)
        for rate in (1.0, 1.5, 2.0)
    ),
    *(Cell(f"shared prefix, 8 servers, {rate} requests/s", 8, 8000, rate, is_shared_prefix=True) for rate in (3, 10, 20, 30)),
    *(Cell(f"shared prefix, 16 servers, {rate} requests/s", 16, 8000, rate, is_shared_prefix=True) for rate in (40, 60)),
    Cell("half of 8 servers at half speed", 8, 4000, 1.2, speeds=(0.5,) * 4),
    Cell("one of 8 servers answers 503 for 60 s", 8, 4000, 1.5, failures=(Failure(0, Trouble.ERRORS, 60.0, 60.0),)),
    Cell("one of 8 servers stalls for 30 s", 8, 4000, 1.5, failures=(Failure(0, Trouble.STALL, 60.0, 30.0),)),
)


def measure(cell: Cell, policy: str, seed: int) -> Figures:
    """One run."""
    logging.disable(logging.WARNING)
    requests, pool = cell.load(seed)
    return figures_of(policy, run(plan_of(policy), requests, pool, seed))


def main() -> int:
    """Run what is missing, and print the tables."""
    parser = argparse.ArgumentParser(description="Compare routing policies on traces.")
    parser.add_argument("--raw", type=Path, default=Path("build/policies.jsonl"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if not _trace().exists():
        print(f"no trace at {_trace()}: set ENDPICK_TEST_DATA", file=sys.stderr)
        return 2
    options.raw.parent.mkdir(parents=True, exist_ok=True)
    done = {}
    if options.raw.exists():
        for line in options.raw.read_text().splitlines():
            read = json.loads(line)
            done[read["cell"], read["policy"], read["seed"]] = read["figures"]
    jobs = [(cell, policy, seed) for seed in range(1, options.seeds + 1) for cell in CELLS for policy in (*POLICIES, ORACLE)]
    missing = [job for job in jobs if (job[0].name, *job[1:]) not in done]
    os.environ["PYTHONHASHSEED"] = "0"
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool, options.raw.open("a") as raw:
        running = {pool.submit(measure, *job): job for job in missing}
        for number, future in enumerate(as_completed(running), 1):
            cell, policy, seed = running[future]
            done[cell.name, policy, seed] = figures = future.result()
            raw.write(json.dumps({"cell": cell.name, "policy": policy, "seed": seed, "figures": figures}) + "\n")
            raw.flush()
            print(f"\r{number} of {len(missing)}", end="", file=sys.stderr)
    print(report(done, options.seeds))
    return 0


def report(done: Mapping[tuple[str, str, int], Figures], seeds: int) -> str:
    """Markdown: each policy against the subject over all cells, and the subject cell by cell."""
    others = [name for name in (*POLICIES, ORACLE) if name != SUBJECT]
    lines = [
        f"Geometric means over the runs that both could serve, {len(CELLS)} situations, {seeds} seeds; {SUBJECT} = 1, in brackets 95 %.",
        "",
        "| policy | TTFT mean | p50 | p90 | p99 | TPOT | E2E mean | p90 | could not serve |",
        "|---" * 9 + "|",
    ]
    for name in others:
        cells = []
        for group, key in METRICS:
            pairs = [_ratio(done, cell.name, name, seed, group, key) for cell in CELLS for seed in range(1, seeds + 1)]
            cells.append(_interval([pair for pair in pairs if pair is not None]))
        saturated = sum(done[cell.name, name, seed]["saturated"] for cell in CELLS for seed in range(1, seeds + 1))
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {saturated} of {len(CELLS) * seeds} |")
    lines += ["", "| situation | TTFT mean (s) | p90 | E2E mean | failed | best other in TTFT p90 | best other in E2E |", "|---" * 7 + "|"]
    lines += [_row(done, cell.name, [name for name in others if name != ORACLE], seeds) for cell in CELLS]
    return "\n".join(lines)


def _row(done: Mapping[tuple[str, str, int], Figures], cell: str, others: Sequence[str], seeds: int) -> str:
    numbers = range(1, seeds + 1)
    own = [_mean([_value(done[cell, SUBJECT, seed], *metric) for seed in numbers]) for metric in (METRICS[0], METRICS[2], METRICS[5])]
    failed = sum(done[cell, SUBJECT, seed]["failed"] for seed in numbers)
    best = []
    for metric in (METRICS[2], METRICS[5]):
        ratios = {name: [_ratio(done, cell, name, seed, *metric) for seed in numbers] for name in others}
        served = {name: math.exp(_mean([math.log(one or 1) for one in found])) for name, found in ratios.items() if None not in found}
        if not served:
            best.append("none could serve")
            continue
        name = min(served, key=served.__getitem__)
        ratio = served[name]
        verdict = "" if ratio >= TIE else " (tie)" if ratio > 1 / TIE else " **better**"
        best.append(f"{name} {ratio:.2f}{verdict}")
    return (
        f"| {cell} | "
        + " | ".join("saturated" if math.isnan(one) else f"{one:.2f}" for one in own)
        + f" | {failed} | "
        + " | ".join(best)
        + " |"
    )


def _value(figures: Figures, group: str, key: str) -> float:
    times = figures.get(group)
    return math.nan if times is None else times[key]  # type: ignore[index]


def _ratio(done: Mapping[tuple[str, str, int], Figures], cell: str, other: str, seed: int, group: str, key: str) -> float | None:
    found = _value(done[cell, other, seed], group, key) / _value(done[cell, SUBJECT, seed], group, key)
    return None if math.isnan(found) else found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _interval(ratios: Sequence[float]) -> str:
    """The geometric mean with a bootstrap interval."""
    if not ratios:
        return "-"
    logs = [math.log(ratio) for ratio in ratios]
    draw = random.Random(1)
    means = sorted(_mean(draw.choices(logs, k=len(logs))) for _ in range(2000))
    return f"{math.exp(_mean(logs)):.2f} [{math.exp(means[50]):.2f} {math.exp(means[1949]):.2f}]"
