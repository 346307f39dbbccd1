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

    Subclass `PollingSource`, `StreamSource`, `PollingPoolSource`, `PoolSource` or `EndpointEventSource` with the payload's type:
    `class Temperatures(PollingSource[TemperatureParameters, Reading])`. The data layer runs a source if at least one collector reads its
    payloads.
    """

    kind: ClassVar[str] = "data-source"

    default_collectors: ClassVar[tuple[str, ...]] = ()
    """Plugin types of collectors that the planner adds if the source's entry in `dataLayer.sources` names none."""


class PollingSource(DataSource[P, Payload]):
    """Polls each endpoint at an interval. The data layer polls endpoints concurrently."""

    interval_seconds: float | None = None
    """Seconds between polls of one endpoint, at least 0.05; None follows `--refresh-metrics-interval`. Above 3000 polls per second in
    total, the data layer stretches all intervals.
    """
    repeats_payload: ClassVar[bool] = False
    """True if `poll` returns the same object while nothing changes. If `interval_seconds` is None, the data layer then polls idle endpoints
    less often.
    """
    timeout_seconds: float = 1.0
    """Seconds after which the data layer cancels a poll and counts an error."""

    @abstractmethod
    async def poll(self, endpoint: Endpoint) -> Payload:
        """Fetch one payload from one endpoint.

        The data layer calls it at each interval, and passes the payload to every collector of the source. After more than five failures in
        a row the interval doubles with each, up to one second.

        Returns:
            The payload, or None if there is nothing to collect.

        Raises:
            Unavailable: The endpoint has no data. Counts as a poll error, as any other exception does; columns keep their values.
        """


class StreamSource(DataSource[P, Payload]):
    """Keeps a connection to each endpoint, or receives pushes from it."""

    @abstractmethod
    async def watch(self, endpoint: Endpoint, publish: Callable[[Payload], None]) -> None:
        """Publish the payloads of one endpoint until cancelled.

        The data layer starts it in a task when the endpoint joins, and cancels it when the endpoint leaves or its address changes.
        `publish` passes a payload to every collector before it returns. If the method returns or raises, the data layer counts a poll error
        and calls it again after 0.5 to 30 seconds.
        """


class PollingPoolSource(DataSource[P, Payload]):
    """Polls data about the whole pool at an interval."""

    interval_seconds: float = 10.0
    """Seconds from the start of one poll to the start of the next, at least 0.05."""
    timeout_seconds: float = 5.0
    """Seconds after which the data layer cancels a poll and counts an error."""

    @abstractmethod
    async def poll_pool(self) -> Payload:
        """Fetch one payload about the whole pool.

        The data layer calls it at each interval, even for an empty pool. After a failure the next poll comes after one second, or after the
        interval if that is shorter; the delay doubles with each failure, up to 30 seconds or the interval if that is longer.

        Returns:
            The payload, or None if there is nothing to collect.

        Raises:
            Unavailable: There is no data. Counts as a poll error, as any other exception does; values stay.
        """


class PoolSource(DataSource[P, Payload]):
    """Receives data about the whole pool: a price, a carbon intensity, a feature flag."""

    @abstractmethod
    async def watch_pool(self, publish: Callable[[Payload], None]) -> None:
        """Publish payloads about the whole pool until cancelled.

        The data layer runs it in one task. `publish` passes a payload to every collector before it returns. If the method returns or
        raises, the data layer counts a poll error and calls it again after 0.5 to 30 seconds.
        """


class EndpointChange(enum.StrEnum):
    """A change of the pool's membership, reported by `EndpointEvent`."""

    ADDED = "added"
    """The endpoint joined the pool. A reload announces every endpoint again."""
    UPDATED = "updated"
    """The endpoint's labels changed. An endpoint with a new address is removed and added instead."""
    REMOVED = "removed"
    """The endpoint left the pool. The data layer drops values written for it."""


@dataclass(frozen=True, slots=True)
class EndpointEvent:
    """One change of an endpoint; the payload of `endpoint-notification-source`.

    Attributes:
        change: Whether the endpoint joined, changed or left.
        endpoint: The endpoint after the change; for `REMOVED`, the endpoint that left.
    """

    change: EndpointChange
    endpoint: Endpoint


class EndpointEventSource(DataSource[P, Payload]):
    """Delivers a payload when an endpoint joins, changes or leaves the pool."""

    @abstractmethod
    def notify(self, event: EndpointEvent) -> Payload | None:
        """Return the payload about an endpoint that joined, changed or left.

        The data layer calls it for every endpoint at start, then for each change before any request sees the change. The method must not
        block. The payload goes to every collector of the source.

        Returns:
            The payload, or None if there is nothing to collect.

        Raises:
            Unavailable: There is no payload. Counts as a poll error, as any other exception does.
        """


class DataCollector(Plugin[P], Generic[P, Payload]):
    """Writes the columns in `produces` from payloads; llm-d calls it an extractor.

    The second generic argument is the type of payload to read; default: any. The planner refuses to bind it to a source of another payload
    type.
    """

    kind: ClassVar[str] = "data-collector"

    default_source: ClassVar[str | None] = None
    """Plugin type of the source that the planner binds to the collector if `dataLayer.sources` binds none."""

    @abstractmethod
    def collect(self, payload: Payload, writer: ColumnWriter) -> None:
        """Write the values of one payload.

        The data layer calls it for each payload of each source that feeds the collector. `writer.endpoint` is the payload's endpoint, or
        None for a pool-wide payload. Leave missing values unwritten, so that their age grows.

        Raises:
            Unavailable: Required values are missing. Counts as a collect error, as any other exception does; the host logs it once per
                interval.
        """
