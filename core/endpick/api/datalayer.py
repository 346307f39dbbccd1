"""Data sources and data collectors. They run on the event loop of requests: keep computations short."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Generic

from typing_extensions import TypeVar

from endpick.api.endpoint import Endpoint
from endpick.api.plugin import ColumnWriter, P, Plugin

Payload = TypeVar("Payload", default=object)


class DataSource(Plugin[P], Generic[P, Payload]):
    """Fetches or receives payloads for data collectors.

    Subclass one of its subclasses with the payload's type: `class Temperatures(PollingSource[TemperatureParameters, Reading])`.
    """

    kind: ClassVar[str] = "data-source"

    default_collectors: ClassVar[tuple[str, ...]] = ()
    """Plugin types added if no collector is configured."""


class PollingSource(DataSource[P, Payload]):
    """Polls each endpoint at an interval."""

    interval_seconds: float | None = None
    """Seconds between polls of one endpoint; None follows `--refresh-metrics-interval`."""
    repeats_payload: ClassVar[bool] = False
    """True if `poll` returns the same object while nothing changes; idle endpoints are then polled less often unless an interval is set."""
    timeout_seconds: float = 1.0
    """A longer poll is cancelled and counted as an error."""

    @abstractmethod
    async def poll(self, endpoint: Endpoint) -> Payload:
        """Fetch one payload from one endpoint. Raises Unavailable if there is none: a poll error; columns keep their values."""


class StreamSource(DataSource[P, Payload]):
    """Keeps a connection to each endpoint, or receives pushes."""

    @abstractmethod
    async def watch(self, endpoint: Endpoint, publish: Callable[[Payload], None]) -> None:
        """Publish payloads of one endpoint until cancelled. Restarted with back-off when it returns or raises."""


class PollingPoolSource(DataSource[P, Payload]):
    """Polls data about the whole pool at an interval."""

    interval_seconds: float = 10.0
    """Seconds between starts of polls."""
    timeout_seconds: float = 5.0
    """A longer poll is cancelled and counted as an error."""

    @abstractmethod
    async def poll_pool(self) -> Payload:
        """Fetch one payload, even for an empty pool; after failures with growing delays.

        Raises Unavailable if there is none: a poll error; values stay.
        """


class PoolSource(DataSource[P, Payload]):
    """Receives data about the whole pool: a price, a carbon intensity, a feature flag."""

    @abstractmethod
    async def watch_pool(self, publish: Callable[[Payload], None]) -> None:
        """Publish payloads until cancelled. Restarted with back-off when it returns or raises."""


class EndpointChange(enum.StrEnum):
    """A change of the pool's membership."""

    ADDED = "added"
    """It joined the pool. A reload announces every endpoint again."""
    UPDATED = "updated"
    """Its labels changed; an endpoint with a new address is removed and added."""
    REMOVED = "removed"
    """It left the pool; values written for it are dropped."""


@dataclass(frozen=True, slots=True)
class EndpointEvent:
    """One change of an endpoint; the payload of `endpoint-notification-source`."""

    change: EndpointChange
    endpoint: Endpoint


class EndpointEventSource(DataSource[P, Payload]):
    """Delivers a payload when an endpoint joins, changes or leaves the pool."""

    @abstractmethod
    def notify(self, event: EndpointEvent) -> Payload | None:
        """Return the payload about this endpoint, or None.

        Called for every endpoint at start, then for each change before any request sees it. It must not block. Raises
        Unavailable if there is no payload: a poll error.
        """


class DataCollector(Plugin[P], Generic[P, Payload]):
    """Writes the columns in `produces` from payloads; llm-d calls it an extractor.

    The second generic argument is the type of payload to read; default: any.
    """

    kind: ClassVar[str] = "data-collector"

    default_source: ClassVar[str | None] = None
    """Plugin type added if no source feeds it."""

    @abstractmethod
    def collect(self, payload: Payload, writer: ColumnWriter) -> None:
        """Write the values of one payload. Leave missing values unwritten, so that their age grows.

        Raises Unavailable if required values are missing: a collect error, logged once per interval.
        """
