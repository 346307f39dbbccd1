"""The kinds around scheduling: what happens to a request before a profile runs, and after.

Order for one request: parse → candidates → screen → produce → admit → schedule → before_request → response hooks. Only `produce` may await.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import NoneType
from typing import ClassVar, Protocol

from endpick.api.checks import Kinds, check_fields
from endpick.api.endpoints import BoolArray, Endpoint, Endpoints
from endpick.api.plugin import Kind, P, Plugin
from endpick.api.request import NO_PROMPT, InferenceRequest, JSONObject, Prompt, Usage
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState, ScoringState

_REJECTION: Kinds = (("message", str), ("status", int), ("reason", str))
_PARSED_REQUEST: Kinds = (
    ("model", str),
    ("prompt", Prompt),
    ("streaming", bool),
    ("max_output_tokens", (int, NoneType)),
    ("cache_salt", str),
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a request is not served.

    Attributes:
        message: For the client.
        status: HTTP status: 400, 401, 403, 404, 412, 429 or 503.
        reason: Short machine-readable word for the `x-llm-d-request-dropped-reason` header, e.g. `rejected-saturated`.

    Raises:
        TypeError, ValueError: a field is not what it has to be; raised where the plugin makes the rejection.
    """

    message: str
    status: int = 429
    reason: str = ""

    def __post_init__(self) -> None:
        check_fields(self, _REJECTION)
        if not 400 <= self.status <= 599:
            raise ValueError(f"status of a Rejection must be an HTTP error, 400 to 599, not {self.status}")
        if not (self.reason.isascii() and self.reason.isprintable()):
            raise ValueError(f"reason of a Rejection must be fit for a header, not {self.reason!r}")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """What a parser read from a request body.

    Attributes:
        model: Empty when the body names none.
        prompt: Rendered lazily.
        streaming: The client asked for a streamed response.
        max_output_tokens: The client's limit, None when absent.
        cache_salt: Empty when absent.
        payload: The JSON object, None when the body was not decoded.
        needs_model: False for bodies that legitimately name no model.

    Raises:
        TypeError: a field is not what it has to be; raised where the parser makes it. What `payload` holds is not looked at.
    """

    model: str = ""
    prompt: Prompt = NO_PROMPT
    streaming: bool = False
    max_output_tokens: int | None = None
    cache_salt: str = ""
    payload: JSONObject | None = field(default=None, repr=False)
    needs_model: bool = True

    def __post_init__(self) -> None:
        check_fields(self, _PARSED_REQUEST)


class Parser(Plugin[P]):
    """Reads request bodies of some API, and usage from its responses."""

    kind: ClassVar[Kind] = Kind.PARSER

    claims: ClassVar[tuple[str, ...]] = ()
    """Path suffixes this parser is for; the longest match among all parsers wins. None: a fallback for every path."""

    reads_usage: ClassVar[bool] = False
    """True when `usage` can find token counts, so that response bodies are worth looking at."""

    @abstractmethod
    def parse(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest | Rejection:
        """Read a complete request body. Called once per request; malformed input is a `Rejection` with status 400, never an exception."""

    def rewrite_model(self, body: bytes, parsed: ParsedRequest, model: str) -> bytes:
        """The body with another model name, changing no other byte where that can be helped. Called only when the names differ."""
        return body

    def usage(self, body: bytes, streaming: bool) -> Usage | None:
        """Token counts in a response body or, when `streaming`, in one or more complete server-sent events; None when it has none."""
        return None


class Screener(Plugin[P]):
    """Narrows the candidates once per request, before anything is produced for them."""

    kind: ClassVar[Kind] = Kind.SCREENER

    @abstractmethod
    def screen(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray | Endpoints:
        """Keep some of the candidates. Every screener sees the same input; what all keep remains. None left: 503."""


class DataProducer(Plugin[P]):
    """Prepares per-request data before scheduling; declares it in `meta.produces`."""

    kind: ClassVar[Kind] = Kind.DATA_PRODUCER

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

    kind: ClassVar[Kind] = Kind.ADMITTER

    @abstractmethod
    def admit(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Rejection | None:
        """None admits; the first rejection ends the request."""


class UpstreamHeaders(Protocol):
    """Headers the request will carry to the model server."""

    def set(self, name: str, value: str) -> None:
        """Set one header; the name is lower-cased. Headers that endpick owns (destination, content-length) are refused with ValueError.

        Raises:
            TypeError: name or value is no string.
        """


class PreRequest(Plugin[P]):
    """Runs after the decision, before the request goes to the model server."""

    kind: ClassVar[Kind] = Kind.PRE_REQUEST

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

    kind: ClassVar[Kind] = Kind.RESPONSE_OBSERVER

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str] | None:
        """Response headers have arrived. May return headers to add to the response."""
        return None

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        """The first body bytes have arrived; not called when the gateway does not send bodies."""

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """The request is over, however it ended. Called exactly once for each request that `before_request` saw."""


class SaturationDetector(Plugin[P]):
    """Says how full the pool is."""

    kind: ClassVar[Kind] = Kind.SATURATION_DETECTOR

    @abstractmethod
    def saturation(self, endpoints: Endpoints) -> float:
        """0 is idle, 1 and above is full: requests of negative priority are shed then. No endpoints at all counts as 1."""
