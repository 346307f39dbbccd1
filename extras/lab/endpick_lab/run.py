"""Runs one configuration on one trace, in virtual time."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from endpick.host.planning.plan import Plan
from endpick.requests.model import Decision, Exchange, IncomingRequest, Routed
from endpick_lab.answers import begin_stream, fail, finish
from endpick_lab.decisions import RecordWriter
from endpick_lab.engine import TokenUsage
from endpick_lab.fleet import FleetSettings, SimulatedFleet
from endpick_lab.picker import MODEL
from endpick_lab.pool import Followed, PooledServer, PoolSettings, Trouble, generation_of, make_servers, oracle
from endpick_lab.trace import TraceRequest, body_of
from endpick_lab.virtual_time import VirtualLoop

_PATH = "/v1/completions"
_ERROR = {":status": "503", "content-type": "application/json", "x-envoy-upstream-service-time": "1"}
_TOO_LONG = {":status": "400", "content-type": "application/json", "x-envoy-upstream-service-time": "1"}
_REFUSED = {":status": "503"}
_REFUSED_CAUSE = "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}"
_PROGRESS_EVERY = 500


@dataclass(slots=True)
class Observed:
    """The outcome of one request; times in virtual seconds, None for events that did not happen."""

    arrived_at: float
    request: TraceRequest
    server: int | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    cached_tokens: int = 0
    problem: str = ""


@dataclass(slots=True)
class RunResult:
    """The outcome of a run: every request, and the totals of the servers."""

    observed: list[Observed] = field(default_factory=list)
    unserved_at_end: int = 0  # requests without a first token when the last one arrived
    seconds: float = 0.0
    hit_tokens: int = 0
    queried_tokens: int = 0
    preemptions: int = 0
    tokens_by_server: list[int] = field(default_factory=list)
    not_simulated: tuple[str, ...] = ()
    bytes_exchanged: int = 0  # sent by all pickers


ONE_PICKER = FleetSettings()


def run(
    plan: Plan | None,
    requests: Sequence[TraceRequest],
    settings: PoolSettings,
    seed: int,
    progress: Callable[[int], None] | None = None,
    fleet: FleetSettings = ONE_PICKER,
    record: BinaryIO | None = None,
) -> RunResult:
    """Simulate until every request has ended. Without a plan, the oracle decides. Decisions go to `record`. Raises StartRefused."""
    loop = VirtualLoop()
    gc.disable()  # the run makes no cycles to speak of, and collections take a tenth of its time
    try:
        servers = make_servers(settings, loop, seed)
        decisions = None if record is None else RecordWriter(record, loop.time)
        picker = None if plan is None else SimulatedFleet(plan, servers, loop, seed, fleet, decisions)
        return loop.run_until_complete(_Run(requests, loop, servers, picker, progress or (lambda _: None)).result())
    finally:
        gc.enable()
        loop.close()


class _Run:
    def __init__(
        self,
        requests: Sequence[TraceRequest],
        loop: VirtualLoop,
        servers: list[PooledServer],
        picker: SimulatedFleet | None,
        progress: Callable[[int], None],
    ) -> None:
        self._requests = requests
        self._loop = loop
        self._progress = progress
        self._servers = servers
        self._by_address = {server.endpoint.address: number for number, server in enumerate(self._servers)}
        self._picker = picker
        self._result = RunResult()
        self._open = 0

    async def result(self) -> RunResult:
        picker, result = self._picker, self._result
        if picker is not None:
            await picker.start(self._is_running)
            result.not_simulated = picker.not_simulated
        self._loop.at(self._requests[0].at, self._arrive)
        await self._loop.run_events()
        if picker is not None:
            await picker.stop()
            result.bytes_exchanged = picker.bytes_sent
        result.seconds = max((observed.finished_at or observed.arrived_at for observed in result.observed), default=0.0)
        for server in self._servers:
            metrics = server.metrics()
            result.hit_tokens += metrics.prefix_cache_hit_tokens
            result.queried_tokens += metrics.prefix_cache_queried_tokens
            result.preemptions += metrics.preemptions
            result.tokens_by_server.append(metrics.prompt_tokens + metrics.generated_tokens - metrics.prefix_cache_hit_tokens)
        return result

    def _is_running(self) -> bool:
        return bool(self._open) or len(self._result.observed) < len(self._requests)

    def _arrive(self) -> None:
        arrived = self._result.observed
        number = len(arrived)
        request = self._requests[number]
        observed = Observed(self._loop.time(), request)
        arrived.append(observed)
        self._open += 1
        if number % _PROGRESS_EVERY == 0:
            self._progress(number)
        if number + 1 < len(self._requests):
            self._loop.at(max(self._requests[number + 1].at, self._loop.time()), self._arrive)
        else:
            self._result.unserved_at_end = sum(earlier.first_token_at is None and not earlier.problem for earlier in arrived)
        request_id = f"request-{number}"
        if self._picker is None:
            generation = generation_of(request, request_id)
            server = oracle(generation, [server for server in self._servers if server.trouble is None] or self._servers)
            self._submit(_TrackedRequest(self, observed, None), request_id, self._servers.index(server))
            return
        headers = {":path": _PATH, ":method": "POST", "content-type": "application/json", "x-request-id": request_id, **request.headers}
        incoming = IncomingRequest(headers, body_of(request, MODEL), None, self._loop.time())
        self._picker.decide(incoming, lambda decision: self._decided(observed, request_id, decision))

    def _decided(self, observed: Observed, request_id: str, decision: Decision) -> None:
        if not isinstance(decision, Routed):
            observed.problem = f"refused with {decision.status}"
            self._open -= 1
            return
        tracked = _TrackedRequest(self, observed, decision.exchange)
        for destination in decision.destinations:
            number = self._by_address[destination]
            if self._servers[number].trouble is Trouble.DOWN:
                continue  # the gateway tries the next
            if self._servers[number].trouble is Trouble.ERRORS:
                tracked.failed("answered 503", _ERROR, destination, "")
            else:
                self._submit(tracked, request_id, number)
            return
        tracked.failed("refused the connection", _REFUSED, decision.destinations[-1], _REFUSED_CAUSE)

    def _submit(self, tracked: _TrackedRequest, request_id: str, number: int) -> None:
        server = self._servers[number]
        tracked.observed.server, tracked.address = number, server.endpoint.address
        try:
            server.submit(generation_of(tracked.observed.request, request_id), tracked)
        except ValueError:
            tracked.failed("longer than the server's cache", _TOO_LONG, server.endpoint.address, "")

    def ended(self) -> None:
        self._open -= 1


class _TrackedRequest(Followed):
    __slots__ = ("_exchange", "_run", "address", "observed")

    def __init__(self, run: _Run, observed: Observed, exchange: Exchange | None) -> None:
        self._run = run
        self._exchange = exchange
        self.observed = observed
        self.address = ""  # of the server

    def first_token(self, now: float) -> None:
        self.observed.first_token_at = now
        if self._exchange is not None and self.observed.request.stream:
            begin_stream(self._exchange, self.address)

    def finished(self, now: float, usage: TokenUsage) -> None:
        observed = self.observed
        observed.finished_at, observed.cached_tokens = now, usage.cached_tokens
        if self._exchange is not None:
            tokens = usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
            finish(self._exchange, self.address, observed.request.stream, tokens)
        self._run.ended()

    def failed(self, problem: str, headers: dict[str, str], address: str, cause: str) -> None:
        self.observed.problem = problem
        if self._exchange is not None:
            fail(self._exchange, headers, address, cause)
        self._run.ended()
