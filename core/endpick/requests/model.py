"""The values that pass between the protocol and the director: a request, the decision, and the exchange that follows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

from endpick.api.request import Rejection
from endpick.api.request_control import Metadata
from endpick.host.boundary import Fault


class BodyMode(IntEnum):
    """How the gateway sends the bodies of one direction. The values are those of Envoy's `BodySendMode`."""

    NONE = 0
    """Bodies stay in the gateway."""
    STREAMED = 1
    """Chunk by chunk; each chunk gets exactly one reply."""
    BUFFERED = 2
    """The whole body in one message."""
    BUFFERED_PARTIAL = 3
    """One message with as much of the body as fits the gateway's buffer."""
    FULL_DUPLEX_STREAMED = 4
    """Chunk by chunk, answered with any number of chunks at any time: the mode of the Endpoint Picker Protocol."""


@dataclass(frozen=True, slots=True)
class BodyModes:
    """How the gateway sends the request body and the response body."""

    request_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    early_request_body: bool = False
    """STREAMED only: the gateway sends the body before the headers are answered.

    Requests with trailers, and bodies larger than the gateway's buffer, then time out in the gateway, because it waits for an
    answer before it sends the rest.
    """

    sees_request_body: bool = field(init=False, default=True)
    """True when a decision can use the prompt."""
    sees_response_body: bool = field(init=False, default=True)
    """True when `Exchange.response_chunk` is called; without it there is no usage to read."""

    def __post_init__(self) -> None:
        readable = self.early_request_body if self.request_body is BodyMode.STREAMED else self.request_body is not BodyMode.NONE
        object.__setattr__(self, "sees_request_body", readable)
        object.__setattr__(self, "sees_response_body", self.response_body is not BodyMode.NONE)


EVERYTHING_SENT: Final = BodyModes()


class IncomingRequest:
    """A request as the gateway sent it."""

    # Not a dataclass, here and in `Routed`: mypyc leaves a generated `__init__` interpreted, and that is most of the cost of a call.
    __slots__ = ("body", "body_modes", "headers", "received_at", "subset")

    def __init__(
        self,
        headers: Mapping[str, str],
        body: bytes | None,
        subset: tuple[str, ...] | None,
        received_at: float,
        body_modes: BodyModes = EVERYTHING_SENT,
    ) -> None:
        """Keep the parts.

        Args:
            headers: Lower-case names, including pseudo headers such as `:path`; the last value of a repeated header.
            body: The whole body. None when the request has none, or when the gateway keeps it (see `body_modes`).
            subset: Addresses the gateway allows (see `requests.intake.within`). None allows all, () allows nothing.
            received_at: Monotonic seconds when the headers arrived.
            body_modes: What the gateway sends.
        """
        self.headers = headers
        self.body = body
        self.subset = subset
        self.received_at = received_at
        self.body_modes = body_modes


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
"""No headers, or no metadata."""


class CloseCause(StrEnum):
    """Why an exchange ended."""

    END = "end"
    """The response is complete, or the gateway half-closed the stream."""
    RESET = "reset"
    """The gateway reset the stream; for an exchange: the client left before the response was complete."""
    DISCONNECT = "disconnect"
    """The connection to the gateway broke."""
    ERROR = "error"
    """The stream violated the protocol, or endpick failed."""
    DRAIN = "drain"
    """endpick is stopping and the grace period is over."""


class Exchange(Protocol):
    """One request's life after the decision. The session calls the methods in the order below; none may block.

    If one raises, the exception is logged and the response passes unchanged. The stream fails only if `response_chunk` has already
    replaced a chunk, because the rest would not match.
    """

    @property
    def wants_chunks(self) -> bool:
        """Read once, after `response_headers`. False: `response_chunk` is called for the end only."""

    @property
    def rewrites(self) -> bool:
        """Read once, after `response_headers`. False: `response_chunk` always returns None, and is not called for empty chunks."""

    @property
    def adds_metadata(self) -> bool:
        """Read once, at the end of the response. False: `response_metadata` is not called."""

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str | None]:
        """Handle the response headers.

        Args:
            headers: Lower-case names, including `:status`.
            served: `ip:port` of the endpoint the gateway used; None when it does not report one.

        Returns:
            Headers to set on the response; those with value None are removed.
        """

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """Handle a chunk of the response body.

        `end` is True exactly once, for the last chunk, which may be empty. A response that was cut off has no end.

        Returns:
            None to forward the chunk unchanged, else the bytes to send in its place. They may be shorter, to hold back a possible start of
            a match; with `end`, everything held back must be returned.
        """

    def response_metadata(self) -> Metadata:
        """Dynamic metadata for the last message of the response; called once, after the last `response_chunk`."""

    def finish(self, cause: CloseCause) -> None:
        """End the exchange: called exactly once and last, even if no response arrived."""


class Revocable(Protocol):
    """A request in flight that may be evicted."""

    def connect(self, revoke: Callable[[], None]) -> None:
        """Set the callback that makes the gateway answer with an error, or cut off a response that has started."""


class Routed:
    """The decision to send a request to a model server."""

    __slots__ = ("body", "destinations", "dynamic_metadata", "exchange", "flight", "remove_headers", "scores", "set_headers")

    def __init__(
        self,
        destinations: tuple[str, ...],
        exchange: Exchange,
        set_headers: Mapping[str, str] = NOTHING,
        body: bytes | None = None,
        dynamic_metadata: Metadata = NOTHING,
        remove_headers: tuple[str, ...] = (),
        scores: Mapping[str, float] | None = None,
        flight: Revocable | None = None,
    ) -> None:
        """Keep the parts.

        Args:
            destinations: `ip:port`, IPv6 in brackets; at least one, best first, the rest are fallbacks.
            exchange: Follows the response.
            set_headers: Further headers for the model server.
            body: The body to send instead; None forwards the original bytes.
            dynamic_metadata: Namespaces besides the destination's.
            remove_headers: Headers to remove, unless they are in `set_headers`.
            scores: Weighted total of each candidate by address, if the gateway wants them.
            flight: Set when flow control may evict the request.
        """
        self.destinations = destinations
        self.exchange = exchange
        self.set_headers = set_headers
        self.body = body
        self.dynamic_metadata = dynamic_metadata
        self.remove_headers = remove_headers
        self.scores = scores
        self.flight = flight


@dataclass(frozen=True, slots=True)
class Refused:
    """The decision to answer the client with an error.

    Attributes:
        status: HTTP status.
        code: llm-d's name of the status, such as `ResourceExhausted`.
        message: Shown to the client.
        reason: Value of `x-llm-d-request-dropped-reason`, such as `rejected-saturated`.
    """

    status: int
    code: str
    message: str
    reason: str | None = None


class RequestRefused(Exception):  # noqa: N818 - a decision, not an error
    """Raised by a step of the pipeline that refuses the request."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.message)
        self.refused = refused


CODE_OF: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "BadRequest",
        401: "Unauthorized",
        403: "Forbidden",
        404: "NotFound",
        412: "PreconditionFailed",
        413: "PayloadTooLarge",
        429: "ResourceExhausted",
        500: "Internal",
        503: "ServiceUnavailable",
    }
)
"""llm-d's names of HTTP statuses."""

NO_CANDIDATES: Final = Refused(
    503, CODE_OF[503], "failed to find endpoint candidates for serving the request", reason="rejected-no-endpoints"
)
SATURATED: Final = Refused(429, CODE_OF[429], "system saturated, sheddable request dropped", reason="rejected-saturated")
MAX_NAME_CHARACTERS: Final = 1024
"""Limit for the model, the cache salt and the fairness id: clients choose them, and plugins and metrics store them."""
LONG_NAME: Final = Refused(
    400, CODE_OF[400], f"the model, the cache salt or the fairness id is longer than {MAX_NAME_CHARACTERS} characters"
)
NO_MODEL: Final = Refused(400, CODE_OF[400], "model not found in request body")
NOTHING_CACHED: Final = Refused(412, CODE_OF[412], "no endpoint has the prefix of this prompt cached, but the client requires it")
EVICTED: Final = Refused(429, CODE_OF[429], "request evicted by flow control", reason="evicted")


def refused(why: Rejection | Fault) -> Refused:
    """The answer to the client for a plugin's rejection, or for a fault whose `onFault` refuses."""
    if isinstance(why, Fault):
        return Refused(500, CODE_OF[500], f"plugin '{why.instance}' failed")
    return Refused(why.status, CODE_OF.get(why.status, "Rejected"), why.message, why.reason or None)


Decision = Routed | Refused


class Decider(Protocol):
    """Decides about requests; one instance serves all streams."""

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        """Route or refuse; an awaitable when flow control or a producer has to wait."""
