"""One routed request after its decision: watches the response pass, and settles all accounts exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from endpick.api.access import Access
from endpick.api.endpoints import Endpoint, Endpoints
from endpick.api.request import InferenceRequest, Usage
from endpick.api.requests import ResponseEnd, ResponseHead, TerminationCause
from endpick.observability.instruments import Instruments
from endpick.requests.decision import CloseCause, Metadata
from endpick.requests.observing import Observers
from endpick.requests.parsing import CompiledParser, UsageStep
from endpick.requests.restoring import ModelNameRestorer
from endpick.requests.usage import StreamedUsage, Unread, UsageReader, WholeUsage
from endpick.scheduling.step import Fault

TERMINATION_OF: Mapping[CloseCause, TerminationCause] = {
    CloseCause.END: TerminationCause.NATURAL,
    CloseCause.RESET: TerminationCause.CLIENT_DISCONNECT,
    CloseCause.DISCONNECT: TerminationCause.ERROR,
    CloseCause.ERROR: TerminationCause.ERROR,
    CloseCause.DRAIN: TerminationCause.DRAINED,
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A request on its way, and who is to be told about it.

    Attributes:
        request: As plugins know it.
        picked: The endpoints it may be served by, best first.
        parser: Who can read usage from the response; None when nobody read the request.
        observers: Told how the response goes.
        instruments: Told when it is over.
        clock: Monotonic seconds.
    """

    request: InferenceRequest
    picked: Endpoints
    parser: CompiledParser | None
    observers: Observers
    instruments: Instruments
    clock: Callable[[], float]


class WatchedExchange:
    """The `Exchange` of a request that a profile routed."""

    __slots__ = ("_bytes", "_ended", "_restorer", "_sent", "_status", "_ttft", "_usage")

    wants_chunks = True

    def __init__(self, sent: Sent) -> None:
        request = sent.request
        renamed = request.incoming_model and request.model != request.incoming_model
        self._sent = sent
        self._restorer = ModelNameRestorer(request.model, request.incoming_model) if renamed else None
        self._usage: UsageReader = Unread()
        self._status = 0
        self._bytes = 0
        self._ttft: float | None = None
        self._ended = False

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str]:
        """See `Exchange`."""
        status = headers.get(":status", "")
        self._status = int(status) if status.isdecimal() else 0
        self._usage = self._reader(headers.get("content-type", ""))
        return self._sent.observers.started(ResponseHead(self._status, headers, _endpoint_at(served, self._sent.picked)))

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """See `Exchange`."""
        if chunk:
            if self._ttft is None:
                self._ttft = self._sent.clock() - self._sent.request.received_at
                self._sent.observers.first_chunk()
            self._bytes += len(chunk)
            self._usage.feed(chunk)
        return None if self._restorer is None else self._restorer.feed(chunk, end)

    def response_metadata(self) -> Metadata:
        """See `Exchange`."""
        return {}

    def finish(self, cause: CloseCause) -> None:
        """See `Exchange`."""
        if self._ended:
            return
        end = self._close(TERMINATION_OF[cause])
        request = self._sent.request
        self._sent.instruments.request_ended(
            request.incoming_model, request.model, request.fairness_id, request.priority, request.streaming, end
        )

    def abandon(self) -> None:
        """The request was refused at the last moment: observers settle what `before_request` began, but nothing was sent."""
        if not self._ended:
            self._close(TerminationCause.ERROR)

    def _close(self, cause: TerminationCause) -> ResponseEnd:
        self._ended = True
        duration = self._sent.clock() - self._sent.request.received_at
        end = ResponseEnd(cause, self._status, self._usage.result(), self._bytes, duration, self._ttft)
        self._sent.observers.ended(end)
        return end

    def _reader(self, content_type: str) -> UsageReader:
        parser = self._sent.parser
        if parser is None or parser.usage is None:
            return Unread()
        # Nothing of this exchange: a cycle would keep request and response until the garbage collector comes.
        read = partial(_read_usage, parser.usage, self._sent.observers.access)
        return StreamedUsage(read) if "text/event-stream" in content_type.lower() else WholeUsage(read)


class UnwatchedExchange:
    """The `Exchange` of a request that no profile saw, because it has no body: nobody has anything to learn from it."""

    __slots__ = ()

    wants_chunks = False

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


def _read_usage(step: UsageStep, access: Access, body: bytes, streaming: bool) -> Usage | None:
    usage = step.run(access, body, streaming)
    if isinstance(usage, Usage):
        return usage
    if usage is not None and not isinstance(usage, Fault):
        step.fault(f"answered {type(usage).__name__}, not Usage or None")
    return None


def _endpoint_at(served: str | None, picked: Endpoints) -> Endpoint | None:
    """The endpoint the gateway named, else the first picked; None when the gateway named one that is not in the pool."""
    if served is None:
        return picked.members[0]
    for members in (picked.members, picked.generation.endpoints):
        for endpoint in members:
            if endpoint.address == served:
                return endpoint
    return None
