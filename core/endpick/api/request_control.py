"""The kinds that act on a request before and after scheduling.

Order for one request: parse → respond → request headers → candidates → shed → candidate filters → produce → admit → schedule →
pre-request → response hooks. Only `produce` may await.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol, TypeAlias

from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.plugin import P, Plugin
from endpick.api.request import DirectResponse, InferenceRequest, ParsedRequest, Rejection, Usage
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState, ScoringState


class Parser(Plugin[P]):
    """Reads the request bodies of an API, and token usage from its responses."""

    kind: ClassVar[str] = "parser"

    claims: ClassVar[tuple[str, ...]] = ()
    """Suffixes of whole segments, or with a leading dot for a part of a gRPC service name. The longest match wins. Empty: every path."""

    reads_body: ClassVar[bool] = True
    """False if `parse` ignores the body. Requests are then decided at their headers, with an empty body."""

    reads_usage: ClassVar[bool] = False
    """True if `usage` can find token counts."""

    usage_mark: ClassVar[bytes] = b'"usage'
    """Bytes in every piece of a response with token counts; other pieces skip `usage`."""

    @abstractmethod
    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Read a complete request body. Malformed input is a `Rejection` with status 400."""

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """The body with another model name. Called only if the names differ."""
        return body

    def rewrite_priority(self, body: bytes, parsed: ParsedRequest, priority: int) -> bytes:
        """The body with this top-level `priority`. Called if the document sets `propagatePriority`; `body` has its final model name."""
        return body

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """Token counts in a response body, or None.

        `body` is whole or, if `streaming`, a piece: one or more complete server-sent events or gRPC frames. Later counts replace earlier
        ones; zeros and None do not.
        """
        return None


class Responder(Plugin[P]):
    """Answers requests itself, without a model server."""

    kind: ClassVar[str] = "responder"

    @abstractmethod
    def respond(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> DirectResponse | None:
        """Answer, or return None to route the request. Called for requests with and without body, in order, until one answers.

        `endpoints` may be empty.
        """


class RequestHeaderProcessor(Plugin[P]):
    """Reads request headers before any decision."""

    kind: ClassVar[str] = "request-header-processor"

    @abstractmethod
    def request_headers(self, request: InferenceRequest, state: CycleState) -> Rejection | None:
        """Leave data with `state.put`, or refuse the request. Called in order, until one refuses.

        A value under `AGENT_IDENTITY` becomes the request's `fairness_id` if the client sent no fairness header.
        """


class CandidateFilter(Plugin[P]):
    """Narrows the candidates once per request, before producers run."""

    kind: ClassVar[str] = "candidate-filter"

    @abstractmethod
    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        """Keep a subset. All filters see the same input; the intersection remains. None left: 503."""


class DataProducer(Plugin[P]):
    """Produces per-request data before scheduling, under the keys in `produces`."""

    kind: ClassVar[str] = "data-producer"

    timeout_seconds: float = 0.4
    """An awaiting producer is cancelled after this time."""

    @abstractmethod
    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> Awaitable[None] | None:
        """Write the declared keys with `state.put` and `state.put_column`.

        Called once per request, in subscription order; an `async def` is awaited. After a fault or timeout the request continues without
        the data.
        """


class Admitter(Plugin[P]):
    """Admits or rejects a request."""

    kind: ClassVar[str] = "admitter"

    @abstractmethod
    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        """Return None to admit. The first rejection ends the request."""


MetadataValue: TypeAlias = str | float | bool
Metadata: TypeAlias = Mapping[str, Mapping[str, MetadataValue]]
"""Dynamic metadata for the gateway: namespace → key → value."""


class UpstreamHeaders(Protocol):
    """Changes the headers sent to the model server, and the metadata sent to the gateway."""

    def set(self, name: str, value: str) -> None:
        """Set one header; lower-cased. Raises TypeError for non-strings, ValueError if HTTP or endpick forbids it (content-length)."""

    def remove(self, name: str) -> None:
        """Remove a header, whoever set it; a later `set` restores it. Raises as `set`."""

    def set_metadata(self, namespace: str, key: str, value: MetadataValue) -> None:
        """Set one entry of the gateway's dynamic metadata. Raises TypeError for values of another type."""


class PreRequest(Plugin[P]):
    """Runs after the decision, before the model server gets the request."""

    kind: ClassVar[str] = "pre-request"

    @abstractmethod
    def before_request(
        self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState
    ) -> Rejection | DirectResponse | None:
        """Record the decision or add headers. All instances run. The first rejection counts, else the first response."""


class TerminationCause(StrEnum):
    """How a request ended."""

    NATURAL = "natural"
    CLIENT_DISCONNECT = "client-disconnect"
    ERROR = "error"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Response headers and the endpoint that served.

    Attributes:
        headers: As the model server sent them.
        endpoint: As the gateway reported, else the first pick; None if it has left.
        served: `host:port` the gateway reported, or None.
    """

    status: int
    headers: Mapping[str, str]
    endpoint: Endpoint | None
    served: str | None = None


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """The end of one request that was sent to a model server.

    Attributes:
        status: 0 without response headers.
        usage: None if there was none or the gateway does not send bodies.
        response_bytes: Body bytes seen.
        duration_seconds: Since the request headers.
        ttft_seconds: From the request headers to the first body byte; None without a body.
        endpoint: The one that served, as the gateway reported, else the first pick; None if it has left.
        gateway_error: Why the gateway answered in place of the model server, in Envoy's words (`response.code_details`); `unnamed` for
            a 503 of a gateway that does not give the cause; empty for an answer of the model server.
    """

    cause: TerminationCause
    status: int
    usage: Usage | None
    response_bytes: int
    duration_seconds: float
    ttft_seconds: float | None
    endpoint: Endpoint | None = None
    gateway_error: str = ""


class ResponseObserver(Plugin[P]):
    """Observes responses."""

    kind: ClassVar[str] = "response-observer"

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str | None] | None:
        """May return headers to set on the response; None as value removes one."""
        return None

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        """Called at the first body bytes, if the gateway sends bodies."""

    def response_metadata(self, request: InferenceRequest, usage: Usage | None, state: CycleState) -> Metadata | None:
        """May return metadata for the gateway. Called at the last piece of the response, if the gateway sends bodies."""
        return None

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Called exactly once for each request that `before_request` saw, however it ended."""


class SaturationDetector(Plugin[P]):
    """Measures how full the pool is."""

    kind: ClassVar[str] = "saturation-detector"

    @abstractmethod
    def saturation(self, endpoints: Endpoints) -> float:
        """0 is idle; at 1 and above, requests of negative priority are shed. No endpoints count as 1."""
