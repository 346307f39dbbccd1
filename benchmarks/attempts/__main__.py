"""Attempts to take a picker down, and what the well-behaved notice: `make attempts`, or `python -m benchmarks.attempts CLASS:NAME ...`.

Each attempt is made for some seconds on an `endpick serve` of its own, beside gateways that behave and probes. A finding is: a request
or probe of theirs that was lost, a turn of the event loop of more than 100 ms of processor time, memory beyond `--max-memory` and a fifth,
a line of the log that is not endpick's or tells of a fault, a process that ends by itself or does not end when it is told to, and
whatever an attempt itself looks for. The exit code is 1 when there is any.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from benchmarks.attempts.catalogue import MAX_MEMORY, Attempt, Noticed
from benchmarks.attempts.hostile import CLASSES, attempts_of
from benchmarks.attempts.picker import picking
from benchmarks.attempts.witness import noticed, witness
from benchmarks.model_server import model_server
from endpick.config.model import parse_quantity

_FIGURES = "| {of} | {name} | {made} | {requests} | {lost} | {wait:.0f} | {probe:.0f} | {turn:.0f} | {memory:.0f} | {came} |"


def chosen(modules: Iterable[str], names: Sequence[str]) -> Iterator[Attempt]:
    """Attempts of these modules, by class or by `class:name`; all for no names."""
    for module in modules:
        for attempt in attempts_of(module):
            if not names or attempt.of in names or f"{attempt.of}:{attempt.name}" in names:
                yield attempt


def make(attempt: Attempt, port: int, options: argparse.Namespace) -> Noticed:
    """Make one attempt on a picker of its own."""
    processors = sorted(os.sched_getaffinity(0))
    core = None if options.together or len(processors) < 2 else processors[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with picking(attempt, folder, port, options.python, options.transport, core) as picker:
            if core is not None:
                os.sched_setaffinity(0, processors[1:])
            try:
                seen = asyncio.run(witness(attempt, picker, port, options.seconds, options.seed))
            finally:
                os.sched_setaffinity(0, processors)
        if options.log:
            sys.stderr.write((folder / "log").read_text(errors="replace"))
        return noticed(picker, seen, _max_memory_mib(attempt))


def _max_memory_mib(attempt: Attempt) -> float:
    given = [flag.partition("=")[2] for flag in attempt.flags if flag.startswith("--max-memory=")]
    return parse_quantity((given or [MAX_MEMORY])[-1]) / (1 << 20)


def main() -> int:
    """Make them one after the other, and print a row for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attempts", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="CLASS[:NAME]", help=f"of {', '.join(CLASSES)}; default all")
    known = [f"benchmarks.attempts.{of}" for of in CLASSES]
    parser.add_argument("--module", action="append", help="with attempts of your own, in `ATTEMPTS`, instead of those that are known")
    parser.add_argument("--seconds", type=float, default=6, help="for each attempt")
    parser.add_argument("--seed", type=int, default=7, help="of what attempts leave to chance: the order, sizes, shapes")
    parser.add_argument("--transport", choices=("h2", "grpcio"), default="h2")
    parser.add_argument(
        "--python",
        type=os.path.abspath,
        default=sys.executable,
        help="an interpreter for which endpick is installed, such as that of a compiled one",
    )
    parser.add_argument("--together", action="store_true", help="on all processors, instead of the picker on one and all others elsewhere")
    parser.add_argument("--log", action="store_true", help="show what each picker logged")
    parser.add_argument("--list", action="store_true", help="say what would be tried, and try nothing")
    options = parser.parse_args()
    attempts = [each for each in chosen(options.module or known, options.names) if options.transport in each.transports]
    if options.list:
        print("\n".join(f"| {each.of} | {each.name} | {each.about} |" for each in attempts))
        return 0
    broke = 0
    print("| class | attempt | made | requests | lost | longest wait ms | longest probe ms | longest turn ms | memory MiB | came of it |")
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with model_server(max(os.sched_getaffinity(0))) as port:
        for attempt in attempts:
            seen = make(attempt, port, options)
            findings = seen.findings(attempt)
            broke += bool(findings)
            print(_told(attempt, seen, findings), flush=True)
    print(f"{len(attempts)} attempts, of which {broke} found something")
    return int(bool(broke))


def _told(attempt: Attempt, seen: Noticed, findings: Sequence[str]) -> str:
    return _FIGURES.format(
        of=attempt.of,
        name=attempt.name,
        made=seen.made,
        requests=seen.requests,
        lost=seen.lost,
        wait=seen.longest_wait_seconds * 1000,
        probe=seen.longest_probe_seconds * 1000,
        turn=seen.longest_turn_seconds * 1000,
        memory=seen.most_resident_mib,
        came="; ".join(findings) or "nothing",
    )


if __name__ == "__main__":
    sys.exit(main())
