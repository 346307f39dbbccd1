"""Eviction of requests in flight: which may be evicted, and which of them first?"""

from __future__ import annotations

from endpick.api import DispatchedRequest, EvictionFilter, EvictionOrderingPolicy, Parameters, SortKey, Stability


class SheddableEvictionFilter(EvictionFilter[Parameters]):
    """Let requests of negative priority be evicted, and no others."""

    stability = Stability.EXPERIMENTAL

    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """See the class."""
        return dispatched.request.priority < 0


class PriorityThenTime(EvictionOrderingPolicy[Parameters]):
    """Evict the lowest priority first and, of equals, what was sent last: it has the least work to lose."""

    stability = Stability.EXPERIMENTAL

    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """See the class; the priority stays a whole number, since a float cannot tell neighbours of 64 bits apart."""
        return (dispatched.request.priority, -dispatched.dispatched_at)
