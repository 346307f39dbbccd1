"""Which bodies gateways send, as a gauge that two gateways of different modes do not make flap."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import Gauge

MEMORY_SECONDS = 300.0
"""How long a gateway that keeps bodies to itself is remembered when others that send them come instead."""


class GatewayBodies:
    """Shows 0 for a direction while any gateway keeps its bodies: whose request came last before a scrape does not matter."""

    def __init__(self, gauge: Gauge, clock: Callable[[], float]) -> None:
        """`gauge` has the label `direction`; `clock` gives monotonic seconds."""
        self._gauge = gauge
        self._clock = clock
        self._sent: dict[str, bool] = {}
        self._kept_until: dict[str, float] = {}

    def saw(self, direction: str, sent: bool) -> None:
        """From now on requests come whose bodies of that direction are sent, or are not."""
        if direction not in self._sent:
            self._gauge.labels(direction).set_function(partial(self._all_sent, direction))
        elif sent and not self._sent[direction]:
            self._kept_until[direction] = self._clock() + MEMORY_SECONDS
        self._sent[direction] = sent

    def _all_sent(self, direction: str) -> bool:
        return self._sent[direction] and self._clock() >= self._kept_until.get(direction, 0.0)
