"""Ordering policies: which request of a flow goes first?"""

from __future__ import annotations

import math
import re

from endpick.api import OrderingPolicy, Parameters, SortKey, WaitingRequest
from endpick_builtin.producers.latency_ledger import TTFT_HEADERS

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)
_MOST_MILLISECONDS = 2**63 - 1
_DIGITS = 6
"""Sums of floats that should be equal differ behind them."""


class FirstComeFirstServed(OrderingPolicy[Parameters]):
    """Serve requests in the order in which they began to wait."""

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """See the class."""
        return ()


class EarliestDeadlineFirst(OrderingPolicy[Parameters]):
    """Serve first what would have to be given up first: deadline = when the request began to wait + how long it may.

    Requests that may wait for any time come last. Of equals the first to come is first. All requests may wait equally long
    (`defaultRequestTTL`), so that this is the order of `fcfs-ordering-policy`, until requests bring times of their own.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """See the class."""
        return (waiting.enqueued_at + waiting.ttl_seconds if waiting.ttl_seconds > 0 else math.inf,)


class SloDeadline(OrderingPolicy[Parameters]):
    """Serve first what has to begin to answer first: deadline = when the request came + its objective for the first token.

    The objective is the header `x-llm-d-slo-ttft-ms`, or `x-slo-ttft-ms` where that is missing: whole milliseconds, 0 or more, of 64 bits.
    Requests without one, or with one that is something else, come last. Of equals the first to come is first.
    """

    def sort_key(self, waiting: WaitingRequest) -> SortKey:
        """See the class."""
        request = waiting.request
        headers = request.headers
        text = headers.get(TTFT_HEADERS[0]) or headers.get(TTFT_HEADERS[1]) or ""
        return (round(request.received_at + _seconds(text), _DIGITS), request.received_at)


def _seconds(text: str) -> float:
    """Of so many milliseconds; infinite where the text does not say."""
    stripped = text.strip()
    if not stripped or _WHOLE_NUMBER.fullmatch(stripped) is None:
        return math.inf
    milliseconds = int(stripped)
    return milliseconds / 1000 if 0 <= milliseconds <= _MOST_MILLISECONDS else math.inf
