"""The kinds of flow control: which of the requests that wait goes next, and how much the pool may be filled.

Used while the feature gate `flowControl` is on. A request waits in a *flow*, the requests of one fairness id; flows of one priority make
up a *band*. Bands are served from the highest priority to the lowest; within a band a `FairnessPolicy` chooses the flow, and within a flow
an `OrderingPolicy` has put the requests in order. A `UsageLimitPolicy` says up to which saturation of the pool each band is served.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeAlias

from endpick.api.endpoint import Endpoint
from endpick.api.plugin import P, Plugin
from endpick.api.request import InferenceRequest

SortKey: TypeAlias = tuple[float, ...]
"""Numbers by which requests are put in order, the smallest first; what compares equal is served in the order in which it came."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """One request that waits, as policies see it; the host makes it, and policies only read it.

    Attributes:
        request: What was asked, with headers, priority and fairness id. Where many wait, its `payload` is None, and to read its
            `prompt` parses the body again: an order by the prompt reads it in `sort_key`, where both are there.
        size_bytes: What it counts for in limits of bytes.
        arrival: Its number in the order in which requests began to wait.
        enqueued_at: When it began to wait, in seconds of `PluginContext.clock`.
        ttl_seconds: How long it may wait while the pool has endpoints; 0 for any time.
        key: What the ordering policy of its band said of it.
    """

    request: InferenceRequest
    size_bytes: int
    arrival: int
    enqueued_at: float
    ttl_seconds: float
    key: SortKey = ()


class Flow(Protocol):
    """The waiting requests of one fairness id in one band."""

    @property
    def id(self) -> str:
        """The fairness id."""

    @property
    def head(self) -> WaitingRequest | None:
        """What is served next of this flow; None while nothing waits."""

    @property
    def size_bytes(self) -> int:
        """Bytes of all its waiting requests."""

    def __len__(self) -> int:
        """How many requests wait."""


class Band(Protocol):
    """The flows of one priority."""

    @property
    def priority(self) -> int:
        """The priority."""

    @property
    def flows(self) -> Collection[Flow]:
        """Every flow in which something waits, in the order in which they began to."""

    def flow(self, flow_id: str) -> Flow | None:
        """The flow of a fairness id; None if nothing waits there."""

    @property
    def private(self) -> dict[str, object]:
        """What the policy keeps about this band, as it likes; forgotten with it, and after it changed while the policy was left out."""


class FairnessPolicy(Plugin[P]):
    """Chooses which flow of a band is served next."""

    kind: ClassVar[str] = "fairness-policy"

    @abstractmethod
    def choose(self, band: Band) -> Flow | None:
        """One of `band.flows`; None to serve nothing of this band now. Called once for each request that may go, when something waits.

        An instance serves every band that names it: what it remembers of one belongs in `band.private`. A flow that does not wait, and an
        exception, are faults: the host then serves the band in the order in which its requests came.
        """

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """A flow has another head than before, or none any more: for policies that keep flows in order, not to look at all.

        A policy that is left out because it keeps failing or blocking is told nothing. Once it is asked again, it finds `band.private`
        empty, and is told of each flow in which something waits.
        """

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        """A request of the flow was let go, and has left it; not told of those that go while the policy is left out."""


class OrderingPolicy(Plugin[P]):
    """Puts the requests of a flow in order."""

    kind: ClassVar[str] = "ordering-policy"

    @abstractmethod
    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """Its place among the others: the smallest goes first, `()` for the order of arrival. Called once, when the request begins to wait.

        All keys of one instance have the same length, and no NaN. A fault puts the request behind those that have a key.
        """


class UsageLimitPolicy(Plugin[P]):
    """Says up to which saturation requests of each priority are let go."""

    kind: ClassVar[str] = "usage-limit-policy"

    @abstractmethod
    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """One ceiling for each priority: a band is served while the saturation of the pool is below it. Called once for each dispatch.

        Args:
            saturation: Of the pool, 0 for idle, 1 and above for full.
            priorities: Of all bands, the highest first.

        Returns:
            As many numbers, none greater than the one before it. After a fault every ceiling is 1.
        """


@dataclass(frozen=True, slots=True)
class DispatchedRequest:
    """A request in flight that could be evicted, as eviction policies see it.

    Attributes:
        request: What was asked.
        endpoint: Where it was sent first.
        dispatched_at: When, in seconds of `PluginContext.clock`.
    """

    request: InferenceRequest
    endpoint: Endpoint
    dispatched_at: float


class EvictionFilter(Plugin[P]):
    """Says which requests in flight may be evicted to make room for more important ones; used with `enableEviction`."""

    kind: ClassVar[str] = "eviction-filter"

    @abstractmethod
    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """Called once, when the request was sent to a model server. After a fault it is not evicted."""


class EvictionOrderingPolicy(Plugin[P]):
    """Puts requests in flight in the order in which they are evicted; used with `enableEviction`."""

    kind: ClassVar[str] = "eviction-ordering-policy"

    @abstractmethod
    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """Its place among the others: the smallest is evicted first. Called once, when the request was sent to a model server."""
