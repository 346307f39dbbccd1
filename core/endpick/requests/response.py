"""One routed request after its decision: watches the response pass, and settles all accounts exactly once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from endpick.api.endpoints import Access, Endpoint, Endpoints
from endpick.api.fast_metrics import Distribution
from endpick.api.request import InferenceRequest, Usage
from endpick.api.request_control import Metadata, MetadataValue, ResponseEnd, ResponseHead, ResponseObserver, TerminationCause
from endpick.api.state import CycleState
from endpick.flow_control.reclaim import Flight
from endpick.observability.metrics import ITL_BUCKETS
from endpick.observability.telemetry import ResponsePace, Telemetry
from endpick.plugins.breaker import Breaker, BreakerState
from endpick.plugins.instance import Instance
from endpick.requests.intake import CompiledParser
from endpick.requests.memory import MemoryAccount
from endpick.requests.model import CloseCause
from endpick.requests.response_body import FramedUsage, ModelNameRestorer, StreamedUsage, Unread, UsageReader, WholeUsage
from endpick.scheduling.step import Fault, Step, bind_settling

_OPEN = BreakerState.OPEN


@dataclass(frozen=True, slots=True)
class CompiledObserver:
    """An observer's methods; those it left as they are in `ResponseObserver` are None and cost nothing."""

    breaker: Breaker
    started: Step | None
    first_chunk: Step | None
    metadata: Step | None
    ended: Step | None


def compile_observer(instance: Instance, telemetry: Telemetry) -> CompiledObserver:
    """Bind the methods that the instance defines. Raises TypeError when it is no observer: a mistake in the plan."""
    return CompiledObserver(
        instance.breaker,
        bind_settling(instance, ResponseObserver, "response_started", telemetry),
        bind_settling(instance, ResponseObserver, "first_chunk", telemetry),
        bind_settling(instance, ResponseObserver, "response_metadata", telemetry),
        bind_settling(instance, ResponseObserver, "response_ended", telemetry),
    )


def taking_part(observers: Sequence[CompiledObserver]) -> Sequence[CompiledObserver]:
    """The observers of a request that leaves now: an instance whose circuit is open did not see it leave, so it does not see it end."""
    for observer in observers:
        if observer.breaker.state is _OPEN:
            return [each for each in observers if each.breaker.state is not _OPEN]
    return observers


@dataclass(slots=True)
class Observers:
    """The observers of one request."""

    each: Sequence[CompiledObserver]
    request: InferenceRequest
    state: CycleState
    access: Access

    def started(self, head: ResponseHead) -> dict[str, str]:
        """Tell all of them; returns the headers they want on the response, of equal names the last."""
        added: dict[str, str] = {}
        for observer in self.each:
            if observer.started is None:
                continue
            answer = observer.started.run(self.access, self.request, head, self.state)
            if isinstance(answer, Mapping):
                _add(answer, added, observer.started)
            elif answer is not None and not isinstance(answer, Fault):
                observer.started.fault(f"answered {type(answer).__name__}, not headers or None")
        return added

    def first_chunk(self) -> None:
        """Tell all of them."""
        for observer in self.each:
            if observer.first_chunk is not None:
                observer.first_chunk.run(self.access, self.request, self.state)

    def metadata(self, usage: Callable[[], Usage | None]) -> Metadata:
        """What all of them tell the gateway at the end of the response; of equal keys the last. `usage` is asked only if one wants it."""
        told: dict[str, dict[str, MetadataValue]] = {}
        for observer in self.each:
            if observer.metadata is None:
                continue
            answer = observer.metadata.run(self.access, self.request, usage(), self.state)
            if isinstance(answer, Mapping):
                _add_metadata(answer, told, observer.metadata)
            elif answer is not None and not isinstance(answer, Fault):
                observer.metadata.fault(f"answered {type(answer).__name__}, not metadata or None")
        return told

    def ended(self, end: ResponseEnd) -> None:
        """Tell all of them, also when one fails."""
        for observer in self.each:
            if observer.ended is not None:
                observer.ended.run(self.access, self.request, end, self.state)


def _add_metadata(answer: Mapping[object, object], told: dict[str, dict[str, MetadataValue]], step: Step) -> None:
    for namespace, entries in answer.items():
        if not isinstance(namespace, str) or not isinstance(entries, Mapping):
            step.fault(f"answered metadata {namespace!r}: {entries!r}; it takes a mapping for each namespace")
            continue
        for key, value in entries.items():
            if isinstance(key, str) and isinstance(value, str | float | int):
                told.setdefault(namespace, {})[key] = value
            else:
                step.fault(f"wants metadata {key!r} set to {value!r}; it takes strings, numbers and booleans")


def _add(answer: Mapping[object, object], added: dict[str, str], step: Step) -> None:
    for name, value in answer.items():
        if isinstance(name, str) and isinstance(value, str):
            added[name] = value
        else:
            step.fault(f"wants header {name!r} set to {value!r}; names and values must be strings")


TERMINATION_OF: Mapping[CloseCause, TerminationCause] = {
    CloseCause.END: TerminationCause.NATURAL,
    CloseCause.RESET: TerminationCause.CLIENT_DISCONNECT,
    CloseCause.DISCONNECT: TerminationCause.ERROR,
    CloseCause.ERROR: TerminationCause.ERROR,
    CloseCause.DRAIN: TerminationCause.DRAINED,
}


@dataclass(slots=True)
class ExchangeContext:
    """A request on its way, and what is told about it.

    Attributes:
        request: As plugins know it.
        picked: The endpoints it may be served by, best first.
        parser: Can read usage from the response; None when no parser read the request.
        observers: Told how the response goes.
        telemetry: Told when it is over.
        clock: Monotonic seconds.
        account: Where what the body became is accounted for until the request is over.
        parsed_bytes: How much that is.
        destinations: Where each of `picked` is reached; their own addresses unless the profile handler said otherwise.
        ended: Called when all of that is over.
        flight: The same request, as those know it who may take it back.
    """

    request: InferenceRequest
    picked: Endpoints
    parser: CompiledParser | None
    observers: Observers
    telemetry: Telemetry
    clock: Callable[[], float]
    account: MemoryAccount
    parsed_bytes: int
    destinations: tuple[str, ...] = ()
    ended: Callable[[], None] | None = None
    flight: Flight | None = None


class TrackedExchange:
    """The `Exchange` of a request that a profile routed."""

    __slots__ = ("_bytes", "_context", "_ended", "_last_chunk_at", "_pace", "_restorer", "_status", "_ttft", "_usage")

    wants_chunks = True

    def __init__(self, sent: ExchangeContext) -> None:
        request = sent.request
        renamed = request.incoming_model and request.model != request.incoming_model
        self._context = sent
        self._restorer = ModelNameRestorer(request.model, request.incoming_model) if renamed else None
        self._usage: UsageReader = Unread()
        self._status = 0
        self._bytes = 0
        self._ttft: float | None = None
        self._last_chunk_at = 0.0
        self._pace = ResponsePace()
        self._ended = False

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str]:
        """See `Exchange`."""
        came_at = self._context.clock()
        if self._context.flight is not None:
            self._context.flight.began()
        status = headers.get(":status", "")
        self._status = int(status) if status.isdecimal() else 0
        content_type = headers.get("content-type", "").lower()
        self._pace.streaming = "text/event-stream" in content_type
        self._usage = self._reader(content_type)
        observers = self._context.observers
        added: Mapping[str, str] = {}
        if observers.each:
            served_by = _endpoint_at(served, self._context.picked, self._context.destinations)
            added = observers.started(ResponseHead(self._status, headers, served_by, served))
        self._pace.processing_seconds += self._context.clock() - came_at
        return added

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """See `Exchange`."""
        clock, pace = self._context.clock, self._pace
        came_at = clock()
        if chunk:
            if self._ttft is None:
                self._ttft = came_at - self._context.request.received_at
                if self._context.observers.each:
                    self._context.observers.first_chunk()
            elif pace.streaming:
                gaps = pace.gaps
                if gaps is None:
                    gaps = pace.gaps = Distribution(ITL_BUCKETS)
                # What `Distribution.observe` does, for each chunk and without the call.
                gap = came_at - self._last_chunk_at
                gaps.counts[bisect_left(gaps.bounds, gap)] += 1
                gaps.total += gap
            self._last_chunk_at = came_at
            self._bytes += len(chunk)
            self._usage.feed(chunk)
        instead = None if self._restorer is None else self._restorer.feed(chunk, end)
        pace.processing_seconds += clock() - came_at
        return instead

    def response_metadata(self) -> Metadata:
        """See `Exchange`."""
        observers = self._context.observers
        return observers.metadata(self._usage.result) if observers.each else {}

    def finish(self, cause: CloseCause) -> None:
        """See `Exchange`."""
        if self._ended:
            return
        end = self._close(TERMINATION_OF[cause])
        request = self._context.request
        self._context.telemetry.request_ended(request.incoming_model, request.model, request.fairness_id, request.priority, end, self._pace)

    def abandon(self) -> None:
        """The request was refused at the last moment: observers settle what `before_request` began, but nothing was sent."""
        if not self._ended:
            self._close(TerminationCause.ERROR)

    def _close(self, cause: TerminationCause) -> ResponseEnd:
        self._ended = True
        # As `hold_parsed`, without the call, which each request would pay for.
        account = self._context.account
        account.parsed_bytes -= self._context.parsed_bytes
        account.held_bytes -= self._context.parsed_bytes
        duration = self._context.clock() - self._context.request.received_at
        end = ResponseEnd(cause, self._status, self._usage.result(), self._bytes, duration, self._ttft)
        if self._context.observers.each:
            self._context.observers.ended(end)
        if self._context.flight is not None:
            self._context.flight.ended()
        if self._context.ended is not None:
            self._context.ended()
        return end

    def _reader(self, content_type: str) -> UsageReader:
        parser = self._context.parser
        if parser is None or parser.usage is None:
            return Unread()
        # Nothing of this exchange: a cycle would keep request and response until the garbage collector comes.
        read = partial(_read_usage, parser.usage, self._context.observers.access)
        if self._pace.streaming:
            return StreamedUsage(read, parser.usage_mark)
        return FramedUsage(read) if content_type.startswith("application/grpc") else WholeUsage(read, parser.usage_mark)


class BodilessExchange:
    """The `Exchange` of a request that no profile saw, because it has no body: no plugin has anything to learn from it."""

    __slots__ = ("_clock", "_ended", "_fairness_id", "_received_at", "_telemetry")

    wants_chunks = False

    def __init__(self, fairness_id: str, received_at: float, telemetry: Telemetry, clock: Callable[[], float]) -> None:
        self._fairness_id = fairness_id
        self._received_at = received_at
        self._telemetry = telemetry
        self._clock = clock
        self._ended = False

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str]:
        """See `Exchange`."""
        return {}

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """See `Exchange`."""
        return None

    def response_metadata(self) -> Metadata:
        """See `Exchange`."""
        return {}

    def finish(self, cause: CloseCause) -> None:
        """See `Exchange`."""
        if not self._ended:
            self._ended = True
            if cause is CloseCause.END:
                self._telemetry.bodiless_ended(self._fairness_id, self._clock() - self._received_at)


def _read_usage(step: Step, access: Access, body: bytes, streaming: bool) -> Usage | None:
    usage = step.run(access, body, streaming)
    if isinstance(usage, Usage):
        return usage
    if usage is not None and not isinstance(usage, Fault):
        step.fault(f"answered {type(usage).__name__}, not Usage or None")
    return None


def _endpoint_at(served: str | None, picked: Endpoints, destinations: tuple[str, ...]) -> Endpoint | None:
    """The endpoint the gateway named, else the first picked; None when the gateway named one that is not in the pool.

    What the gateway names is a destination: behind the sidecar of a host several endpoints share one.
    """
    if served is None:
        return picked.members[0]
    if served in destinations:
        position = destinations.index(served)
        if position < len(picked):
            return picked.members[position]
    for members in (picked.members, picked.pool_members):
        for endpoint in members:
            if endpoint.address == served:
                return endpoint
    return None
