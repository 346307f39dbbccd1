"""A request as the gateway hands it over, what is decided about it, and its life after that: the border between director and protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import Any, Final, Protocol

from endpick.api.request import Rejection
from endpick.api.request_control import Metadata
from endpick.host.boundary import Fault
from endpick.requests.long_body import Body


class BodyMode(IntEnum):
    """How the gateway hands over the bodies of one direction; values are those of Envoy's `BodySendMode`."""

    NONE = 0
    """Bodies stay in the gateway."""
    STREAMED = 1
    """Chunk by chunk, each answered by exactly one reply."""
    BUFFERED = 2
    """The whole body in one message."""
    BUFFERED_PARTIAL = 3
    """One message with as much of the body as fits the gateway's buffer."""
    FULL_DUPLEX_STREAMED = 4
    """Chunk by chunk, answered by any number of chunks whenever we like: the mode of the Endpoint Picker Protocol."""


@dataclass(frozen=True, slots=True)
class BodyModes:
    """What the gateway will send of a request and of its response."""

    request_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    early_request_body: bool = False
    """STREAMED only: the body comes although the headers have not been answered yet.

    Requests with trailers, and bodies larger than the gateway's buffer, then time out in the gateway: it sends the rest
    only after an answer that needs the rest.
    """

    sees_request_body: bool = field(init=False, default=True)
    """Whether a decision can look at the prompt."""
    sees_response_body: bool = field(init=False, default=True)
    """Whether `Exchange.response_chunk` will be called: without it there is no usage to read."""

    def __post_init__(self) -> None:
        readable = self.early_request_body if self.request_body is BodyMode.STREAMED else self.request_body is not BodyMode.NONE
        object.__setattr__(self, "sees_request_body", readable)
        object.__setattr__(self, "sees_response_body", self.response_body is not BodyMode.NONE)


EVERYTHING_SENT: Final = BodyModes()


class Structure:
    """How often there is what makes a JSON body long to parse, and large once it is parsed."""

    __slots__ = ("commas", "exact", "lists", "objects", "quotes")

    def __init__(self, commas: int, objects: int, lists: int, quotes: int, exact: bool) -> None:
        self.commas = commas
        self.objects = objects
        self.lists = lists
        self.quotes = quotes
        self.exact = exact
        """Whether nothing that stands within a string is counted."""


class IncomingRequest:
    """What `Decider.decide` decides about."""

    # Here and in `Routed`: the methods that `dataclass` would write stay Python where everything else is compiled, and cost most of a call.
    __slots__ = ("body", "body_modes", "headers", "received_at", "structure", "subset")

    def __init__(
        self,
        headers: Mapping[str, str],
        body: Body | None,
        subset: tuple[str, ...] | None,
        received_at: float,
        body_modes: BodyModes = EVERYTHING_SENT,
    ) -> None:
        self.headers = headers
        """Lower-case names, pseudo headers (`:path`, `:method`) included; of a repeated header the last value."""
        self.body = body
        """The whole body, or None: the request has none, or `body_modes` says that the gateway keeps it.

        Who needs a long one as bytes may put them in its place.
        """
        self.subset = subset
        """Addresses the gateway allows (see `requests.intake.within`); None: no restriction, (): nothing is allowed."""
        self.received_at = received_at
        """Seconds on the monotonic clock when the headers came."""
        self.body_modes = body_modes
        self.structure: Structure | None = None
        """What was counted of the body; None for a body that was not looked at."""


NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
"""No headers, or no metadata."""


class CloseCause(StrEnum):
    """Why an exchange ended."""

    END = "end"
    """Normally: an exchange whose response is complete; a stream that the gateway half-closed."""
    RESET = "reset"
    """The gateway gave the stream up; for an exchange: before the response was complete, because the client went away."""
    DISCONNECT = "disconnect"
    """The connection to the gateway broke."""
    ERROR = "error"
    """The stream broke a rule of the protocol, or we did."""
    DRAIN = "drain"
    """We are stopping and the grace period is over."""


class Exchange(Protocol):
    """One request's life after the decision; the session calls it in the order of the methods below.

    Nothing here may wait. An exception from one of them is logged and costs the request only what that call would have
    added, unless `response_chunk` has replaced a piece before: then the response can no longer be trusted, and the
    stream ends with an error.
    """

    @property
    def wants_chunks(self) -> bool:
        """Read once, after `response_headers`. False: pieces pass unseen, and `response_chunk` is called for the end only."""

    @property
    def rewrites(self) -> bool:
        """Read once, after `response_headers`. False: `response_chunk` answers None, and is not called for a piece without bytes."""

    @property
    def tells_metadata(self) -> bool:
        """Read once, at the end of the response. False: `response_metadata` has none, and is not called."""

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str | None]:
        """The model server has begun to answer.

        Args:
            headers: lower-case names, `:status` included.
            served: `ip:port` that the gateway says it used; None where it does not say.

        Returns:
            Headers to set on the response; those whose value is None are taken from it.
        """

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """A piece of the response body, as the gateway cut it.

        `end` is True exactly once, for the last piece, which is empty when something else ends the response (a separate
        end message, trailers); see `rewrites`. A response cut short has no end.

        Returns:
            None to forward the piece as it is, bytes to send in its place. They may be fewer, to hold back what may be
            the beginning of something (`"model":"x"` cut in two), and more the next time; with `end` everything held
            back must come out.
        """

    def response_unseen(self, size: int) -> bytes | None:
        """So many bytes in the midst of a piece of megabytes pass without being shown.

        Returns:
            What was held back and has to be sent before them; None for nothing.
        """

    def response_metadata(self) -> Metadata:
        """Dynamic metadata for the last message of the response; called once, after the last `response_chunk`."""

    def finish(self, cause: CloseCause) -> None:
        """The exchange is over: called exactly once, always, and last, also when the client went away before the response."""


class Revocable(Protocol):
    """A request in flight that may be taken back."""

    def connect(self, revoke: Callable[[], None]) -> None:
        """`revoke` has the gateway answer the client with an error, or cut the response off that has begun."""


class Routed:
    """Send the request to a model server."""

    __slots__ = ("body", "destinations", "dynamic_metadata", "exchange", "flight", "remove_headers", "scores", "set_headers")

    def __init__(
        self,
        destinations: tuple[str, ...],
        exchange: Exchange,
        set_headers: Mapping[str, str] = NOTHING,
        body: Body | None = None,
        dynamic_metadata: Metadata = NOTHING,
        remove_headers: tuple[str, ...] = (),
        scores: Mapping[str, float] | None = None,
        flight: Revocable | None = None,
    ) -> None:
        self.destinations = destinations
        """`ip:port`, an IPv6 address in brackets; best first, at least one, the others are fallbacks."""
        self.exchange = exchange
        self.set_headers = set_headers
        """Further headers for the model server."""
        self.body = body
        """The body to send instead; None: the bytes that came, untouched."""
        self.dynamic_metadata = dynamic_metadata
        """Namespaces beside the one that names the destination."""
        self.remove_headers = remove_headers
        """Headers that the request loses; one that is in `set_headers`, too, is set."""
        self.scores = scores
        """The weighted total of each candidate, by its address, if the gateway is to be told."""
        self.flight = flight
        """Told how the request can be taken back, where that may become necessary."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Answer the client with an error."""

    status: int
    """HTTP status: 400, 412, 429, 500, 503 …"""
    code: str
    """The name llm-d gives it: `BadRequest`, `ResourceExhausted`, `ServiceUnavailable`, `Internal` …"""
    message: str
    reason: str | None = None
    """Why the request was dropped: the client's `x-llm-d-request-dropped-reason`, e.g. `rejected-saturated`."""


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
"""The names llm-d gives to HTTP statuses."""

NO_CANDIDATES: Final = Refused(
    503, CODE_OF[503], "failed to find endpoint candidates for serving the request", reason="rejected-no-endpoints"
)
SATURATED: Final = Refused(429, CODE_OF[429], "system saturated, sheddable request dropped", reason="rejected-saturated")
MAX_NAME_CHARACTERS: Final = 1024
"""Of a model, a cache salt and a fairness id, unless told otherwise: clients choose them, plugins remember and hash them, metrics and
answers repeat them."""
LONG_NAME: Final = Refused(
    400,
    CODE_OF[400],
    "the model, the cache salt or the fairness id has more characters than --max-name-length allows",
)
NO_MODEL: Final = Refused(400, CODE_OF[400], "model not found in request body")
NOTHING_CACHED: Final = Refused(
    412, CODE_OF[412], "no endpoint has the beginning of this prompt in its cache, and the client asked for that"
)


EVICTED: Final = Refused(429, CODE_OF[429], "request evicted by flow control", reason="evicted")


_LONGEST_MESSAGE: Final = 4096
_LONGEST_REASON: Final = 256
"""Of a refusal of a plugin, in characters: the client reads a sentence, and no gateway takes megabytes in place of an answer."""


def plain_rejection(rejection: Rejection) -> Rejection:
    """A copy that nothing but endpick holds, checked anew: a subclass may answer with code of its own, and frozen fields can be changed.

    Raises:
        Anything: a field is not what it has to be, or raises when it is looked at.
    """
    message, reason = str.__str__(rejection.message), str.__str__(rejection.reason)
    return Rejection(message[:_LONGEST_MESSAGE], int.__int__(rejection.status), reason[:_LONGEST_REASON])


def refused(why: Rejection | Fault) -> Refused:
    """The answer to the client: what a plugin decided, or that one failed and the operator wants the request refused then."""
    if isinstance(why, Fault):
        return Refused(500, CODE_OF[500], f"plugin '{why.instance}' failed")
    return Refused(why.status, CODE_OF.get(why.status, "Rejected"), str.__str__(why.message), why.reason or None)


Decision = Routed | Refused


class Decider(Protocol):
    """Decides about requests; one serves all streams."""

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        """Route or refuse, now or, when a producer has to wait for something, later."""
