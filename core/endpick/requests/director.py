"""The director: takes a request through every plugin of the pipeline, in one order, to a decision."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.generation import Generation
from endpick.api.request import Rejection
from endpick.api.state import CycleState
from endpick.data.model_rules import ModelRules
from endpick.host.boundary import Fault
from endpick.host.telemetry import Telemetry
from endpick.requests.intake import (
    DEFAULT_FAIRNESS_ID,
    FAIRNESS_ID,
    REQUEST_ID,
    BuiltRequest,
    HeadersForUpstream,
    ReadElsewhere,
    build_request,
    first_of,
    new_id,
    within,
)
from endpick.requests.large import LargeBodyReader, decided_after, read_elsewhere
from endpick.requests.long_body import LongBody
from endpick.requests.memory import SHED_FOR_MEMORY, MemoryAccount, OverloadStage
from endpick.requests.model import (
    MAX_NAME_CHARACTERS,
    NO_CANDIDATES,
    NOTHING_CACHED,
    BodyModes,
    Decision,
    IncomingRequest,
    Refused,
    Routed,
    refused,
)
from endpick.requests.pipeline import Pipeline, hidden_by_body_modes
from endpick.requests.producing import Beginnings, Production, after, produce_waiting
from endpick.requests.response import BodilessExchange, ExchangeHost, TrackedExchange
from endpick.requests.steps import (
    admit,
    filter_candidates,
    process_headers,
    produce,
    scores_of,
    shed,
    verdict,
    wants_cached_only,
    was_cached,
)
from endpick.requests.waiting import LetGo, WaitingRoom
from endpick.requests.weight import LIGHT_BYTES, is_large
from endpick.scheduling.trace import UNREAD, WAITED

if TYPE_CHECKING:
    from endpick.flow_control.reclaim import Flight

_SHEDDING: Final = OverloadStage.SHEDDING


class Pool(Protocol):
    """What the director needs of the endpoint table."""

    @property
    def generation(self) -> Generation:
        """Who is in the pool: another one as soon as an endpoint joins, leaves or changes."""

    def view(self, access: Access) -> Endpoints:
        """Every endpoint of the pool, as plugins may see it."""


@dataclass(slots=True)
class Begun:
    """A request whose body has been read elsewhere, and the pipeline that it goes through."""

    pipeline: Pipeline
    read: ReadElsewhere


class Director:
    """Decides about every request of the process; see `endpick.requests.model.Decider`."""

    def __init__(
        self,
        pipeline: Pipeline,
        pool: Pool,
        telemetry: Telemetry,
        clock: Callable[[], float],
        *,
        random: Random | None = None,
        access: Access | None = None,
        sent: set[str] | None = None,
        large_bodies: LargeBodyReader | None = None,
        account: MemoryAccount | None = None,
        emits_scores: bool = False,
        rules: ModelRules | None = None,
        room: WaitingRoom | None = None,
        max_name_characters: int = MAX_NAME_CHARACTERS,
    ) -> None:
        """Keep what every decision needs.

        Args:
            pipeline: What requests begin with, until `switch`.
            pool: Where the endpoints are.
            telemetry: Told what is decided, and of faults.
            clock: Monotonic seconds, the same that stamps `IncomingRequest.received_at`.
            random: Chooses an endpoint for requests without a body, and among the targets of a rewrite.
            sent: Where the addresses go to which requests are sent.
            access: What plugins' reads and writes are checked by; undeclared ones are reported to `telemetry` when None.
            large_bodies: Parses bodies elsewhere that would hold the event loop for long; all are parsed here when None.
            account: Told what bodies become; says when to shed.
            emits_scores: Whether decisions tell the gateway what each candidate scored.
            rules: What the discovery says about models.
            room: Where requests wait while the pool is full; needed for pipelines with flow control.
            max_name_characters: Of a model, a cache salt and a fairness id; requests with longer ones are refused.
        """
        self._pipeline = pipeline
        self._pool = pool
        self._telemetry = telemetry
        self._clock = clock
        self._random = random or Random()  # noqa: S311 - routing needs no secrets
        self._access = access or Access(None, telemetry.undeclared_access)
        self._whole_pool = pool.view(self._access)
        """The same view for all requests until an endpoint joins, leaves or changes."""
        self._sent: set[str] = set() if sent is None else sent
        self._rules = rules or ModelRules()
        self._large_bodies = large_bodies
        self._account = MemoryAccount() if account is None else account
        self._large_bytes, self._most_weight, self._light_bytes = sys.maxsize, 0, sys.maxsize
        if large_bodies is not None:
            self._large_bytes, self._most_weight = large_bodies.threshold_bytes, large_bodies.threshold_weight
            self._light_bytes = min(self._large_bytes, LIGHT_BYTES)
        self._emits_scores = emits_scores
        self._longest_name = max_name_characters
        self._last_body_modes: BodyModes | None = None
        self._known_body_modes: set[BodyModes] = set()
        self._exchange_host = ExchangeHost(self._access, telemetry, clock, self._account)
        self._room = room
        self._beginnings = Beginnings()
        if room is not None:
            room.director = self
            room.reconfigure(pipeline.flow_control, pipeline.detector)

    def switch(self, pipeline: Pipeline) -> None:
        """Begin requests with this pipeline from now on, after a reload; each request in flight keeps the one it began with."""
        self._pipeline = pipeline
        if self._room is not None:
            self._room.reconfigure(pipeline.flow_control, pipeline.detector)

    def decide(self, incoming: IncomingRequest, begun: Begun | LetGo | None = None) -> Decision | Awaitable[Decision]:
        """Parse → request headers → wait → candidates → shed → candidate filters → produce → admit → schedule → pre-request.

        A decision comes back at once, without a coroutine, unless the request or a producer has to wait, or the body is large.

        Args:
            incoming: The request.
            begun: What has been done already of one that waited, or whose body was large; functions of their own would cost all others
                a call. One that waited goes on with the pipeline of now, and on the pool as it is now.
        """
        access, longest_name = self._access, self._longest_name
        state: CycleState | None = None
        built: BuiltRequest | Refused
        if isinstance(begun, LetGo):
            pipeline, built = self._pipeline, begun.built
            state = CycleState(access) if begun.state is None else begun.state
            state.put(WAITED, begun.waited)
        elif begun is not None:
            pipeline = begun.pipeline
            built = build_request(incoming, pipeline.parsers, pipeline.objectives, access, longest_name, begun.read, self._rules)
        else:
            pipeline = self._pipeline
            # Modes of one gateway are nearly always one object: comparing them by value costs a call.
            if incoming.body_modes is not self._last_body_modes and incoming.body_modes != self._last_body_modes:
                self._report_body_modes(incoming.body_modes, pipeline)
            if incoming.body is None and incoming.body_modes.sees_request_body:
                return self._anywhere(incoming)
            body = incoming.body
            if body is not None and len(body) > self._light_bytes and is_large(incoming, self._large_bytes, self._most_weight):
                return self._decide_large(incoming, pipeline)
            if isinstance(incoming.body, LongBody):  # bodies of this length are parsed in place
                incoming.body = incoming.body.whole()
            built = build_request(incoming, pipeline.parsers, pipeline.objectives, access, longest_name, None, self._rules, self._random)
        if isinstance(built, Refused):
            return self._refuse_unread(incoming, built)

        if pipeline.header_processors and not isinstance(begun, LetGo):
            state = CycleState(access)
            processed = process_headers(pipeline.header_processors, built.request, state, access, longest_name)
            if isinstance(processed, Refused):
                return self.refuse(built, processed)
            built.request = processed
        shedding = built.request.priority < 0 and self._account.stage >= _SHEDDING
        if pipeline.flow_control is not None and self._room is not None and not shedding and not isinstance(begun, LetGo):
            held = self._room.hold(incoming, built, state)
            if held is not None:
                return held

        if self._whole_pool._generation is not self._pool.generation:
            self._whole_pool = self._pool.view(access)
        endpoints: Endpoints | Fault = self._whole_pool
        assert isinstance(endpoints, Endpoints)
        if incoming.subset is not None:
            endpoints = within(incoming.subset, endpoints)
        if built.request.priority < 0:
            if shedding:
                self._account.shed += 1
                return self.refuse(built, SHED_FOR_MEMORY)
            refusal = None if pipeline.flow_control is not None else shed(pipeline.detector, built.request, endpoints, access)
            if refusal is not None:
                return self.refuse(built, refusal)
        if pipeline.candidate_filters:
            endpoints = filter_candidates(pipeline.candidate_filters, built.request, endpoints, access)
            if isinstance(endpoints, Fault):
                return self.refuse(built, refused(endpoints))
        if not endpoints._size:
            return self.refuse(built, NO_CANDIDATES)

        cycle_state = CycleState(access) if state is None else state
        if built.unread:
            cycle_state.put(UNREAD, built.unread)
        if pipeline.producers_at_once:
            fault = produce(pipeline.producers_at_once, built.request, endpoints, cycle_state, access)
            if fault is not None:
                return self.refuse(built, refused(fault))
        if pipeline.producers_later:
            return self._decide_later(pipeline, built, endpoints, cycle_state)
        return self._conclude(pipeline, built, endpoints, cycle_state)

    def _decide_large(self, incoming: IncomingRequest, pipeline: Pipeline) -> Awaitable[Decision]:
        """Have the body parsed elsewhere, and go on with the pipeline of now, whatever a reload makes of it meanwhile."""
        assert self._large_bodies is not None

        def go_on(read: ReadElsewhere | Refused) -> Decision | Awaitable[Decision]:
            if not isinstance(read, Refused):
                return self.decide(incoming, Begun(pipeline, read))
            return self._refuse_unread(incoming, read)

        read = partial(read_elsewhere, incoming, pipeline.parsers, self._large_bodies, self._rules.rewrites, self._random.random())
        return decided_after(read, go_on)

    def _decide_later(self, pipeline: Pipeline, built: BuiltRequest, endpoints: Endpoints, state: CycleState) -> Awaitable[Decision]:
        """Go on once the other producers, of which the first has to wait, have done their work."""

        def conclude(fault: Fault | None) -> Decision:
            return self._conclude(pipeline, built, endpoints, state) if fault is None else self.refuse(built, refused(fault))

        production = Production(built.request, endpoints, state, self._access)
        return after(
            partial(produce_waiting, pipeline.producers_later, production, self._beginnings, self._account, built.parsed_bytes), conclude
        )

    def _conclude(self, pipeline: Pipeline, built: BuiltRequest, endpoints: Endpoints, state: CycleState) -> Decision:
        """What follows production: admit → schedule → pre-request, and the request is on its way."""
        request, access = built.request, self._access
        if pipeline.admitters:
            refusal = admit(pipeline.admitters, request, endpoints, state, access)
            if refusal is not None:
                return self.refuse(built, refusal)
        started = perf_counter()
        result = pipeline.scheduler.schedule(request, endpoints, state, access)
        seconds = perf_counter() - started
        if isinstance(result, Rejection):
            self._telemetry.request_scheduled(seconds, None, request.model)
            return self.refuse(built, refused(result))
        picked = result.runs[result.primary].picked
        assert picked is not None
        first, destinations = picked.members[0], result.destinations
        self._telemetry.request_scheduled(seconds, first, request.model)
        if "prefer" in request.headers and wants_cached_only(request.headers) and not was_cached(result, state):
            return self.refuse(built, NOTHING_CACHED)

        headers = HeadersForUpstream(result.headers, result.removed_headers)
        if not request.headers.get(REQUEST_ID):
            headers.set(REQUEST_ID, request.id)
        refusal = None
        for step in pipeline.pre_requests:  # all of them, also after one has refused, so that all count the same requests
            answer = step.run(access, request, result, headers, state)
            if answer is not None:
                refusal = refusal or verdict(step, answer)
        # Only now: an instance whose circuit opened meanwhile has nothing to settle, and one that has seen the request leave settles it.
        exchange = TrackedExchange(self._exchange_host, built, state, pipeline.observers, picked, destinations)
        flight: Flight | None = None
        if pipeline.flow_control is not None and self._room is not None:
            flight = self._room.track(request, first)
            exchange.makes_room(self._room.something_changed, flight)
        if refusal is not None:
            exchange.abandon()
            return self.refuse(built, refusal)
        size_bytes = request.size_bytes if built.body is None else len(built.body)
        seconds = self._clock() - request.received_at
        self._telemetry.request_decided(request.incoming_model, request.model, request.fairness_id, request.priority, size_bytes, seconds)
        self._sent.update(destinations)
        scores = scores_of(result) if self._emits_scores else None
        return Routed(destinations, exchange, headers._values, built.body, headers._metadata, headers._removed, scores, flight)

    def _anywhere(self, incoming: IncomingRequest) -> Decision:
        """A request without a body (`GET /v1/models`) is the same to every endpoint; as in llm-d, no profile runs for it."""
        candidates = within(incoming.subset, self._pool.view(self._access)).members
        if not candidates:
            return self._refuse_unread(incoming, NO_CANDIDATES)
        headers = {} if incoming.headers.get(REQUEST_ID) else {REQUEST_ID: new_id()}
        address = self._random.choice(candidates).address
        self._sent.add(address)
        fairness_id = first_of(incoming.headers, FAIRNESS_ID) or DEFAULT_FAIRNESS_ID
        return Routed((address,), BodilessExchange(fairness_id, incoming.received_at, self._telemetry, self._clock), headers)

    def _refuse_unread(self, incoming: IncomingRequest, refusal: Refused) -> Refused:
        """Refuse a request of which nothing but the headers is known."""
        fairness_id = first_of(incoming.headers, FAIRNESS_ID) or DEFAULT_FAIRNESS_ID
        self._telemetry.request_refused("", "", fairness_id, 0, refusal.code)
        return refusal

    def refuse(self, built: BuiltRequest, refusal: Refused) -> Refused:
        """Count a request that was read, and that is refused."""
        request = built.request
        self._telemetry.request_refused(request.incoming_model, request.model, request.fairness_id, request.priority, refusal.code)
        return refusal

    def _report_body_modes(self, modes: BodyModes, pipeline: Pipeline) -> None:
        """Bodies are sent in another way than those of the last request: report it, and the first time what plugins miss by it."""
        self._last_body_modes = modes
        lost = () if modes in self._known_body_modes else hidden_by_body_modes(pipeline, modes)
        self._known_body_modes.add(modes)
        self._telemetry.gateway_body_modes(modes.sees_request_body, modes.sees_response_body, lost)
