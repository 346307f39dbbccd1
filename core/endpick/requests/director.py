"""The director: takes a request through every plugin of the pipeline, in one order, to a decision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from time import perf_counter
from typing import Protocol

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.requests import Rejection
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState
from endpick.observability.instruments import Instruments
from endpick.requests.admission import admit, shed
from endpick.requests.blindness import losses
from endpick.requests.caching import wants_cached_only, was_cached
from endpick.requests.decision import Decision, Refused, Routed
from endpick.requests.dispatching import tell_before_request
from endpick.requests.exchange import Sent, UnwatchedExchange, WatchedExchange
from endpick.requests.headers import REQUEST_ID, HeadersForUpstream
from endpick.requests.incoming import Delivery, IncomingRequest
from endpick.requests.intake import Intake, new_id, take_in
from endpick.requests.observing import Observers
from endpick.requests.pipeline import Pipeline
from endpick.requests.producing import Production, after, produce
from endpick.requests.refusals import NO_CANDIDATES, NOTHING_CACHED, refused
from endpick.requests.screening import screen
from endpick.requests.subset import within
from endpick.scheduling.step import Fault


class Pool(Protocol):
    """What the director needs of the endpoint table."""

    def view(self, access: Access) -> Endpoints:
        """Everybody in the pool now, as plugins may see them."""


@dataclass(frozen=True, slots=True)
class DirectorSettings:
    """What deciding depends on beside the plan.

    Attributes:
        objectives: Priority of each inference objective, by name.
        random: Chooses an endpoint for requests without a body.
    """

    objectives: Mapping[str, int] = field(default_factory=dict)
    random: Random = field(default_factory=Random)


@dataclass(frozen=True, slots=True)
class Cycle:
    """One request on its way through one pipeline; a reload does not touch it."""

    pipeline: Pipeline
    incoming: IncomingRequest
    intake: Intake
    endpoints: Endpoints
    state: CycleState


class Director:
    """Decides about every request of the process; see `endpick.requests.decision.Director`."""

    def __init__(
        self,
        current: Callable[[], Pipeline],
        pool: Pool,
        instruments: Instruments,
        clock: Callable[[], float],
        settings: DirectorSettings | None = None,
        access: Access | None = None,
    ) -> None:
        """Keep what every decision needs.

        Args:
            current: The pipeline that requests begin with now.
            pool: Where the endpoints are.
            instruments: Told what is decided, and of faults.
            clock: Monotonic seconds, the same that stamps `IncomingRequest.received_at`.
            settings: Defaults when None.
            access: What plugins' reads and writes are checked by; undeclared ones are reported to `instruments` when None.
        """
        self._current = current
        self._pool = pool
        self._instruments = instruments
        self._clock = clock
        self._settings = settings or DirectorSettings()
        self._access = access or Access(None, instruments.undeclared_access)
        self._last_delivery: Delivery | None = None
        self._noticed: set[Delivery] = set()

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        """Parse → candidates → shed → screen → produce → admit → schedule → before_request.

        A decision comes back at once, without a coroutine, unless a producer has to wait.
        """
        pipeline, access = self._current(), self._access
        if incoming.delivery is not self._last_delivery:
            self._notice(incoming.delivery, pipeline)
        if incoming.body is None and incoming.delivery.sees_request_body:
            return self._anywhere(incoming)

        intake = take_in(incoming, pipeline.parsers, self._settings.objectives, access)
        if isinstance(intake, Refused):
            self._instruments.request_refused("", "", "", 0, intake.code)
            return intake

        candidates = within(incoming.subset, self._pool.view(access))
        refusal = shed(pipeline.detector, intake.request, candidates, access)
        if refusal is not None:
            return self._refuse(intake, refusal)
        endpoints = screen(pipeline.screeners, intake.request, candidates, access)
        if isinstance(endpoints, Fault) or not len(endpoints):
            return self._refuse(intake, NO_CANDIDATES if isinstance(endpoints, Endpoints) else refused(endpoints))

        cycle = Cycle(pipeline, incoming, intake, endpoints, CycleState(access))
        produced = produce(pipeline.producers, Production(intake.request, endpoints, cycle.state, access))
        if produced is None or isinstance(produced, Fault):
            return self._conclude(cycle, produced)
        return after(produced, lambda fault: self._conclude(cycle, fault))

    def _notice(self, delivery: Delivery, pipeline: Pipeline) -> None:
        """Tell that bodies are sent in another way than those of the last request, and what is lost by it the first time."""
        self._last_delivery = delivery
        lost = () if delivery in self._noticed else losses(pipeline, delivery)
        self._noticed.add(delivery)
        self._instruments.gateway_delivers(delivery.sees_request_body, delivery.sees_response_body, lost)

    def _conclude(self, cycle: Cycle, fault: Fault | None) -> Decision:
        """What follows production: admit → schedule → before_request."""
        request, access = cycle.intake.request, self._access
        if fault is not None:
            return self._refuse(cycle.intake, refused(fault))
        refusal = admit(cycle.pipeline.admitters, request, cycle.endpoints, cycle.state, access)
        if refusal is not None:
            return self._refuse(cycle.intake, refusal)
        result = self._schedule(cycle)
        if isinstance(result, Rejection):
            return self._refuse(cycle.intake, refused(result))
        if wants_cached_only(request.headers) and not was_cached(result, cycle.state):
            return self._refuse(cycle.intake, NOTHING_CACHED)
        return self._dispatch(cycle, result)

    def _schedule(self, cycle: Cycle) -> SchedulingResult | Rejection:
        request = cycle.intake.request
        started = perf_counter()
        result = cycle.pipeline.scheduler.schedule(request, cycle.endpoints, cycle.state, self._access)
        destination = result.destinations[0] if isinstance(result, SchedulingResult) else None
        self._instruments.request_scheduled(perf_counter() - started, destination, request.model)
        return result

    def _dispatch(self, cycle: Cycle, result: SchedulingResult) -> Decision:
        request, picked = cycle.intake.request, result.runs[result.primary].picked
        assert picked is not None
        observers = Observers(cycle.pipeline.observers, request, cycle.state, self._access)
        exchange = WatchedExchange(Sent(request, picked, cycle.intake.parser, observers, self._instruments, self._clock))
        headers = HeadersForUpstream(result.headers)
        if not request.headers.get(REQUEST_ID):
            headers.set(REQUEST_ID, request.id)
        refusal = tell_before_request(cycle.pipeline.pre_request, request, result, headers, cycle.state, self._access)
        if refusal is not None:
            exchange.abandon()
            return self._refuse(cycle.intake, refusal)
        self._instruments.request_decided(request.incoming_model, request.model, request.fairness_id, request.priority, request.size_bytes)
        return Routed(result.destinations, exchange, headers.values, cycle.intake.body)

    def _anywhere(self, incoming: IncomingRequest) -> Decision:
        """A request without a body (`GET /v1/models`) is the same to every endpoint; as in llm-d, no profile runs for it."""
        candidates = within(incoming.subset, self._pool.view(self._access)).members
        if not candidates:
            self._instruments.request_refused("", "", "", 0, NO_CANDIDATES.code)
            return NO_CANDIDATES
        headers = {} if incoming.headers.get(REQUEST_ID) else {REQUEST_ID: new_id()}
        return Routed((self._settings.random.choice(candidates).address,), UnwatchedExchange(), headers)

    def _refuse(self, intake: Intake, refusal: Refused) -> Refused:
        request = intake.request
        self._instruments.request_refused(request.incoming_model, request.model, request.fairness_id, request.priority, refusal.code)
        return refusal
