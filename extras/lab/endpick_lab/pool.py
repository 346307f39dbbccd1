"""The model servers of a simulation, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from endpick.api.endpoint import Endpoint
from endpick_lab.engine import Engine, EngineMetrics, Finished, GenerationRequest, Token, TokenUsage
from endpick_lab.settings import EngineSettings
from endpick_lab.trace import TraceRequest
from endpick_lab.virtual_time import VirtualLoop


class Trouble(StrEnum):
    """The kind of a temporary failure of a server."""

    DOWN = "down"  # refuses connections, and has no metrics page
    ERRORS = "errors"  # answers 503 at once, with a healthy page
    STALL = "stall"  # computes nothing


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure of one server, with its start and duration in virtual seconds."""

    server: int
    kind: Trouble
    at_seconds: float
    for_seconds: float


class Followed:
    """Receives the events of one request at a server."""

    def first_token(self, now: float) -> None:
        """Called when the first token appears, at `now` in virtual seconds."""

    def finished(self, now: float, usage: TokenUsage) -> None:
        """Called when the last token appears, at `now` in virtual seconds."""


class PooledServer:
    """One server: an engine that reports first tokens and ends at their virtual time."""

    def __init__(self, number: int, settings: EngineSettings, loop: VirtualLoop, seed: int) -> None:
        self.endpoint = Endpoint(f"default/server-{number}", f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}", 8000)
        self.engine = Engine(settings, Random(seed), every_token=False)  # noqa: S311 - repeatable by design
        self.trouble: Trouble | None = None
        self._loop = loop
        self._followed: dict[str, Followed] = {}
        self._due: float | None = None
        self._now = 0.0  # of the engine, which is behind by the stalls
        self._stalled_seconds = 0.0

    def fail(self, failure: Failure) -> None:
        """Schedule the start and the end of a failure."""

        def begin() -> None:
            self._advance()
            self.trouble = failure.kind

        def end() -> None:
            if failure.kind is Trouble.STALL:
                self._stalled_seconds += failure.for_seconds
            self.trouble = None
            self._run_at(self.engine.next_event_time())

        self._loop.at(failure.at_seconds, begin)
        self._loop.at(failure.at_seconds + failure.for_seconds, end)

    def submit(self, request: GenerationRequest, followed: Followed) -> None:
        """Run a request. Raises ValueError if it cannot fit."""
        now = self._advance()
        self.engine.submit(request, now)
        self._followed[request.id] = followed
        self._run_at(self.engine.next_event_time())

    def metrics(self) -> EngineMetrics:
        """Return the state and totals of the engine at the current virtual time."""
        return self.engine.metrics(self._advance())

    def _advance(self) -> float:
        if self.trouble is not Trouble.STALL:
            self._now = max(self._now, self._loop.time() - self._stalled_seconds)
            for event in self.engine.advance(self._now):
                self._notify(event)
        return self._now

    def _notify(self, event: Token | Finished) -> None:
        at = event.time + self._stalled_seconds
        if isinstance(event, Token):
            self._followed[event.request_id].first_token(at)
        else:
            self._followed.pop(event.request_id).finished(at, event.usage)

    def _run_at(self, due: float | None) -> None:
        if due is None or self.trouble is Trouble.STALL:
            self._due = None
        elif self._due is None or due < self._due:
            self._due = due
            self._loop.at(due + self._stalled_seconds, lambda: self._on_due(due))

    def _on_due(self, due: float) -> None:
        if due != self._due:
            return  # another is due earlier
        self._due = None
        if self.trouble is not Trouble.STALL:
            self._now = max(self._now, due)  # not a rounding error before it
        self._advance()
        self._run_at(self.engine.next_event_time())


def generation_of(request: TraceRequest, request_id: str) -> GenerationRequest:
    """Convert a request of a trace for the engine; adapters share no blocks."""
    full = request.blocks[: request.prompt_tokens // request.block_tokens]
    hashes = full if request.adapter is None else tuple([hash((block, request.adapter)) for block in full])
    return GenerationRequest(request_id, request.prompt_tokens, request.output_tokens, hashes, request.adapter)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """The pool of a simulation; `speeds` are factors for each server, 1 if there are fewer."""

    servers: int
    engine: EngineSettings
    speeds: Sequence[float] = ()
    failures: tuple[Failure, ...] = ()


def make_servers(settings: PoolSettings, loop: VirtualLoop, seed: int) -> list[PooledServer]:
    """Create the servers, and schedule their failures."""
    servers = []
    for number in range(settings.servers):
        speed = settings.speeds[number] if number < len(settings.speeds) else 1.0
        engine = settings.engine if speed == 1.0 else settings.engine.slowed(speed)
        servers.append(PooledServer(number, engine, loop, seed * 1000 + number))
    for failure in settings.failures:
        servers[failure.server].fail(failure)
    return servers


def oracle(request: GenerationRequest, servers: Sequence[PooledServer]) -> PooledServer:
    """Return the server that expects the earliest first token; greedy, so not optimal over time."""
    return min(servers, key=lambda server: server.engine.expected_first_token_seconds(request))
