"""The kinds of the data layer: endpoint discovery, data sources, and data collectors that turn payloads into columns.

They run beside requests, on the same event loop: whatever waits must be awaited, whatever computes must be short.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, Protocol

from typing_extensions import TypeVar

from endpick.api.endpoint import Endpoint
from endpick.api.plugin import ColumnWriter, P, Plugin

Payload = TypeVar("Payload", default=object)


class DataSource(Plugin[P], Generic[P, Payload]):
    """Brings payloads from outside.

    Subclass `PollingSource`, `StreamSource`, `PollingPoolSource`, `PoolSource` or `EndpointEventSource`.

    The second generic argument is the type of the payload: `class Temperatures(PollingSource[TemperatureParameters, Reading])`.
    """

    kind: ClassVar[str] = "data-source"

    default_collectors: ClassVar[tuple[str, ...]] = ()
    """Plugin types of the collectors that the host attaches to a source for which the document names none."""


class PollingSource(DataSource[P, Payload]):
    """Asks each endpoint at an interval."""

    interval_seconds: float | None = None
    """Seconds between polls of one endpoint; None follows `--refresh-metrics-interval`. Read once, after construction."""
    repeats_payload: ClassVar[bool] = False
    """Whether `poll` gives the very same object again exactly while nothing changes. An endpoint with nothing to do is then asked less
    often, unless the source has an interval of its own."""
    timeout_seconds: float = 1.0
    """The host cancels a poll that takes longer, and counts it."""

    @abstractmethod
    async def poll(self, endpoint: Endpoint) -> Payload:
        """Fetch one payload from one endpoint.

        Called from the collection loop, never twice at once for one endpoint; the host waits for `timeout_seconds` at most.

        Raises:
            Unavailable: the endpoint has nothing to give now; counted, the columns keep their values and grow older.
        """


class StreamSource(DataSource[P, Payload]):
    """Keeps a connection to each endpoint."""

    @abstractmethod
    async def watch(self, endpoint: Endpoint, publish: Callable[[Payload], None]) -> None:
        """Deliver payloads of one endpoint until cancelled. Called once per endpoint; restarted with back-off when it returns or raises."""


class PollingPoolSource(DataSource[P, Payload]):
    """Asks at an interval for something that belongs to the whole pool, or for a list that speaks of several endpoints."""

    interval_seconds: float = 10.0
    """Seconds from the start of one poll to the next. Read once, after construction."""
    timeout_seconds: float = 5.0
    """The host cancels a poll that takes longer, and counts it."""

    @abstractmethod
    async def poll_pool(self) -> Payload:
        """Fetch one payload.

        Called whether there are endpoints or not, never twice at once. After a failure it is called again with growing delays, soon at
        first, and at the interval once it succeeds. What its collectors wrote stays meanwhile, and grows older.

        Raises:
            Unavailable: there is nothing to have now; counted.
        """


class PoolSource(DataSource[P, Payload]):
    """Watches something that belongs to the whole pool: a price, a carbon intensity, a feature flag."""

    @abstractmethod
    async def watch_pool(self, publish: Callable[[Payload], None]) -> None:
        """Deliver payloads until cancelled. Called once; restarted with back-off when it returns or raises."""


class EndpointChange(enum.StrEnum):
    """What happened to an endpoint."""

    ADDED = "added"
    """It is in the pool. After a reload collectors hear so of every endpoint, also of those they know."""
    UPDATED = "updated"
    """Its labels changed. One that has moved to another address is another server: it is removed and added."""
    REMOVED = "removed"
    """It has left the pool; what is written about it now is dropped."""


@dataclass(frozen=True, slots=True)
class EndpointEvent:
    """One change of the pool: what `endpoint-notification-source` delivers.

    Attributes:
        change: What happened.
        endpoint: As it is now; for one that was removed, as it was.
    """

    change: EndpointChange
    endpoint: Endpoint


class EndpointEventSource(DataSource[P, Payload]):
    """Delivers something whenever an endpoint joins, changes or leaves the pool."""

    @abstractmethod
    def notify(self, event: EndpointEvent) -> Payload | None:
        """The payload about this endpoint; None for nothing.

        Called for every endpoint at start, then in the order of the changes and before any request sees them, so it must not block.

        Raises:
            Unavailable: there is nothing to say now; counted.
        """


class DataCollector(Plugin[P], Generic[P, Payload]):
    """Turns payloads into columns, which it names in `produces`; llm-d calls it an extractor.

    The second generic argument is the type of payload it reads; a collector without one reads any.
    """

    kind: ClassVar[str] = "data-collector"

    default_source: ClassVar[str | None] = None
    """Plugin type of the source that the host adds for a collector that no source feeds."""

    @abstractmethod
    def collect(self, payload: Payload, writer: ColumnWriter) -> None:
        """Write what the payload says.

        Called right after each payload of each source the collector is bound to. What is missing from the payload is left
        unwritten, so that its age shows.

        Raises:
            Unavailable: the payload holds nothing this collector wants; counted, logged once per interval.
        """


@dataclass(frozen=True, slots=True)
class ModelTarget:
    """One model that requests may be for instead, and how often, in proportion to the weights of the others."""

    model: str
    weight: int = 0


@dataclass(frozen=True, slots=True)
class ModelRewrite:
    """Requests for one of `models`, or for any model if there are none, are for one of `targets` instead; without targets they stay."""

    models: tuple[str, ...]
    targets: tuple[ModelTarget, ...]


class EndpointRegistry(Protocol):
    """Where a discovery reports; made by the host.

    A pool has no more endpoints than `--max-endpoints` says: those named beyond are left out, counted and told.
    """

    def upsert(self, endpoint: Endpoint) -> None:
        """Add an endpoint, or replace the one of the same name. Its columns survive unless its address changed."""

    def remove(self, name: str) -> None:
        """Drop an endpoint; an unknown name is ignored."""

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        """Make these the whole pool, in one step. The last of two with the same name wins.

        Of more than the pool may have the first count, and no others are asked for: an iterator need not make them.
        """

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        """Make these the inference objectives, by name, beside those of the configuration, which count where both have one.

        See `EndpointDiscovery.publishes_objectives`.
        """

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        """Make these the rules by which requests are for other models, beside those of the configuration, which count before them.

        A rule that names the model counts before one that names none, and of several such the first.
        """

    def ready(self) -> None:
        """Say that the first complete picture has been reported. endpick serves only from then on."""

    def stand_by(self, reason: str) -> None:
        """Say why another replica is to serve instead of this one; empty when this one is to.

        Health says NOT_SERVING meanwhile; requests that come all the same are routed to the endpoints that there are.
        """

    async def until_ending(self) -> None:
        """Wait until the process has been told to end: what only one replica can have is then for another."""


class EndpointDiscovery(Plugin[P]):
    """Finds the endpoints of the pool. A configuration has one."""

    kind: ClassVar[str] = "endpoint-discovery"

    publishes_objectives: ClassVar[bool] = False
    """Whether it calls `EndpointRegistry.set_objectives`: requests may then have priorities that the configuration does not show."""

    @abstractmethod
    async def run(self, registry: EndpointRegistry) -> None:
        """Report endpoints until cancelled. Returning means that nothing will change any more.

        Raises:
            ConfigurationError: before `registry.ready()`, start-up ends with this message; later it is logged, and `run` is called again
                with back-off.
        """
