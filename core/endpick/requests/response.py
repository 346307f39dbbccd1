"""Follows the response to a routed request."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import Endpoints
from endpick.api.fast_metrics import Distribution
from endpick.api.request import check_headers, shown
from endpick.api.request_control import Metadata, MetadataValue, ResponseEnd, ResponseHead, TerminationCause
from endpick.api.state import CycleState
from endpick.flow_control.controller import Flight
from endpick.host.boundary import Fault, Step, bind_wanted
from endpick.host.breaker import Breaker, BreakerState
from endpick.host.instance import Instance
from endpick.host.methods import FIRST_CHUNK, RESPONSE_ENDED, RESPONSE_METADATA, RESPONSE_STARTED, Method
from endpick.host.telemetry import ITL_BUCKETS, Telemetry
from endpick.requests.compressed_body import IDENTITY, CompressedUsage, decoder_of
from endpick.requests.intake import BuiltRequest
from endpick.requests.model import CloseCause
from endpick.requests.record import DecisionLog, DecisionRecord, Why, is_failure
from endpick.requests.response_body import FramedUsage, StreamedUsage, UsageReader, WholeUsage, read_usage
from endpick.requests.restored_names import ModelNameRestorer

_STATUS_DIGITS: Final = 3
_NO_USAGE: Final = UsageReader()
_UNAVAILABLE: Final = 503
UPSTREAM_TIME: Final = "x-envoy-upstream-service-time"  # Envoy sets it on responses of the model server only
UNNAMED_ERROR: Final = "unnamed"
_OPEN: Final = BreakerState.OPEN


@dataclass(frozen=True, slots=True)
class Observers:
    """The observer methods that plugins override, bound in plan order."""

    breakers: tuple[Breaker, ...] = ()
    started: tuple[Step[object], ...] = ()
    first_chunk: tuple[Step[object], ...] = ()
    metadata: tuple[Step[object], ...] = ()
    ended: tuple[Step[object], ...] = ()

    def without_open_circuits(self) -> Observers:
        """Return a copy without observers whose circuit is open."""
        return Observers((), *map(_callable_now, (self.started, self.first_chunk, self.metadata, self.ended)))


def _callable_now(steps: tuple[Step[object], ...]) -> tuple[Step[object], ...]:
    return tuple([step for step in steps if step.breaker.state is not _OPEN])


def compile_observers(instances: Sequence[Instance], telemetry: Telemetry) -> Observers:
    """Bind the methods that each observer overrides."""

    def bound(method: Method[object]) -> tuple[Step[object], ...]:
        steps = [bind_wanted(instance, method, telemetry) for instance in instances]
        return tuple([step for step in steps if step is not None])

    return Observers(
        tuple([instance.breaker for instance in instances]),
        bound(RESPONSE_STARTED),
        bound(FIRST_CHUNK),
        bound(RESPONSE_METADATA),
        bound(RESPONSE_ENDED),
    )


TERMINATION_OF: Final[Mapping[CloseCause, TerminationCause]] = {
    CloseCause.END: TerminationCause.NATURAL,
    CloseCause.RESET: TerminationCause.CLIENT_DISCONNECT,
    CloseCause.DISCONNECT: TerminationCause.ERROR,
    CloseCause.ERROR: TerminationCause.ERROR,
    CloseCause.DRAIN: TerminationCause.DRAINED,
}


@dataclass(frozen=True, slots=True)
class ExchangeHost:
    """The services that all exchanges share."""

    access: Access
    telemetry: Telemetry
    clock: Callable[[], float]
    decisions: DecisionLog | None = None


class TrackedExchange:
    """The `Exchange` of a scheduled request, and its `ResponsePace` for metrics."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_destinations",
        "_ended",
        "_endpoint",
        "_first_chunk_at",
        "_flight",
        "_gateway_error",
        "_host",
        "_is_sent",
        "_last_chunk_at",
        "_observers",
        "_on_finished",
        "_parser",
        "_picked",
        "_request",
        "_restorer",
        "_state",
        "_status",
        "_ttft",
        "_usage",
        "adds_metadata",
        "gaps",
        "plan",
        "processing_seconds",
        "record",
        "request_id",
        "rewrites",
        "streaming",
    )

    wants_chunks = True

    def __init__(
        self,
        host: ExchangeHost,
        built: BuiltRequest,
        state: CycleState,
        observers: Observers,
        picked: Endpoints,
        destinations: tuple[str, ...],
    ) -> None:
        """A profile handler may have replaced the `destinations` of `picked`."""
        request = built.request
        self._host = host
        self._clock = host.clock
        self.request_id = request.id
        self._request = request  # not `built`, which would keep the rewritten body in memory
        self._parser = built.parser
        self._state = state
        for breaker in observers.breakers:
            if breaker.state is _OPEN:
                observers = observers.without_open_circuits()
                break
        self._observers = observers
        self.adds_metadata = bool(observers.metadata)
        self._picked = picked
        self._destinations = destinations
        self.record: DecisionRecord | None = None
        self.plan = ""
        self._restorer: ModelNameRestorer | None = None
        self.rewrites = False  # known after the response headers
        self._usage: UsageReader = _NO_USAGE
        self._status = 0
        self._endpoint: Endpoint | None = picked.members[0]
        self._gateway_error = ""
        self._bytes = 0
        self._ttft: float | None = None
        self._first_chunk_at = 0.0
        self._last_chunk_at = 0.0
        self.streaming = False
        self.processing_seconds = 0.0
        self.gaps: Distribution | None = None
        self._ended = False
        self._is_sent = True
        self._on_finished: Callable[[], None] | None = None
        self._flight: Flight | None = None

    def notify_flow_control(self, on_finished: Callable[[], None], flight: Flight | None) -> None:
        """Register `on_finished` and `flight`, which are called when the response ends."""
        self._on_finished, self._flight = on_finished, flight

    def response_headers(
        self, headers: Mapping[str, str], served: str | None, gateway_error: str | None = None
    ) -> Mapping[str, str | None]:
        began = self._clock()
        status = headers.get(":status", "")
        self._status = int(status) if len(status) == _STATUS_DIGITS and status.isdecimal() else 0
        if served is not None:
            self._endpoint = _endpoint_at(served, self._picked, self._destinations)
        if gateway_error is not None:
            self._gateway_error = gateway_error
        elif self._status == _UNAVAILABLE and UPSTREAM_TIME not in headers:
            self._gateway_error = UNNAMED_ERROR
        content_type = headers.get("content-type", "").lower()
        self.streaming = "text/event-stream" in content_type
        request = self._request
        if request.model != request.incoming_model and request.incoming_model and (self.streaming or _is_text(content_type)):
            self._restorer = ModelNameRestorer(request.model, request.incoming_model, content_type)
            self.rewrites = True
        parser = self._parser
        if parser is not None and parser.usage is not None:
            # Does not bind `self`: a reference cycle would keep it until the next collection.
            read = partial(read_usage, parser.usage, self._host.access)
            if self.streaming:
                self._usage = StreamedUsage(read, parser.usage_mark)
            elif content_type.startswith("application/grpc"):
                self._usage = FramedUsage(read)
            elif _is_text(content_type):
                self._usage = WholeUsage(read, parser.usage_mark)
        encoding = headers.get("content-encoding")
        if encoding:
            self._decode(encoding.strip().lower())
        added: dict[str, str | None] = {}
        if self._observers.started:
            head = ResponseHead(self._status, headers, self._endpoint, served)
            for step in self._observers.started:
                answer = step.run(self._host.access, self._request, head, self._state)
                if answer is not None and not isinstance(answer, Fault):
                    _add_headers(answer, added, step)
        self.processing_seconds += self._clock() - began
        return added

    def _decode(self, encoding: str) -> None:
        if encoding == IDENTITY:
            return
        unread = self._host.telemetry.unread_response
        if self._restorer is not None:
            self._restorer, self.rewrites = None, False
            unread(encoding, "model name")
        if self._usage is not _NO_USAGE:
            decoder = decoder_of(encoding)
            if decoder is None:
                self._usage = _NO_USAGE
                unread(encoding, "usage")
            else:
                self._usage = CompressedUsage(decoder, self._usage, partial(unread, encoding, "usage"))

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        arrived = self._clock()
        # Counted chunks are not timed: reading the clock takes as long as counting.
        is_timed = end or self._restorer is not None or self._ttft is None
        if chunk:
            if self._ttft is None:
                self._ttft = arrived - self._request.received_at
                self._first_chunk_at = self._state.first_chunk_at = arrived
                for step in self._observers.first_chunk:
                    step.run(self._host.access, self._request, self._state)
            elif self.streaming:
                if self.gaps is None:
                    self.gaps = Distribution(ITL_BUCKETS)
                self.gaps.counts[bisect_left(ITL_BUCKETS, arrived - self._last_chunk_at)] += 1
            self._last_chunk_at = arrived
            self._bytes += len(chunk)
            self._usage.feed(chunk)
        if not is_timed:
            return None
        instead = None if self._restorer is None else self._restorer.feed(chunk, end)
        self.processing_seconds += self._clock() - arrived
        return instead

    def response_metadata(self) -> Metadata:
        added: dict[str, dict[str, MetadataValue]] = {}
        for step in self._observers.metadata:
            answer = step.run(self._host.access, self._request, self._usage.result(), self._state)
            if answer is not None and not isinstance(answer, Fault):
                _add_metadata(answer, added, step)
        return added

    def finish(self, cause: CloseCause) -> None:
        if self._ended:
            return
        self._ended = True
        host, request = self._host, self._request
        duration = self._clock() - request.received_at
        end = ResponseEnd(
            TERMINATION_OF[cause],
            self._status,
            self._usage.result(),
            self._bytes,
            duration,
            self._ttft,
            self._endpoint,
            self._gateway_error,
        )
        for step in self._observers.ended:
            step.run(host.access, request, end, self._state)
        if self._flight is not None:
            self._flight.ended()
        if self._on_finished is not None:
            self._on_finished()
        if self.gaps is not None:
            self.gaps.total = self._last_chunk_at - self._first_chunk_at
        if self._is_sent:
            host.telemetry.request_ended(request.incoming_model, request.model, request.fairness_id, request.priority, end, self)
            if host.decisions is not None:
                self._finish_record(host.decisions, end)

    def _finish_record(self, decisions: DecisionLog, end: ResponseEnd) -> None:
        record = self.record
        if record is None:
            if not is_failure(end.cause, end.status):
                return
            record = DecisionRecord.of(self._request, self.plan, Why.ERROR)
            record.destinations = self._destinations
        record.ended(end)
        decisions.finish(record)

    def abandon(self) -> None:
        """End an exchange whose request was refused after scheduling, without metrics or record."""
        self._is_sent = False
        self.finish(CloseCause.ERROR)


class BodilessExchange:
    """The `Exchange` of a request without a body, which is only counted."""

    __slots__ = ("_clock", "_ended", "_fairness_id", "_received_at", "_telemetry")

    wants_chunks = False
    rewrites = False
    adds_metadata = False

    def __init__(self, fairness_id: str, received_at: float, telemetry: Telemetry, clock: Callable[[], float]) -> None:
        self._fairness_id = fairness_id
        self._received_at = received_at
        self._telemetry = telemetry
        self._clock = clock
        self._ended = False

    def response_headers(
        self, headers: Mapping[str, str], served: str | None, gateway_error: str | None = None
    ) -> Mapping[str, str | None]:
        return {}

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        return None

    def response_metadata(self) -> Metadata:
        return {}

    def finish(self, cause: CloseCause) -> None:
        if not self._ended:
            self._ended = True
            if cause is CloseCause.END:
                self._telemetry.bodiless_ended(self._fairness_id, self._clock() - self._received_at)


def _is_text(content_type: str) -> bool:
    """True for JSON only: in gRPC, a model name of another length would break the frame."""
    return not content_type or "json" in content_type


def _add_headers(answer: object, added: dict[str, str | None], step: Step[object]) -> None:
    if not isinstance(answer, Mapping):
        step.fault(f"answered {type(answer).__name__}, not headers or None")
        return
    for name, value in answer.items():
        try:
            check_headers(((name, "" if value is None else value),))
        except (TypeError, ValueError) as problem:
            step.fault(problem)
        else:
            added[name] = value


def _add_metadata(answer: object, added: dict[str, dict[str, MetadataValue]], step: Step[object]) -> None:
    if not isinstance(answer, Mapping):
        step.fault(f"answered {type(answer).__name__}, not metadata or None")
        return
    for namespace, entries in answer.items():
        if not isinstance(namespace, str) or not isinstance(entries, Mapping):
            step.fault(f"answered metadata {shown(namespace)}: {shown(entries)}; it takes a mapping for each namespace")
            continue
        for key, value in entries.items():
            if isinstance(key, str) and isinstance(value, str | float | int):
                added.setdefault(namespace, {})[key] = value
            else:
                step.fault(f"wants metadata {shown(key)} set to {shown(value)}; it takes strings, numbers and booleans")


def _endpoint_at(served: str, picked: Endpoints, destinations: tuple[str, ...]) -> Endpoint | None:
    """Picked endpoints come first, because sidecars share a destination."""
    if served in destinations:
        position = destinations.index(served)
        if position < len(picked):
            return picked.members[position]
    for members in (picked.members, picked.pool_members):
        for endpoint in members:
            if endpoint.address == served:
                return endpoint
    return None
