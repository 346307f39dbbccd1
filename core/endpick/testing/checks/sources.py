"""Checks of data sources and discoveries: against a server on the loopback that behaves badly, and against nobody at all.

A source that watches something else, such as a price, is run as it is for a moment; with no network it should be `Unavailable`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from endpick.api.datalayer import PollingSource
from endpick.api.endpoints import Endpoint
from endpick.api.errors import ConfigurationError, Unavailable
from endpick.api.plugin import Kind
from endpick.testing.bench import Bench, Raised, benches
from endpick.testing.check import Finding, check
from endpick.testing.collecting import Stubborn, payloads_from, run_discovery, started
from endpick.testing.loops import run
from endpick.testing.pools import make_pool
from endpick.testing.servers import ANSWERS, answering, nobody
from endpick.testing.subject import Subject

Server = Callable[[], AbstractAsyncContextManager[Endpoint]]


@asynccontextmanager
async def _no_server() -> AsyncIterator[Endpoint]:
    async with nobody() as endpoint:
        yield endpoint


_SERVERS: dict[str, Server] = {"nobody listens": _no_server, **{f"the server answers {kind}": partial(answering, kind) for kind in ANSWERS}}


@check(Kind.DATA_SOURCE)
def source_is_unavailable_and_nothing_else(subject: Subject) -> Iterator[Finding]:
    """When a server is down or answers nonsense, the only exception that comes out is `Unavailable`."""
    for situation, outcome in _outcomes(subject):
        if isinstance(outcome, Raised) and not isinstance(outcome.problem, Unavailable):
            yield Finding(f"it raises {outcome} when {situation}", "catch what your client raises, and raise Unavailable(...) from it")
            return


@check(Kind.DATA_SOURCE)
def source_gives_its_payload(subject: Subject) -> Iterator[Finding]:
    """Whatever the source brings is of the type in `meta.payload`: collectors rely on it."""
    expected = subject.plugin.meta.payload
    for situation, outcome in _outcomes(subject):
        for payload in outcome if isinstance(outcome, list) and expected is not None else ():
            if not isinstance(payload, expected or object):
                yield Finding(
                    f"it brings a {type(payload).__qualname__} when {situation}, and `meta.payload` is {expected}",
                    "make the two agree; raise Unavailable when there is nothing to bring",
                )
                return


@check(Kind.DATA_SOURCE)
def source_heeds_cancellation(subject: Subject) -> Iterator[Finding]:
    """Cancelled, it ends within a second: endpoints come and go, and the host has to stop."""
    for bench in benches(subject):
        try:
            run(_collect(bench, _no_server))
        except Stubborn:
            yield Finding(
                "it goes on after it was cancelled", "let asyncio.CancelledError pass: do not catch BaseException around an await"
            )
            return


@check(Kind.DATA_SOURCE)
def source_has_sane_times(subject: Subject) -> Iterator[Finding]:
    """`interval_seconds` is None or positive, and `timeout_seconds` positive."""
    for bench in benches(subject):
        plugin = bench.instance.plugin
        if not isinstance(plugin, PollingSource):
            continue
        if plugin.interval_seconds is not None and not plugin.interval_seconds > 0:
            yield Finding(f"`interval_seconds` is {plugin.interval_seconds}", "None follows the host's interval")
        if not plugin.timeout_seconds > 0:
            yield Finding(f"`timeout_seconds` is {plugin.timeout_seconds}", "say how long one poll may take")


@check(Kind.DATA_SOURCE)
def source_blocks_nobody(subject: Subject) -> Iterator[Finding]:
    """Polling and watching await: no blocking socket, file, process or sleep in the thread that also routes."""
    for bench in benches(subject):
        for server in (_no_server, partial(answering, "an empty page")):
            if _attempt(bench, server) is None:
                break
        for blocking in bench.watch.found:
            yield Finding(f"it {blocking}", "use an asyncio client such as aiohttp, or `await asyncio.to_thread(...)`")


@check(Kind.ENDPOINT_DISCOVERY)
def discovery_fails_in_words(subject: Subject) -> Iterator[Finding]:
    """A discovery that cannot work says why with `ConfigurationError`, and ends when it is cancelled."""
    for bench in benches(subject):
        try:
            outcome = run(_discover(bench))
        except Stubborn:
            yield Finding("it goes on after it was cancelled", "let asyncio.CancelledError pass")
            return
        if isinstance(outcome, Raised) and not isinstance(outcome.problem, ConfigurationError):
            yield Finding(f"`run` raises {outcome}", "before ready(), raise ConfigurationError with what the operator should correct")
            return


def _outcomes(subject: Subject) -> Iterator[tuple[str, list[object] | Raised]]:
    """What comes of each situation; ends early where other checks say what is wrong."""
    for situation, server in _SERVERS.items():
        for bench in benches(subject):
            outcome = _attempt(bench, server)
            if outcome is None:
                return
            yield situation, outcome


def _attempt(bench: Bench, server: Server) -> list[object] | Raised | None:
    """What came of it; None when it would not start, stop or be cancelled, of which other checks speak."""
    try:
        return run(_collect(bench, server))
    except (Exception, SystemExit):
        return None


async def _collect(bench: Bench, server: Server) -> list[object] | Raised:
    async with started(bench), server() as endpoint:
        return await payloads_from(bench, endpoint)


async def _discover(bench: Bench) -> object:
    async with started(bench):
        return await run_discovery(bench, make_pool(0))
