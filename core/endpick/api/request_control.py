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
    """Reads the request bodies of an API, and token usage from its responses.

    `requestHandler.parsers` names parsers. The director chooses one by the path of the request.
    """

    kind: ClassVar[str] = "parser"

    claims: ClassVar[tuple[str, ...]] = ()
    """Path suffixes that the parser reads: whole segments, or with a leading dot a part of a gRPC service name. The longest match wins.
    Empty: every path, and parsers after it are unused.
    """

    reads_body: ClassVar[bool] = True
    """False if `parse` ignores the body. Requests are then decided at their headers, with an empty body."""

    reads_usage: ClassVar[bool] = False
    """True if `usage` can find token counts; else the host never calls it."""

    usage_mark: ClassVar[bytes] = b'"usage'
    """Bytes in every piece of a response with token counts; the host does not pass other pieces to `usage`."""

    @abstractmethod
    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Read a complete request body.

        The director calls it once per request with a body, before all other plugins. `path` has no query string; `headers` have lower-case
        names, pseudo headers included.

        Returns:
            The parsed request, or for malformed input a `Rejection` with status 400.
        """

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """Return the body with another model name.

        The director calls it after `parse`, only if a rewrite changes the name. Default: the same body.
        """
        return body

    def rewrite_priority(self, body: bytes, parsed: ParsedRequest, priority: int) -> bytes:
        """Return the body with this top-level `priority`.

        The director calls it if the document sets `propagatePriority`; `body` has its final model name. Default: the same body.
        """
        return body

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """Return the token counts in a response body, or None if there are none.

        The director calls it with the whole body or, if `streaming`, with a piece: one or more complete server-sent events or gRPC frames.
        Later counts replace earlier ones; zeros and None do not. Of a whole body beyond 256 KiB it gets the end.
        """
        return None


class Responder(Plugin[P]):
    """Answers requests itself, without a model server."""

    kind: ClassVar[str] = "responder"

    @abstractmethod
    def respond(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> DirectResponse | None:
        """Answer the request, or return None to route it.

        The director calls responders in configuration order until one answers, for requests with and without body, before any other plugin
        but the parser. `endpoints` are those that the gateway allows, and may be empty.
        """


class RequestHeaderProcessor(Plugin[P]):
    """Reads request headers before any decision."""

    kind: ClassVar[str] = "request-header-processor"

    @abstractmethod
    def request_headers(self, request: InferenceRequest, state: CycleState) -> Rejection | None:
        """Leave data with `state.put`, or refuse the request.

        The director calls processors in configuration order until one refuses. A value under `AGENT_IDENTITY` becomes the request's
        `fairness_id` if the client sent no fairness header.

        Returns:
            None to go on, or a `Rejection`.
        """


class CandidateFilter(Plugin[P]):
    """Narrows the candidates once per request, before producers run."""

    kind: ClassVar[str] = "candidate-filter"

    @abstractmethod
    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        """Keep a subset of the endpoints.

        The director calls every filter with the same endpoints; the intersection remains. If none is left, it refuses the request with
        status 503.

        Returns:
            Boolean array of shape `(len(endpoints),)`, or a view made with `endpoints.where`, `.only` or `.take`.
        """


class DataProducer(Plugin[P]):
    """Produces per-request data before scheduling, under the keys in `produces`."""

    kind: ClassVar[str] = "data-producer"

    timeout_seconds: float = 0.4
    """Seconds after which the director cancels a producer that awaits."""

    @abstractmethod
    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> Awaitable[None] | None:
        """Write the declared keys with `state.put` and `state.put_column`.

        The director calls it once per request with the candidates, producers before their consumers; it awaits an `async def`. After a
        fault or timeout the request continues without the data.
        """


class Admitter(Plugin[P]):
    """Admits or rejects a request, once the data of producers is known."""

    kind: ClassVar[str] = "admitter"

    @abstractmethod
    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        """Return None to admit the request, or a `Rejection`.

        The director calls it once per request with the candidates, after producers and before scheduling. The first rejection ends the
        request.
        """


MetadataValue: TypeAlias = str | float | bool
"""A value of dynamic metadata: text, a number or a boolean."""
Metadata: TypeAlias = Mapping[str, Mapping[str, MetadataValue]]
"""Dynamic metadata for the gateway: namespace → key → value."""


class UpstreamHeaders(Protocol):
    """Changes the headers sent to the model server, and the metadata sent to the gateway.

    The director passes it to `PreRequest.before_request`. Headers of `SchedulingResult` are set already.
    """

    def set(self, name: str, value: str) -> None:
        """Set one header of the request. The name becomes lower-case.

        Raises:
            TypeError: The name or the value is not a string.
            ValueError: HTTP does not allow it, or the header belongs to endpick, such as `content-length`.
        """

    def remove(self, name: str) -> None:
        """Remove a header, whoever set it; a later `set` restores it. Raises as `set`."""

    def set_metadata(self, namespace: str, key: str, value: MetadataValue) -> None:
        """Set one entry of the gateway's dynamic metadata for the request.

        Raises:
            TypeError: The namespace or the key is not a string, or the value is no string, number or boolean.
        """


class PreRequest(Plugin[P]):
    """Runs after the decision, before the model server gets the request."""

    kind: ClassVar[str] = "pre-request"

    @abstractmethod
    def before_request(
        self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState
    ) -> Rejection | DirectResponse | None:
        """Record the decision, add headers, or refuse the request after all.

        The director calls all instances, in configuration order. `result` is the decision.

        Returns:
            None to send the request, a `Rejection`, or a `DirectResponse` for the client. The first rejection counts, else the first
            response.
        """


class TerminationCause(StrEnum):
    """The cause that ended a request, in `ResponseEnd.cause`."""

    NATURAL = "natural"
    """The response is complete, whatever its status."""
    CLIENT_DISCONNECT = "client-disconnect"
    """The client left before the response was complete."""
    ERROR = "error"
    """The gateway disconnected, endpick failed, or a plugin refused the request in `before_request`."""
    DRAINED = "drained"
    """The process shut down before the response was complete."""


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """Response headers and the endpoint that served.

    Attributes:
        status: HTTP status; 0 if the gateway sent none.
        headers: As the model server sent them, lower-case, pseudo headers included.
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
        cause: How the request ended.
        status: HTTP status; 0 without response headers.
        usage: None if there was none or the gateway does not send bodies.
        response_bytes: Body bytes seen.
        duration_seconds: Since the request headers.
        ttft_seconds: From the request headers to the first body byte; None without a body.
        endpoint: As the gateway reported, else the first pick; None if it has left.
        gateway_error: Why the gateway answered in place of the model server, in Envoy's words (`response.code_details`); `unnamed` for a
            503 of a gateway that does not give the cause; empty for an answer of the model server.
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
    """Observes responses. Override the methods of interest; the host calls no others."""

    kind: ClassVar[str] = "response-observer"

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str | None] | None:
        """Observe the response headers, and return headers to set on the response, or None.

        The director calls it once, when the response headers arrive. A header with value None is removed.
        """
        return None

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        """Observe the first body bytes of the response.

        The director calls it once, if the gateway sends bodies. `state.first_chunk_at` is the time.
        """

    def response_metadata(self, request: InferenceRequest, usage: Usage | None, state: CycleState) -> Metadata | None:
        """Return metadata for the gateway, or None.

        The director calls it at the last piece of the response, if the gateway sends bodies. `usage` is None if the response has no token
        counts.
        """
        return None

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Observe the end of a request.

        The director calls it exactly once for each request that `before_request` saw, however it ended.
        """


class SaturationDetector(Plugin[P]):
    """Measures how full the pool is, for shedding and flow control."""

    kind: ClassVar[str] = "saturation-detector"

    @abstractmethod
    def saturation(self, endpoints: Endpoints) -> float:
        """Return how full these endpoints are: 0 is idle, 1 and above is full; at least 1 for none.

        The director calls it for requests of negative priority, and refuses them at 1 and above. With flow control, it is called before
        dispatches instead, for the endpoints of each stage (prefill and decode) if they have roles. Plugins may call it through `RefersTo`.
        After a fault the pool counts as idle, unless `onFault` refuses requests.
        """
