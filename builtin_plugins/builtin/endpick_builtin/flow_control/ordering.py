"""Orders: of the waiting requests of a flow, and of requests in flight that may be evicted."""

from __future__ import annotations

import math
import re

from endpick.api import Parameters, Stability
from endpick.api.flow_control import DispatchedRequest, EvictionFilter, EvictionOrderingPolicy, OrderingPolicy, SortKey, WaitingRequest
from endpick_builtin.producers.latency_ledger import TTFT_HEADERS

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MAX_MILLISECONDS = 2**63 - 1
_DIGITS = 6  # sums of floats that should be equal differ behind them


class FirstComeFirstServed(OrderingPolicy[Parameters]):
    """Serves requests in order of arrival."""

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """See the class."""
        return ()


class EarliestDeadlineFirst(OrderingPolicy[Parameters]):
    """Serves the earliest deadline first: deadline = enqueue time + time limit.

    Requests without a time limit come last; equal deadlines in order of arrival. All requests have the same limit (`defaultRequestTTL`), so
    this is the order of `fcfs-ordering-policy` until requests bring limits of their own.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """See the class."""
        return (waiting.enqueued_at + waiting.ttl_seconds if waiting.ttl_seconds > 0 else math.inf,)


class SloDeadline(OrderingPolicy[Parameters]):
    """Serves the earliest TTFT deadline first: deadline = arrival time + objective for the first token.

    The objective is the header `x-llm-d-slo-ttft-ms`, or else `x-slo-ttft-ms`: milliseconds as a non-negative 64-bit integer. Requests
    without a valid objective come last; equal deadlines in order of arrival.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """See the class."""
        request = waiting.request
        text = request.headers.get(TTFT_HEADERS[0]) or request.headers.get(TTFT_HEADERS[1]) or ""
        return (round(request.received_at + _seconds(text), _DIGITS), request.received_at)


def _seconds(text: str) -> float:
    """Seconds from a text of milliseconds; infinite if it is invalid."""
    stripped = text.strip()
    if _WHOLE_NUMBER.fullmatch(stripped) is None:
        return math.inf
    milliseconds = int(stripped)
    return milliseconds / 1000 if 0 <= milliseconds <= _MAX_MILLISECONDS else math.inf


class SheddableEvictionFilter(EvictionFilter[Parameters]):
    """Allows the eviction of requests with negative priority."""

    stability = Stability.EXPERIMENTAL

    def is_evictable(self, dispatched: DispatchedRequest) -> bool:
        """See the class."""
        return dispatched.request.priority < 0


class PriorityThenTime(EvictionOrderingPolicy[Parameters]):
    """Evicts the lowest priority first and, of equal priorities, the request that was sent last: it loses the least work."""

    stability = Stability.EXPERIMENTAL

    def sort_key(self, dispatched: DispatchedRequest) -> SortKey:
        """See the class. The priority stays an integer, because a float cannot distinguish neighbouring 64-bit integers."""
        return (dispatched.request.priority, -dispatched.dispatched_at)
