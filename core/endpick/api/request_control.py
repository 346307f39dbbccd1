"""The kinds around scheduling: what happens to a request before a profile runs, and after.

Order for one request: parse → request headers → candidates → shed → candidate filters → produce → admit → schedule → pre-request →
response hooks.
Only `produce` may await.
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
from endpick.api.request import InferenceRequest, ParsedRequest, Rejection, Usage
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState, ScoringState


class Parser(Plugin[P]):
    """Reads request bodies of some API, and usage from its responses."""

    kind: ClassVar[str] = "parser"

    claims: ClassVar[tuple[str, ...]] = ()
    """Path suffixes this parser is for; the longest match among all parsers wins. None: a fallback for every path.

    A suffix begins with a whole segment of the path, or, when it begins with a dot, with a part of the name of a gRPC service."""

    reads_usage: ClassVar[bool] = False
    """True when `usage` can find token counts, so that response bodies are worth looking at."""

    usage_mark: ClassVar[bytes] = b'"usage'
    """What stands in every piece of an answer that has token counts; other pieces are not shown to `usage`. Empty: all are shown."""

    @abstractmethod
    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Read a complete request body. Called once per request; malformed input is a `Rejection` with status 400, never an exception.

        `endpick serve` has large bodies parsed by another process, which has an instance of its own with the same parameters: the answer
        must follow from arguments and parameters alone, and its prompt is rendered there. `rewrite_model` is then called there, too.
        """

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """The body with another model name, changing no other byte where that can be helped. Called only when the names differ."""
        return body

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """Token counts in a response body; None when it has none.

        Args:
            body: The whole of it or, when `streaming`, one or more complete server-sent events or gRPC frames.
            streaming: Called for each piece of the answer as it passes. A later answer of this method counts, and what it leaves at 0 or
                None is taken from those before: APIs may tell prompt and completion in different events.
        """
        return None


class RequestHeaderProcessor(Plugin[P]):
    """Reads the headers of a request before anything is decided about it."""

    kind: ClassVar[str] = "request-header-processor"

    @abstractmethod
    def request_headers(self, request: InferenceRequest, state: CycleState) -> Rejection | None:
        """Leave what the headers say with `state.put`, or refuse the request; called before shedding, without any candidates.

        All instances run in configuration order until one refuses. What one leaves under `AGENT_IDENTITY` becomes the request's
        `fairness_id` for all that follows, where the client sent no fairness header.
        """


class CandidateFilter(Plugin[P]):
    """Narrows the candidates once per request, before anything is produced for them."""

    kind: ClassVar[str] = "candidate-filter"

    @abstractmethod
    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        """Keep some of the candidates. Every candidate filter sees the same input; what all keep remains. None left: 503."""


class DataProducer(Plugin[P]):
    """Prepares per-request data before scheduling; names it in `produces`."""

    kind: ClassVar[str] = "data-producer"

    timeout_seconds: float = 0.4
    """An awaiting producer is cancelled after this long; the request continues without its data. Read once, after construction."""

    @abstractmethod
    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> Awaitable[None] | None:
        """Write the declared keys with `state.put` and `state.put_column`.

        Called once per request in subscription order. A plain method runs on the request path; an `async def` is awaited, and every such
        request then costs a task. Raising is a fault; the request continues and consumers see missing data.
        """


class Admitter(Plugin[P]):
    """Says whether a request is served at all."""

    kind: ClassVar[str] = "admitter"

    @abstractmethod
    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        """None admits; the first rejection ends the request."""


MetadataValue: TypeAlias = str | float | bool
Metadata: TypeAlias = Mapping[str, Mapping[str, MetadataValue]]
"""Dynamic metadata for the gateway: namespace → key → value. The gateway's access log, rate limits and other filters read it."""


class UpstreamHeaders(Protocol):
    """Headers the request will carry to the model server, and metadata that goes to the gateway with the decision."""

    def set(self, name: str, value: str) -> None:
        """Set one header; the name is lower-cased. Headers that endpick owns (destination, content-length) are refused with ValueError.

        Raises:
            TypeError: name or value is no string.
        """

    def remove(self, name: str) -> None:
        """Have the request lose a header, whatever the client or another plugin put there; a later `set` brings it back.

        Raises:
            TypeError: the name is no string.
            ValueError: as `set`.
        """

    def set_metadata(self, namespace: str, key: str, value: MetadataValue) -> None:
        """Set one entry of the gateway's dynamic metadata; the destination itself cannot be replaced.

        Raises:
            TypeError: namespace or key is no string, or the value is neither string, number nor boolean.
        """


class PreRequest(Plugin[P]):
    """Runs after the decision, before the request goes to the model server."""

    kind: ClassVar[str] = "pre-request"

    @abstractmethod
    def before_request(
        self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState
    ) -> Rejection | None:
        """Note the decision, or add headers. All instances run; the first rejection refuses the request."""


class TerminationCause(StrEnum):
    """How a response ended."""

    NATURAL = "natural"
    CLIENT_DISCONNECT = "client-disconnect"
    ERROR = "error"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The response headers as the model server sent them, and who served."""

    status: int
    headers: Mapping[str, str]
    endpoint: Endpoint | None
    """The endpoint that served, as the gateway reported it, else the first picked; None when it has left the pool."""
    served: str | None = None
    """`host:port` that the gateway says has served; None where it does not say."""


@dataclass(frozen=True, slots=True)
class ResponseEnd:
    """How one request ended, told exactly once for every request that was sent anywhere.

    Attributes:
        cause: See `TerminationCause`.
        status: HTTP status; 0 when no response headers were seen.
        usage: Token counts; None when the response had none or the gateway does not send bodies.
        response_bytes: Body bytes seen.
        duration_seconds: From request headers to here.
        ttft_seconds: From request headers to the first body byte; None when no body was seen.
    """

    cause: TerminationCause
    status: int
    usage: Usage | None
    response_bytes: int
    duration_seconds: float
    ttft_seconds: float | None


class ResponseObserver(Plugin[P]):
    """Watches responses."""

    kind: ClassVar[str] = "response-observer"

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str | None] | None:
        """Response headers have arrived. May return headers to set on the response; one whose value is None is taken from it."""
        return None

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        """The first body bytes have arrived; not called when the gateway does not send bodies."""

    def response_metadata(self, request: InferenceRequest, usage: Usage | None, state: CycleState) -> Metadata | None:
        """The last piece of the response has been seen. May return metadata that reaches the gateway with it.

        Not called when the gateway does not send bodies, or when the response is cut short.
        """
        return None

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """The request is over, however it ended. Called exactly once for each request that `before_request` saw."""


class SaturationDetector(Plugin[P]):
    """Says how full the pool is."""

    kind: ClassVar[str] = "saturation-detector"

    @abstractmethod
    def saturation(self, endpoints: Endpoints) -> float:
        """0 is idle, 1 and above is full: requests of negative priority are shed then. No endpoints at all counts as 1."""
