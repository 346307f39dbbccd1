"""Plugins that do wrong while something else happens: reloads and departures at once, circuits that try again, the drain."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterable

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.culprit import FILES, config, go_through, reload
from benchmarks.attempts.culprits.answered import ANSWERED
from benchmarks.attempts.culprits.misdeeds import Orders
from benchmarks.attempts.culprits.thrown import THROWN
from benchmarks.attempts.gateway import HELLO, answered, connected, data, opened
from benchmarks.attempts.second import PLAIN, asked, second

_SLOW = ("chain", "wide-group", "nested-group", "megabyte", "recursion", "lists-in-lists")
_ACTS = tuple(name for name in (*THROWN, *ANSWERED) if name not in _SLOW)
_PLACES = (
    *("scorer.score", "filter.filter", "picker.pick", "producer.produce", "waiter.produce", "admitter.admit", "prerequest.before"),
    *("observer.started", "observer.ended", "parser.usage", "fairness.changed", "fairness.dispatched", "ordering.key"),
    *("usage.ceilings", "eviction.evictable", "source.poll", "source.watch", "collector.collect", "life.removed", "life.learnt"),
    *("build.stop", "hooks.reload", "hooks.decision"),
)
_LONGEST_SECONDS = 60.0


async def plugins_fail_amid_reloads_and_departures(target: Target) -> Iterable[str]:
    """Any plugin throws or answers nonsense while reloads replace all instances, endpoints leave and come, and circuits try again."""
    file = target.folder / "endpoints.yaml"
    all_of_them = file.read_text()

    async def at_once() -> None:
        file.write_text("\n".join(all_of_them.splitlines()[: target.rng.randrange(4, 13)]) + "\n")
        reload(target)
        async with connected(target.ext_proc_port) as (reader, writer):
            writer.write(HELLO + b"".join(opened(at) + data(at, PLAIN) for at in range(1, 40, 2)))
            await answered(reader, 0.1)
        reload(target)
        await asyncio.sleep(0.2)

    places = target.rng.sample(_PLACES, 6)
    found = await go_through(target, places, target.rng.sample(_ACTS, 12), times=3, prompt=at_once, loses=True)
    file.write_text(all_of_them)
    # With circuits that open, and plugins that a reload replaces, it is chance what is called: that is for the class `plugins`.
    return [each for each in found if "never called" not in each]


async def plugins_fail_in_the_drain(target: Target) -> Iterable[str]:
    """A second picker is told to end while requests wait and everything fails in one way, from the drain on or before: it ends in order."""
    found = []
    for what in target.rng.sample(_ACTS, 2):
        place = target.rng.choice(("*", "build.stop", "fairness.choose", "observer.ended", "source.watch", "hooks.decision"))
        async with second(target, "--drain-timeout=1s", config=config(), files=FILES) as made:
            # What did not stop is told as a diagnostic, in lines for people.
            made.picker.blames, made.ends_with, made.logs_whole_lines = "culprit", (0, 5), False
            orders = Orders(made.picker.folder / "act")
            await asked(made.picker.ext_proc_port)
            early = target.rng.randrange(2)
            if early:
                orders.give(f"{place} {what}")
            async with connected(made.picker.ext_proc_port) as (reader, writer):
                writer.write(HELLO + b"".join(opened(at) + data(at, PLAIN) for at in range(1, 200, 2)))
                await answered(reader, 0.1)
                made.signal(signal.SIGTERM)
                orders.give(f"{place} {what}")
                await answered(reader, 2.0)
            await made.ended(_LONGEST_SECONDS)
            log = (made.picker.folder / "log").read_text(errors="replace")
            if "Traceback" in log and "\n  + Exception Group" in log:
                made.told.append("it ended with a traceback of its own")
        found += [f"{place} does {what}: {each}" for each in made.told]
    return found


ATTEMPTS = (
    Attempt(
        plugins_fail_amid_reloads_and_departures,
        ("--circuit-faults=3", "--circuit-cool-down=200ms", "--decision-sampling=1", "--finish-timeout=1s"),
        config(),
        FILES,
        blames="culprit",
    ),
    Attempt(plugins_fail_in_the_drain),
)
