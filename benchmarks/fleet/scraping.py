"""What workers spend on the metrics pages of a pool, when one of them scrapes for all: python -m benchmarks.fleet.scraping.

The pages change with every scrape. The CPU of N processes that scrape alone is N times that of the first row.
"""

from __future__ import annotations

import argparse
import sys
import time

from benchmarks.extproc.load import cpu_seconds
from benchmarks.fleet.paced import awake
from benchmarks.fleet.workers import GATEWAY_CORE, WORKER_CORE, processes, supervised
from benchmarks.model_server import model_server


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet.scraping", description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter for which endpick is installed")
    parser.add_argument("--endpoints", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a window")
    options = parser.parse_args()
    print("| workers | of a core: all | the first | each other | supervisor |\n|---|---|---|---|---|")
    with awake(WORKER_CORE), model_server(GATEWAY_CORE, long_page=True, changes=True) as port:
        for workers in (1, 2, 4):
            with supervised(options.python, workers, port, options.endpoints) as (_, supervisor):
                time.sleep(5.0)  # until they know each other
                serving, others = processes(workers, supervisor)
                everyone = (*serving, *others)
                before = [cpu_seconds(pid) for pid in everyone]
                time.sleep(options.seconds)
                used = [(cpu_seconds(pid) - began) / options.seconds for pid, began in zip(everyone, before, strict=True)]
                workers_used, aside = sorted(used[: len(serving)], reverse=True), sum(used[len(serving) :])
                other = sum(workers_used[1:]) / max(1, len(serving) - 1)
                print(f"| {workers} | {sum(used):.1%} | {workers_used[0]:.1%} | {other:.1%} | {aside:.1%} |", flush=True)


if __name__ == "__main__":
    main()
