"""The kinds of flow control, used with the feature gate `flowControl`.

A *flow* is the waiting requests of one fairness id; a *band* the flows of one priority. Bands are served from the highest priority down:
a `UsageLimitPolicy` sets the saturation up to which a band is served, a `FairnessPolicy` chooses its flow, an `OrderingPolicy` sorts it.
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
"""Requests are served in ascending order of their key; equal keys in order of arrival."""


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """One waiting request.

    Attributes:
        size_bytes: Its size for byte limits.
        arrival: Sequence number.
        enqueued_at: Seconds of `PluginContext.clock`.
        ttl_seconds: Time limit while the pool has endpoints; 0 for none.
        key: From the ordering policy.
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
        """The next request; None if it is empty."""

    @property
    def size_bytes(self) -> int:
        """Total size of its waiting requests."""

    def __len__(self) -> int:
        """Number of waiting requests."""


class Band(Protocol):
    """The flows of one priority."""

    @property
    def priority(self) -> int:
        """The priority."""

    @property
    def flows(self) -> Collection[Flow]:
        """Non-empty flows, in the order in which they became non-empty."""

    def flow(self, flow_id: str) -> Flow | None:
        """The flow of a fairness id; None if it is empty."""

    @property
    def private(self) -> dict[str, object]:
        """The policy's state for this band."""


class FairnessPolicy(Plugin[P]):
    """Chooses which flow of a band is served next."""

    kind: ClassVar[str] = "fairness-policy"

    @abstractmethod
    def choose(self, band: Band) -> Flow | None:
        """Return one of `band.flows`, or None to serve nothing of this band now. Called once per dispatch.

        Keep state in `band.private`. After a fault the host serves the band in order of arrival.
        """

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """Called when a flow has a new head or became empty.

        After its circuit was open, a policy finds `band.private` empty and is called for every non-empty flow.
        """

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        """Called after a request of the flow was dispatched."""


class OrderingPolicy(Plugin[P]):
    """Sorts the requests of a flow."""

    kind: ClassVar[str] = "ordering-policy"

    @abstractmethod
    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """The request's sort key, called once; the smallest goes first, `()` keeps the order of arrival.

        All keys of one instance have the same length and no NaN. After a fault the request goes last.
        """


class UsageLimitPolicy(Plugin[P]):
    """Limits the saturation up to which each priority is served."""

    kind: ClassVar[str] = "usage-limit-policy"

    @abstractmethod
    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """One ceiling per priority: a band is served while the saturation is below it.

        The saturation is 0 if idle, 1 and above if full; `priorities` are all bands, highest first. Ceilings do not increase. After a fault
        every ceiling is 1.
        """


@dataclass(frozen=True, slots=True)
class DispatchedRequest:
    """A request in flight that may be evicted.

    Attributes:
        endpoint: The first pick.
        dispatched_at: Seconds of `PluginContext.clock`.
    """

    request: InferenceRequest
    endpoint: Endpoint
    dispatched_at: float


class EvictionFilter(Plugin[P]):
    """Decides which requests in flight may be evicted; used with `enableEviction`."""

    kind: ClassVar[str] = "eviction-filter"

    @abstractmethod
    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """Called once, when the request is sent. After a fault it is not evicted."""


class EvictionOrderingPolicy(Plugin[P]):
    """Sorts requests in flight for eviction; used with `enableEviction`."""

    kind: ClassVar[str] = "eviction-ordering-policy"

    @abstractmethod
    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """The request's sort key, called once; the smallest is evicted first."""
