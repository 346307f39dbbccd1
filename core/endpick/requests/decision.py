"""What is decided about a request, and the life of the request after that: the border between director and protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from endpick.requests.incoming import IncomingRequest

Metadata = Mapping[str, Mapping[str, str | float | bool]]
"""Dynamic metadata for the gateway: namespace → key → value."""


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

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str]:
        """The model server has begun to answer.

        Args:
            headers: lower-case names, `:status` included.
            served: `ip:port` that the gateway says it used; None where it does not say.

        Returns:
            Headers to set on the response.
        """

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        """A piece of the response body, as the gateway cut it.

        `end` is True exactly once, for the last piece, which is empty when something else ends the response (a separate
        end message, trailers). A response cut short has no end.

        Returns:
            None to forward the piece as it is, bytes to send in its place. They may be fewer, to hold back what may be
            the beginning of something (`"model":"x"` cut in two), and more the next time; with `end` everything held
            back must come out.
        """

    def response_metadata(self) -> Metadata:
        """Dynamic metadata for the last message of the response; called once, after `response_chunk` with `end`."""

    def finish(self, cause: CloseCause) -> None:
        """The exchange is over: called exactly once, always, and last, also when the client went away before the response."""


@dataclass(frozen=True, slots=True)
class Routed:
    """Send the request to a model server."""

    destinations: tuple[str, ...]
    """`ip:port`, an IPv6 address in brackets; best first, at least one, the others are fallbacks."""
    exchange: Exchange
    set_headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers for the model server."""
    body: bytes | None = None
    """The body to send instead; None: the bytes that came, untouched."""
    dynamic_metadata: Metadata = field(default_factory=dict)
    """Namespaces beside the one that names the destination."""


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


Decision = Routed | Refused


class Director(Protocol):
    """Decides about requests; one serves all streams."""

    def decide(self, incoming: IncomingRequest) -> Decision | Awaitable[Decision]:
        """Route or refuse, now or, when a producer has to wait for something, later."""
