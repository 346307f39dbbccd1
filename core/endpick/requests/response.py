"""One routed request after its decision: watches the response pass, and settles all accounts exactly once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

from endpick.api.access import Access
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import Endpoints
from endpick.api.fast_metrics import Distribution
from endpick.api.request_control import Metadata, MetadataValue, ResponseEnd, ResponseHead, ResponseObserver, TerminationCause
from endpick.api.state import CycleState
from endpick.host.boundary import Fault, Step, bind_wanted
from endpick.host.breaker import Breaker, BreakerState
from endpick.host.failures import CALL_FAILURES, kind_of
from endpick.host.instance import Instance
from endpick.host.telemetry import ITL_BUCKETS, Telemetry
from endpick.requests.added import add_headers, add_metadata
from endpick.requests.intake import BuiltRequest
from endpick.requests.memory import EXCHANGE_BYTES, MemoryAccount
from endpick.requests.model import CloseCause
from endpick.requests.response_body import FramedUsage, ModelNameRestorer, StreamedUsage, UsageReader, WholeUsage, read_usage

if TYPE_CHECKING:
    from endpick.flow_control.reclaim import Flight

_STATUS_DIGITS: Final = 3
_NO_USAGE: Final = UsageReader()
_OPEN: Final = BreakerState.OPEN


@dataclass(frozen=True, slots=True)
class Observers:
    """The methods of a plan's observers; those that plugins left as they are in `ResponseObserver` are not among them and cost nothing."""

    breakers: tuple[Breaker, ...] = ()
    """Of all of them: an instance whose circuit is open did not see a request leave, so it does not see it end."""
    started: tuple[Step, ...] = ()
    first_chunk: tuple[Step, ...] = ()
    metadata: tuple[Step, ...] = ()
    ended: tuple[Step, ...] = ()

    def without_open_circuits(self) -> Observers:
        """Those that are called now."""
        return Observers((), *map(_callable_now, (self.started, self.first_chunk, self.metadata, self.ended)))


def _callable_now(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple([step for step in steps if step.breaker.state is not _OPEN])


def compile_observers(instances: Sequence[Instance], telemetry: Telemetry) -> Observers:
    """Bind the methods that the instances define. Raises TypeError when one is no observer: a mistake in the plan."""

    def bound(method: str) -> tuple[Step, ...]:
        steps = [bind_wanted(instance, ResponseObserver, method, telemetry, settles=True) for instance in instances]
        return tuple([step for step in steps if step is not None])

    return Observers(
        tuple([instance.breaker for instance in instances]),
        bound("response_started"),
        bound("first_chunk"),
        bound("response_metadata"),
        bound("response_ended"),
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
    """What all exchanges of a process share.

    Attributes:
        access: What plugins' reads and writes are checked by.
        telemetry: Told when an exchange is over.
        clock: Monotonic seconds.
        account: Where what bodies became is accounted for until their requests are over.
    """

    access: Access
    telemetry: Telemetry
    clock: Callable[[], float]
    account: MemoryAccount


class TrackedExchange:
    """The `Exchange` of a request that a profile routed, and its `ResponsePace`."""

    __slots__ = (
        "_bytes",
        "_clock",
        "_destinations",
        "_ended",
        "_first_chunk_at",
        "_flight",
        "_gap_above",
        "_gap_bucket",
        "_gap_upto",
        "_gaps_alike",
        "_host",
        "_is_noting",
        "_is_sent",
        "_last_chunk_at",
        "_observers",
        "_parsed_bytes",
        "_parser",
        "_picked",
        "_request",
        "_restorer",
        "_room_made",
        "_state",
        "_status",
        "_ttft",
        "_usage",
        "gaps",
        "processing_seconds",
        "rewrites",
        "streaming",
        "tells_metadata",
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
        """A request that leaves now; what its body became, and what producers made of it, is in the account until `finish`.

        Args:
            host: See there.
            built: The request.
            state: As plugins left it.
            observers: Of the plan; those that take part are told how the response goes.
            picked: The endpoints it may be served by, best first.
            destinations: Where each of them is reached; their own addresses unless the profile handler said otherwise.
        """
        request = built.request
        # As `hold_parsed`, here and at the end, without the call, which each request would pay for.
        account = host.account
        parsed_bytes = built.parsed_bytes + state._left_bytes[0] + EXCHANGE_BYTES
        account.parsed_bytes += parsed_bytes
        account.held_bytes += parsed_bytes
        if account.held_bytes > account.alarm_bytes:
            account.reconsider()
        renamed = request.incoming_model and request.model != request.incoming_model
        self._host = host
        self._clock = host.clock
        # Not `built` itself: the body to send instead would be in memory until the answer ends.
        self._request = request
        self._parser = built.parser
        self._parsed_bytes = parsed_bytes
        self._state = state
        for breaker in observers.breakers:
            if breaker.state is _OPEN:
                observers = observers.without_open_circuits()
                break
        self._observers = observers
        self.tells_metadata = bool(observers.metadata)
        self._picked = picked
        self._destinations = destinations
        self._restorer = ModelNameRestorer(request.model, request.incoming_model) if renamed else None
        self.rewrites = self._restorer is not None
        self._usage: UsageReader = _NO_USAGE
        self._status = 0
        self._bytes = 0
        self._ttft: float | None = None
        self._is_noting = False
        """Whether a further piece is only noted: the first one came, and none is rewritten."""
        self._first_chunk_at = 0.0
        self._last_chunk_at = 0.0
        self.streaming = False
        self.processing_seconds = 0.0
        self.gaps: Distribution | None = None
        """Of a stream, complete once the exchange is over: those since `_begin_bucket` are added then, and the sum of all."""
        self._gap_above = 0.0
        self._gap_upto = 0.0
        self._gap_bucket = 0
        self._gaps_alike = 0
        self._ended = False
        self._is_sent = True
        self._room_made: Callable[[], None] | None = None
        self._flight: Flight | None = None

    def makes_room(self, room_made: Callable[[], None], flight: Flight | None) -> None:
        """Others may wait for this request to end.

        Args:
            room_made: Called when all is over.
            flight: The same request, as those know it who may take it back; None where no request is taken back.
        """
        self._room_made, self._flight = room_made, flight

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str | None]:
        """See `Exchange`."""
        came_at = self._clock()
        status = headers.get(":status", "")
        self._status = int(status) if len(status) == _STATUS_DIGITS and status.isdecimal() else 0
        content_type = headers.get("content-type", "").lower()
        self.streaming = "text/event-stream" in content_type
        parser = self._parser
        if parser is not None and parser.usage is not None:
            # Nothing of this exchange: a cycle would keep request and response until the garbage collector comes.
            read = partial(read_usage, parser.usage, self._host.access)
            if self.streaming:
                self._usage = StreamedUsage(read, parser.usage_mark, self._host.account)
            elif content_type.startswith("application/grpc"):
                self._usage = FramedUsage(read, self._host.account)
            else:
                self._usage = WholeUsage(read, parser.usage_mark, self._host.account)
        added: dict[str, str | None] = {}
        if self._observers.started:
            endpoint = self._picked.members[0] if served is None else _endpoint_at(served, self._picked, self._destinations)
            head = ResponseHead(self._status, headers, endpoint, served)
            for step in self._observers.started:
                answer = step.run(self._host.access, self._request, head, self._state)
                if answer is None:
                    continue
                try:
                    if isinstance(answer, Mapping):
                        add_headers(answer, added, step)
                    elif not isinstance(answer, Fault):
                        step.fault(f"answered {kind_of(answer)}, not headers or None")
                except CALL_FAILURES as problem:
                    step.fault(problem)
        self.processing_seconds += self._clock() - came_at
        return added

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """See `Exchange`."""
        came_at = self._clock()
        # A piece that is only noted is not timed: to read the clock again would take about as long.
        is_timed = end or not self._is_noting
        if chunk:
            if self._ttft is None:
                self._ttft = came_at - self._request.received_at
                self._first_chunk_at = came_at
                self._is_noting = self._restorer is None
                for step in self._observers.first_chunk:
                    step.run(self._host.access, self._request, self._state)
            elif self.streaming:
                gap = came_at - self._last_chunk_at
                if not self._gap_above < gap <= self._gap_upto:
                    self._begin_bucket(gap)
                self._gaps_alike += 1
            self._last_chunk_at = came_at
            self._bytes += len(chunk)
            self._usage.feed(chunk)
        if not is_timed:
            return None
        instead = None if self._restorer is None else self._restorer.feed(chunk, end)
        self.processing_seconds += self._clock() - came_at
        return instead

    def response_unseen(self, size: int) -> bytes | None:
        """See `Exchange`."""
        self._bytes += size
        self._usage.skip()
        return None if self._restorer is None else self._restorer.feed(b"", True)

    def _begin_bucket(self, gap: float) -> None:
        """Count the gaps so far, and remember where the next ones belong: those of one stream are alike, and mostly of one bucket."""
        gaps = self.gaps
        if gaps is None:
            gaps = self.gaps = Distribution(ITL_BUCKETS)
        self._end_bucket(gaps)
        bounds = gaps.bounds
        bucket = self._gap_bucket = bisect_left(bounds, gap)
        self._gap_above = bounds[bucket - 1] if bucket else -inf
        self._gap_upto = bounds[bucket] if bucket < len(bounds) else inf

    def _end_bucket(self, gaps: Distribution) -> None:
        gaps.counts[self._gap_bucket] += self._gaps_alike
        self._gaps_alike = 0

    def response_metadata(self) -> Metadata:
        """See `Exchange`: what all observers tell the gateway; of equal keys the last."""
        told: dict[str, dict[str, MetadataValue]] = {}
        for step in self._observers.metadata:
            answer = step.run(self._host.access, self._request, self._usage.result(), self._state)
            try:
                if isinstance(answer, Mapping):
                    add_metadata(answer, told, step)
                elif answer is not None and not isinstance(answer, Fault):
                    step.fault(f"answered {kind_of(answer)}, not metadata or None")
            except CALL_FAILURES as problem:
                step.fault(problem)
        return told

    def finish(self, cause: CloseCause) -> None:
        """See `Exchange`."""
        if self._ended:
            return
        self._ended = True
        host, request, parsed_bytes = self._host, self._request, self._parsed_bytes
        account = host.account
        account.parsed_bytes -= parsed_bytes
        account.held_bytes -= parsed_bytes
        duration = self._clock() - request.received_at
        end = ResponseEnd(TERMINATION_OF[cause], self._status, self._usage.result(), self._bytes, duration, self._ttft)
        for step in self._observers.ended:  # all of them, also when one fails
            step.run(host.access, request, end, self._state)
        if self._flight is not None:
            self._flight.ended()
        if self._room_made is not None:
            self._room_made()
        if self.gaps is not None:
            self._end_bucket(self.gaps)
            self.gaps.total = self._last_chunk_at - self._first_chunk_at
        if self._is_sent:
            host.telemetry.request_ended(request.incoming_model, request.model, request.fairness_id, request.priority, end, self)

    def abandon(self) -> None:
        """The request was refused at the last moment: observers settle what `before_request` began, but nothing was sent."""
        self._is_sent = False
        self.finish(CloseCause.ERROR)


class BodilessExchange:
    """The `Exchange` of a request that no profile saw, because it has no body: no plugin has anything to learn from it."""

    __slots__ = ("_clock", "_ended", "_fairness_id", "_received_at", "_telemetry")

    wants_chunks = False
    rewrites = False
    tells_metadata = False

    def __init__(self, fairness_id: str, received_at: float, telemetry: Telemetry, clock: Callable[[], float]) -> None:
        self._fairness_id = fairness_id
        self._received_at = received_at
        self._telemetry = telemetry
        self._clock = clock
        self._ended = False

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str | None]:
        """See `Exchange`."""
        return {}

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """See `Exchange`."""
        return None

    def response_unseen(self, size: int) -> bytes | None:
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


def _endpoint_at(served: str, picked: Endpoints, destinations: tuple[str, ...]) -> Endpoint | None:
    """The endpoint that the gateway named; None when it named one that is not in the pool.

    What the gateway names is a destination: behind the sidecar of a host several endpoints share one.
    """
    if served in destinations:
        position = destinations.index(served)
        if position < len(picked):
            return picked.members[position]
    for members in (picked.members, picked.pool_members):
        for endpoint in members:
            if endpoint.address == served:
                return endpoint
    return None
