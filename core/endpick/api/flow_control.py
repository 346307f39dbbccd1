"""The kinds of flow control, used with the feature gate `flowControl`.

A *flow* is the waiting requests of one fairness id; a *band* is the flows of one priority. Flow control serves bands from the highest
priority down: a `UsageLimitPolicy` sets the saturation up to which a band is served, a `FairnessPolicy` chooses its flow, and an
`OrderingPolicy` sorts the flow.
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
    """One waiting request, as policies see it.

    Attributes:
        request: The request, before candidates and producers.
        size_bytes: Size of the body, for byte limits.
        arrival: Sequence number; later requests have greater numbers.
        enqueued_at: Seconds of `PluginContext.clock` when the wait began.
        ttl_seconds: Time limit in seconds while the pool has endpoints; 0 for none.
        key: Sort key from the ordering policy; `()` before it was called.
    """

    request: InferenceRequest
    size_bytes: int
    arrival: int
    enqueued_at: float
    ttl_seconds: float
    key: SortKey = ()


class Flow(Protocol):
    """The waiting requests of one fairness id in one band, in the order of the ordering policy."""

    @property
    def id(self) -> str:
        """The fairness id of the flow, which clients send in a header."""

    @property
    def head(self) -> WaitingRequest | None:
        """The request that the flow dispatches next; None if the flow is empty."""

    @property
    def size_bytes(self) -> int:
        """Total size in bytes of the flow's waiting requests."""

    def __len__(self) -> int:
        """Return the number of waiting requests in the flow."""


class Band(Protocol):
    """The flows of one priority. Flow control passes it to `FairnessPolicy`."""

    @property
    def priority(self) -> int:
        """The priority of the band's requests; bands of higher priority are served first."""

    @property
    def flows(self) -> Collection[Flow]:
        """The non-empty flows, in the order in which they became non-empty."""

    def flow(self, flow_id: str) -> Flow | None:
        """Return the flow of a fairness id; None if it is empty."""

    @property
    def private(self) -> dict[str, object]:
        """The policy's state for this band. It lives as long as the band and its policies."""


class FairnessPolicy(Plugin[P]):
    """Chooses the flow of a band that is served next."""

    kind: ClassVar[str] = "fairness-policy"

    @abstractmethod
    def choose(self, band: Band) -> Flow | None:
        """Return one of `band.flows`, or None to serve nothing of this band now.

        Flow control calls it for each dispatch, for open bands with requests, highest first; None passes the turn to the next band. Keep
        state in `band.private`. After a fault, the oldest request of the band is served.
        """

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """Update the policy's state: a flow has a new head or became empty.

        Flow control calls it after a request joined or left. A policy that was left out for its faults later finds `band.private` empty,
        and is called for every non-empty flow. Default: nothing.
        """

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        """Update the policy's state: a request of the flow was dispatched.

        Flow control calls it after `flow_changed`, also for a request that did not have to wait. Default: nothing.
        """


class OrderingPolicy(Plugin[P]):
    """Sorts the waiting requests of a flow."""

    kind: ClassVar[str] = "ordering-policy"

    @abstractmethod
    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """Return the request's sort key; the smallest goes first.

        Flow control calls it once, when the request arrives, and again if a reload changes the band's policies; `()` keeps the order of
        arrival. All keys of one instance have the same length and contain no NaN. After a fault the request goes last.
        """


class UsageLimitPolicy(Plugin[P]):
    """Limits the saturation up to which each priority is served. A configuration has one."""

    kind: ClassVar[str] = "usage-limit-policy"

    @abstractmethod
    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return one ceiling per priority, as a list or tuple of numbers that do not increase.

        Flow control calls it before each dispatch, and when a request arrives. It serves a band while the saturation is below the band's
        ceiling. `saturation` is 0 if the pool is idle, 1 and above if it is full; `priorities` are those of all bands, highest first. After
        a fault every ceiling is 1.
        """


@dataclass(frozen=True, slots=True)
class DispatchedRequest:
    """A request in flight that may be evicted.

    Attributes:
        request: The request as sent to the model server.
        endpoint: The first pick.
        dispatched_at: Seconds of `PluginContext.clock` at the decision.
    """

    request: InferenceRequest
    endpoint: Endpoint
    dispatched_at: float


class EvictionFilter(Plugin[P]):
    """Decides which requests in flight may be evicted; used with `enableEviction`."""

    kind: ClassVar[str] = "eviction-filter"

    @abstractmethod
    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """Return True if flow control may evict the request for one of higher priority.

        Flow control calls it once, when the request is sent. After a fault the request is not evicted.
        """


class EvictionOrderingPolicy(Plugin[P]):
    """Sorts requests in flight for eviction; used with `enableEviction`."""

    kind: ClassVar[str] = "eviction-ordering-policy"

    @abstractmethod
    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """Return the request's sort key; the smallest is evicted first.

        Flow control calls it once, when the request is sent and is evictable. After a fault the request goes last.
        """
