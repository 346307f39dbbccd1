"""Checks of data sources, data collectors and discoveries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

from endpick.api import DataCollector, DataSource
from endpick.api.datalayer import PollingPoolSource, PollingSource
from endpick.api.discovery import EndpointDiscovery
from endpick.api.endpoint import Endpoint
from endpick.api.errors import ConfigurationError, Unavailable
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.kinds import payload_of
from endpick.testing.bench import Bench, Raised, benches
from endpick.testing.exercise import ANSWERS, IgnoredCancellation, answering, no_server, payloads_from, run, run_discovery, started
from endpick.testing.factories import garbage_of, make_pool
from endpick.testing.plugin_under_test import Finding, NotApplicable, PluginUnderTest, check

Server = Callable[[], AbstractAsyncContextManager[Endpoint]]


_SERVERS: dict[str, Server] = {
    "no server is there": no_server,
    **{f"the server answers {kind}": partial(answering, kind) for kind in ANSWERS},
}


@check(DataSource, once=True)
def source_raises_only_unavailable(subject: PluginUnderTest) -> Iterator[Finding]:
    """When a server is down or its answer is invalid, the source raises only `Unavailable`."""
    for situation, outcome in _outcomes(subject):
        if isinstance(outcome, Raised) and not isinstance(outcome.problem, Unavailable):
            yield Finding(f"it raises {outcome} when {situation}", "catch what your client raises, and raise Unavailable(...) from it")


@check(DataSource, once=True)
def source_gives_its_payload(subject: PluginUnderTest) -> Iterator[Finding]:
    """Every payload of the source has the type of its second generic argument: collectors rely on it."""
    expected = payload_of(subject.plugin) or object
    for situation, outcome in _outcomes(subject):
        for payload in outcome if isinstance(outcome, list) else ():
            if not isinstance(payload, expected):
                yield Finding(
                    f"it brings a {type(payload).__qualname__} when {situation}, and its class says {expected.__qualname__}",
                    "make the two agree; raise Unavailable when there is nothing to bring",
                )


@check(DataSource, once=True)
def source_ends_when_cancelled(subject: PluginUnderTest) -> Iterator[Finding]:
    """The source ends within a second of its cancellation: endpoints come and go, and the host has to stop."""
    for bench in benches(subject):
        try:
            run(_collect(bench, no_server))
        except IgnoredCancellation:
            yield Finding(
                "it goes on after it was cancelled", "let asyncio.CancelledError pass: do not catch BaseException around an await"
            )


@check(DataSource)
def source_has_valid_times(subject: PluginUnderTest) -> Iterator[Finding]:
    """`interval_seconds` is None or positive."""
    for bench in benches(subject):
        plugin = bench.instance.plugin
        if not isinstance(plugin, PollingSource | PollingPoolSource):
            continue
        if plugin.interval_seconds is not None and not plugin.interval_seconds > 0:
            yield Finding(f"`interval_seconds` is {plugin.interval_seconds}", "None follows the host's interval")


@check(DataSource)
def source_does_not_block(subject: PluginUnderTest) -> Iterator[Finding]:
    """Polling and watching use await: no blocking socket, file, process or sleep in the event loop."""
    for bench in benches(subject):
        for server in (no_server, partial(answering, "an empty page")):
            if _attempt(bench, server) is None:
                break
        for blocking in bench.watch.found:
            yield Finding(f"it {blocking}", "use an asyncio client such as aiohttp, or `await asyncio.to_thread(...)`")


@check(EndpointDiscovery, once=True)
def discovery_reports_configuration_errors(subject: PluginUnderTest) -> Iterator[Finding]:
    """A discovery that cannot work raises `ConfigurationError` with the reason, and ends when cancelled."""
    for bench in benches(subject):
        try:
            outcome = run(_discover(bench))
        except IgnoredCancellation:
            yield Finding("it goes on after it was cancelled", "let asyncio.CancelledError pass")
            return
        if isinstance(outcome, Raised) and not isinstance(outcome.problem, ConfigurationError):
            yield Finding(f"`run` raises {outcome}", "before ready(), raise ConfigurationError with what the operator should correct")


def _outcomes(subject: PluginUnderTest) -> Iterator[tuple[str, list[object] | Raised]]:
    for situation, server in _SERVERS.items():
        for bench in benches(subject):
            outcome = _attempt(bench, server)
            if outcome is None:
                return
            yield situation, outcome


def _attempt(bench: Bench, server: Server) -> list[object] | Raised | None:
    try:
        return run(_collect(bench, server))
    except PLUGIN_ERRORS:
        return None


async def _collect(bench: Bench, server: Server) -> list[object] | Raised:
    async with started(bench), server() as endpoint:
        return await payloads_from(bench, endpoint)


async def _discover(bench: Bench) -> object:
    async with started(bench):
        return await run_discovery(bench, make_pool(0))


@check(DataCollector, once=True)
def collector_survives_garbage(subject: PluginUnderTest) -> Iterator[Finding]:
    """A meaningless payload of the right type raises `Unavailable` or changes nothing."""
    payloads = garbage_of(payload_of(subject.plugin) or object)
    if not payloads:
        raise NotApplicable(f"the kit cannot make a {payload_of(subject.plugin)}")
    for payload, answer in _collected(subject, payloads):
        if isinstance(answer, Raised) and not isinstance(answer.problem, Unavailable):
            yield Finding(
                f"`collect` raises {answer} for the payload {_shown(payload)}",
                "raise Unavailable where the payload holds nothing of use; model servers can send anything",
            )


@check(DataCollector, once=True)
def collector_reads_good_payloads(subject: PluginUnderTest) -> Iterator[Finding]:
    """The collector accepts every payload that its author gave to the kit."""
    if not subject.inputs.payloads:
        raise NotApplicable("give the kit `payloads=`, what a source would deliver")
    for payload, answer in _collected(subject, subject.inputs.payloads):
        if answer is not None:
            problem = f"raises {answer}" if isinstance(answer, Raised) else f"answers {type(answer).__name__}"
            yield Finding(f"`collect` {problem} for the payload {_shown(payload)}", "write values with writer.set, and return nothing")


def _collected(subject: PluginUnderTest, payloads: Sequence[object]) -> Iterator[tuple[object, object]]:
    for bench in benches(subject):
        plugin = bench.instance.plugin
        assert isinstance(plugin, DataCollector)
        for payload in payloads:
            yield payload, bench.call(plugin.collect, payload, bench.writer(bench.table.generation.endpoints[0]))


def _shown(payload: object) -> str:
    text = repr(getattr(payload, "body", payload))
    return text if len(text) <= 60 else f"{text[:60]}…"
