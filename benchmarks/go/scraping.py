"""What following a pool's metrics costs endpick and llm-d's picker in Go: `python -m benchmarks.go.scraping --epp /path/to/epp`.

No requests. Pages of 2 or 60 KB, each 50 ms, that change from one scrape to the next as a busy server's do, or never change: endpick asks
for those less often. Each picker in its turn, on one core; the server of the pages is on another, and is not counted.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence

from benchmarks.extproc.load import resident_mebibytes
from benchmarks.extproc.plan import CONFIG
from benchmarks.go.pickers import GO, MISSING, add_options, commands, idle_share, started
from benchmarks.scale import changing
from benchmarks.scrape import counted, long_page, short_page

POOLS = {"16x2": (16, short_page), "16x60": (16, long_page), "100x60": (100, long_page)}
SETTLE_SECONDS = 4.0
"""Until endpoints with nothing to do are asked as seldom as they will be."""


def measured(
    name: str, command: Sequence[str], endpoints: int, pages: tuple[bytes, ...], options: argparse.Namespace
) -> tuple[float, float, float]:
    """Cores, scrapes a second, and MiB."""
    with (
        counted(*pages, core=options.load_core) as (port, given),
        started(name, command, CONFIG, endpoints, port, options.picker_core) as (_, pid),
    ):
        time.sleep(SETTLE_SECONDS)
        before, began = given.value, time.monotonic()
        share = idle_share(pid, options.seconds)
        return share, (given.value - before) / (time.monotonic() - began), resident_mebibytes(pid)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.go.scraping", description=__doc__.splitlines()[0])
    add_options(parser)
    parser.add_argument("--pools", default="16x2,100x60", help=f"of {', '.join(POOLS)} (%(default)s): endpoints, and KB of a page")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a window")
    parser.add_argument("--rounds", type=int, default=3, help="starts of each picker for each pool")
    options = parser.parse_args()
    if not options.epp:
        print(MISSING)
        return 0
    contestants = commands(options.epp)
    names = list(contestants)
    print(
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}, Linux {platform.release()}, Python {platform.python_version()}\n"
    )
    ours = " | ".join(f"{name} : {GO}" for name in names[1:])
    print(f"| pages | {ours} | cores: {', '.join(names)} | scrapes a second | MiB |")
    print("|---" * (3 + len(contestants)) + "|")
    for pool in options.pools.split(","):
        endpoints, make = POOLS[pool]
        for kind, pages in (("change", changing(make())), ("stay", (make(),))):
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
            for number in range(options.rounds):
                turn = number % len(contestants)
                for name in (*names[turn:], *names[:turn]):
                    found[name].append(measured(name, contestants[name], endpoints, pages, options))
            cores, rates, held = ([statistics.median(one[which] for one in found[name]) for name in names] for which in range(3))
            ratios = " | ".join(f"{core / cores[0]:.2f}" for core in cores[1:])
            shown = ", ".join(f"{core:.3f}" for core in cores)
            asked, memory = ", ".join(f"{rate:.0f}" for rate in rates), ", ".join(f"{mib:.0f}" for mib in held)
            print(f"| {pool} KB, {kind} | {ratios} | {shown} | {asked} | {memory} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
