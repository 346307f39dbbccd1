"""The values between the protocol and the director: request, decision and exchange."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

from endpick.api.request import DirectResponse, Rejection
from endpick.api.request_control import Metadata
from endpick.host.boundary import Fault


class BodyMode(IntEnum):
    """Envoy's `BodySendMode`: how much of a body Envoy sends to the picker."""

    NONE = 0
    STREAMED = 1
    BUFFERED = 2
    BUFFERED_PARTIAL = 3
    FULL_DUPLEX_STREAMED = 4


@dataclass(frozen=True, slots=True)
class BodyModes:
    """The body modes that Envoy announces for a stream, and whether the picker sees each body."""

    request_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    early_request_body: bool = False  # STREAMED only: the body precedes the answer to the headers

    sees_request_body: bool = field(init=False, default=True)
    sees_response_body: bool = field(init=False, default=True)

    def __post_init__(self) -> None:
        readable = self.early_request_body if self.request_body is BodyMode.STREAMED else self.request_body is not BodyMode.NONE
        object.__setattr__(self, "sees_request_body", readable)
        object.__setattr__(self, "sees_response_body", self.response_body is not BodyMode.NONE)


EVERYTHING_SENT: Final = BodyModes()


class IncomingRequest:
    """A request as received from the gateway, before a parser has read it."""

    # No dataclass, nor is `Routed`: mypyc leaves a generated `__init__` interpreted, most of the cost of a call.
    __slots__ = ("body", "body_modes", "headers", "received_at", "subset", "unread")

    def __init__(
        self,
        headers: Mapping[str, str],
        body: bytes | None,
        subset: tuple[str, ...] | None,
        received_at: float,
        body_modes: BodyModes = EVERYTHING_SENT,
        unread: bool = False,
    ) -> None:
        """Header names are lower-case. `body` is None if absent, kept by the gateway or `unread`. `subset` None allows all endpoints."""
        self.headers = headers
        self.body = body
        self.subset = subset
        self.received_at = received_at
        self.body_modes = body_modes
        self.unread = unread  # the body passes after the decision


def is_upgrade(headers: Mapping[str, str]) -> bool:
    """Return True for CONNECT and for upgrades to another protocol than HTTP, such as WebSocket."""
    if headers.get(":method") == "CONNECT" or ":protocol" in headers:
        return True
    protocol = headers.get("upgrade")
    return protocol is not None and not protocol.lower().startswith("h2c") and "upgrade" in headers.get("connection", "").lower()


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class CloseCause(StrEnum):
    """The reason why an exchange ended, as reported by the protocol layer."""

    END = "end"
    RESET = "reset"  # the client left early
    DISCONNECT = "disconnect"
    ERROR = "error"
    DRAIN = "drain"


class Exchange(Protocol):
    """Follows the response to a routed request. Methods are called in this order; none may block."""

    @property
    def wants_chunks(self) -> bool:
        """If False, `response_chunk` is called only at the end of the response."""

    @property
    def rewrites(self) -> bool:
        """If False, `response_chunk` never changes a chunk and receives no empty ones."""

    @property
    def adds_metadata(self) -> bool:
        """If False, `response_metadata` is not called, and the response has no dynamic metadata."""

    def response_headers(
        self, headers: Mapping[str, str], served: str | None, gateway_error: str | None = None
    ) -> Mapping[str, str | None]:
        """Return the headers to set, or to remove if the value is None.

        `served` is the reported `ip:port`. `gateway_error` is the reason why the gateway answered by itself: "" if it did not, None if it
        does not report this.
        """

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """Return a replacement for the chunk, or None to keep it; `end` marks the last chunk."""

    def response_metadata(self) -> Metadata:
        """Return the dynamic metadata that the last message of the response carries."""

    def finish(self, cause: CloseCause) -> None:
        """Release the request's resources. Called exactly once, after all other methods."""


class Revocable(Protocol):
    """A request in flight that flow control may evict."""

    def connect(self, revoke: Callable[[], None]) -> None:
        """Register `revoke`, which resets the request's stream when flow control evicts it."""


class Routed:
    """The decision to send the request to a model server."""

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
        """`destinations` are `ip:port`, best first. `body` replaces the request's body unless it is None."""
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
    """The decision to answer with an error; `code` and `reason` are llm-d's names."""

    status: int
    code: str
    message: str
    reason: str | None = None


class RequestRefused(Exception):  # noqa: N818 - a decision, not an error
    """Carries a refusal out of the pipeline to `Director.decide`, which returns it."""

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
        415: "UnsupportedMediaType",
        429: "ResourceExhausted",
        500: "Internal",
        503: "ServiceUnavailable",
    }
)

NO_CANDIDATES: Final = Refused(
    503, CODE_OF[503], "failed to find endpoint candidates for serving the request", reason="rejected-no-endpoints"
)
SATURATED: Final = Refused(429, CODE_OF[429], "system saturated, sheddable request dropped", reason="rejected-saturated")
MAX_NAME_CHARACTERS: Final = 1024  # of names that plugins store
LONG_NAME: Final = Refused(
    400, CODE_OF[400], f"the model, the cache salt or the fairness id is longer than {MAX_NAME_CHARACTERS} characters"
)
NO_MODEL: Final = Refused(400, CODE_OF[400], "model not found in request body")
NOT_RESERVED: Final = Refused(500, CODE_OF[500], "no plugin reserves endpoints, but the client asks for a reservation")
NOTHING_CACHED: Final = Refused(412, CODE_OF[412], "no endpoint has the prefix of this prompt cached, but the client requires it")
EVICTED: Final = Refused(429, CODE_OF[429], "request evicted by flow control", reason="evicted")


def refused(why: Rejection | Fault) -> Refused:
    """Return the refusal for a plugin's rejection, or a 500 for its fault."""
    if isinstance(why, Fault):
        return Refused(500, CODE_OF[500], f"plugin '{why.instance}' failed")
    return Refused(why.status, CODE_OF.get(why.status, "Rejected"), why.message, why.reason or None)


Decision = Routed | Refused | DirectResponse


class Decider(Protocol):
    """Decides about requests on behalf of the protocol layer; `Director` implements it."""

    def wants_body(self, headers: Mapping[str, str]) -> bool:
        """Return False if the decision needs the headers only, although a body may follow."""

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        """Return the decision; it is awaitable if the request has to wait."""
