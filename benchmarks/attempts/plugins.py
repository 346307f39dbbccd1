"""Plugins that throw, answer nonsense and do harm in passing, at every point at which endpick calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from benchmarks.attempts.catalogue import Attempt, Run, Target
from benchmarks.attempts.culprit import FILES, config, go_through, reload
from benchmarks.attempts.culprits.answered import ANSWERED
from benchmarks.attempts.culprits.done import DONE
from benchmarks.attempts.culprits.misdeeds import Orders
from benchmarks.attempts.culprits.thrown import THROWN
from benchmarks.attempts.gateway import HELLO, answered, connected, data, opened, request

_BAD = (*THROWN, *ANSWERED)
_DEEDS = tuple(name for name in DONE if not name.startswith("block"))
_BLOCKS = tuple(name for name in DONE if name.startswith("block"))
_FLAGS = ("--circuit-faults=1000000000", "--plugin-time-budget=60s", "--decision-sampling=1", "--refresh-metrics-interval=200ms")
"""So that no circuit opens, and each pair is reached."""
_FULL = ("true", "number-3", f"number-{10**400}", "float-inf", "no-dimension", "everything")
"""What says of a pool that it is full, or of a band that it is closed."""


_LIGHT = tuple(name for name in THROWN if name not in ("chain", "wide-group", "nested-group", "megabyte", "recursion", "lists-in-lists"))
"""What a plugin makes in no time, so that what takes long is not the plugin."""


async def scheduling_plugins_fail(target: Target) -> Iterable[str]:
    """Filters, scorers, pickers and deciders throw and answer all there is, each to be skipped then."""
    return await go_through(target, ("filter.filter", "scorer.score", "picker.pick", "decider.disaggregate"), _BAD)


async def plugins_around_scheduling_fail(target: Target) -> Iterable[str]:
    """Header processors, candidate filters, producers, admitters and pre-requests throw and answer all there is."""
    places = ("headers.process", "screener.filter", "producer.produce", "waiter.produce", "admitter.admit", "prerequest.before")
    return await go_through(target, places, _BAD)


async def what_plugins_leave_for_others_is_nonsense(target: Target) -> Iterable[str]:
    """State, columns, headers and metadata that producers and pre-requests put are all there is."""
    return await go_through(target, ("producer.put", "waiter.put", "prerequest.header", "prerequest.metadata"), _BAD)


async def observers_fail(target: Target) -> Iterable[str]:
    """Observers throw and answer all there is at each step of a response."""
    return await go_through(target, tuple(f"observer.{step}" for step in ("started", "chunk", "metadata", "ended")), _BAD)


async def parsers_fail(target: Target) -> Iterable[str]:
    """A parser that may be skipped throws and answers all there is to bodies, and to the answers of model servers."""
    return await go_through(target, ("parser.parse", "parser.usage"), _BAD)


async def parsers_cannot_exchange_the_model(target: Target) -> Iterable[str]:
    """A parser fails where the client asks for another model, on a connection that others do not use."""

    async def ask() -> None:
        async with connected(target.ext_proc_port) as (reader, writer):
            body = b'{"model":"m","prompt":"x"}'
            sent = request(body, {"x-llm-d-model-name-rewrite": "other"})
            writer.write(HELLO + b"".join(opened(stream) + data(stream, sent) for stream in (1, 3)))
            await answered(reader, 0.05)

    return await go_through(target, ("parser.rewrite",), _BAD, prompt=ask, loses=True)


async def handlers_fail(target: Target) -> Iterable[str]:
    """A profile handler that may be skipped throws and answers all there is."""
    return await go_through(target, ("handler.pick", "handler.process"), _BAD, {"handler.pick": ("empty-tuple",)})


async def policies_of_queues_fail(target: Target) -> Iterable[str]:
    """Policies of flow control, the saturation detector and eviction throw and answer all there is, while requests wait."""
    fairness = ("fairness.choose", "fairness.changed", "fairness.dispatched", "ordering.key")
    places = (*fairness, "usage.ceilings", "detector.saturation", "eviction.evictable")
    return await go_through(target, places, _BAD, {"detector.saturation": _FULL, "fairness.choose": ("nothing",)})


async def collection_fails(target: Target) -> Iterable[str]:
    """Sources that poll, stream and are told of changes, and their collectors, throw and deliver all there is."""
    places = ("source.poll", "source.poll-pool", "source.watch", "source.watch-pool", "collector.collect")
    return await go_through(target, (*places, "collector.set", "collector.set-pool"), _BAD, times=1)


async def discoveries_report_nonsense(target: Target) -> Iterable[str]:
    """A discovery reports all there is by each of its ways, and repairs it in the same breath."""
    ways = ("upsert", "remove", "replace", "replace-some", "objectives", "priority", "rewrites", "rule", "target", "weight", "stand-by")
    places = tuple(f"report.{way}" for way in (*ways, "labels", "port", "address", "without-end"))
    return await go_through(target, places, tuple(ANSWERED), times=1)


async def metrics_and_memory_of_plugins_fail(target: Target) -> Iterable[str]:
    """What a plugin says to scrapes, of what it has learnt, and when it is to forget, is all there is."""
    port = target.metrics_port

    async def scrape() -> None:
        async with connected(port) as (reader, writer):
            writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            await answered(reader, 1.0)

    return await go_through(target, ("metrics.collect", "life.learnt", "life.forget"), _BAD, times=1, prompt=scrape)


async def plugins_fail_while_they_are_built(target: Target) -> Iterable[str]:
    """Validators, constructors, subscriptions and starts of all instances fail at reload after reload."""

    async def again() -> None:
        reload(target)
        await asyncio.sleep(0.3)

    places = ("build.validator", "build.constructor", "build.subscriptions", "build.start")
    return await go_through(target, places, _BAD, times=1, prompt=again)


async def plugins_fail_while_they_end(target: Target) -> Iterable[str]:
    """Instances that a reload replaces fail to stop, and to hear of endpoints that leave."""
    file = target.folder / "endpoints.yaml"
    all_of_them = file.read_text()

    async def again() -> None:
        reload(target)
        file.write_text("\n".join(all_of_them.splitlines()[: target.rng.randrange(4, 13)]) + "\n")
        await asyncio.sleep(0.3)

    found = await go_through(target, ("build.stop", "life.removed", "source.notify"), _BAD, times=1, prompt=again)
    file.write_text(all_of_them)
    return found


async def hook_objects_fail(target: Target) -> Iterable[str]:
    """Hook objects throw and answer all there is at reloads, and at each decision."""

    async def again() -> None:
        reload(target)
        await asyncio.sleep(0.3)

    places = ("hooks.register", "hooks.loaded", "hooks.validate", "hooks.reload", "hooks.decision")
    return await go_through(target, places, _BAD, times=1, prompt=again)


async def plugins_do_harm_in_passing(target: Target) -> Iterable[str]:
    """Wherever a plugin is called it leaves tasks, threads, finalizers and lines behind, and then answers what is right."""
    return await go_through(target, ("*", "scorer.score", "waiter.produce", "observer.ended", "source.poll"), _DEEDS, times=3)


async def plugins_block(target: Target) -> Iterable[str]:
    """Each place blocks, now one and now another, until its circuit opens."""
    places = ("scorer.score", "filter.filter", "observer.ended", "fairness.changed", "parser.parse", "waiter.produce", "collector.collect")
    orders = Orders(target.folder / "act")
    orders.give(f"{target.rng.choice(places)} {target.rng.choice(_BLOCKS)}")
    await asyncio.sleep(min(1.0, target.seconds_left()))
    orders.give("")
    return ()


async def plugins_fail_until_they_are_left_out(target: Target) -> Iterable[str]:
    """Everything fails at once in one way, with circuits that open and close again all the time."""
    orders = Orders(target.folder / "act")
    orders.give(f"* {target.rng.choice(_LIGHT)}")
    await asyncio.sleep(min(0.7, target.seconds_left()))
    orders.give("")
    return ()


def _attempt(run: Run, flags: tuple[str, ...] = _FLAGS, discovery: str = "endpoints") -> Attempt:
    return Attempt(run, flags, config(discovery=discovery), FILES, blames="culprit")


ATTEMPTS = (
    _attempt(scheduling_plugins_fail),
    _attempt(plugins_around_scheduling_fail),
    _attempt(what_plugins_leave_for_others_is_nonsense),
    _attempt(observers_fail),
    _attempt(parsers_fail),
    _attempt(parsers_cannot_exchange_the_model),
    _attempt(handlers_fail),
    _attempt(policies_of_queues_fail),
    _attempt(collection_fails),
    _attempt(discoveries_report_nonsense, discovery="culprit.finder"),
    _attempt(metrics_and_memory_of_plugins_fail),
    _attempt(plugins_fail_while_they_are_built),
    _attempt(plugins_fail_while_they_end),
    _attempt(hook_objects_fail),
    _attempt(plugins_do_harm_in_passing),
    _attempt(plugins_block, ("--circuit-cool-down=1s",)),
    _attempt(plugins_fail_until_they_are_left_out, ("--circuit-cool-down=300ms", "--circuit-faults=5")),
)
