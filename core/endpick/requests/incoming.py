"""One HTTP request as the gateway handed it over, before anything has parsed it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum


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
class Delivery:
    """What the gateway will send of a request and of its response."""

    request_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    response_body: BodyMode = BodyMode.FULL_DUPLEX_STREAMED
    early_request_body: bool = False
    """STREAMED only: the body comes although the headers have not been answered yet.

    Requests with trailers, and bodies larger than the gateway's buffer, then time out in the gateway: it sends the rest
    only after an answer that needs the rest.
    """

    @property
    def sees_request_body(self) -> bool:
        """Whether a decision can look at the prompt."""
        if self.request_body is BodyMode.STREAMED:
            return self.early_request_body
        return self.request_body is not BodyMode.NONE

    @property
    def sees_response_body(self) -> bool:
        """Whether `Exchange.response_chunk` will be called: without it there is no usage to read."""
        return self.response_body is not BodyMode.NONE


@dataclass(frozen=True, slots=True)
class IncomingRequest:
    """What `Director.decide` decides about."""

    headers: Mapping[str, str]
    """Lower-case names, pseudo headers (`:path`, `:method`) included; of a repeated header the last value."""
    body: bytes | None
    """The whole body, or None: the request has none, or `delivery` says that the gateway keeps it."""
    subset: tuple[str, ...] | None
    """Addresses the gateway allows (see `requests.subset`); None: no restriction, (): nothing is allowed."""
    received_at: float
    """Seconds on the monotonic clock when the headers came."""
    delivery: Delivery = Delivery()
