"""Counts and logs changes of the endpoint pool."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from endpick.api.endpoint import Endpoint
from endpick.api.generation import Generation
from endpick.data.table import EndpointTable
from endpick.host.telemetry import Throttle
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.pool")

SHOWN_NAMES = 10
_LOG_SECONDS = 30.0


class PoolLog:
    """Follows one endpoint table."""

    def __init__(self, table: EndpointTable, metrics: EndpickMetrics, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._metrics = metrics
        self._throttle = Throttle(clock, _LOG_SECONDS)
        self._members: dict[str, Endpoint] = {}
        table.on_changed.append(self._changed)
        table.on_left_out.append(self._left_out)

    def _changed(self, generation: Generation) -> None:
        before, now = self._members, {endpoint.name: endpoint for endpoint in generation.endpoints}
        self._members = now
        changes = {
            "joined": now.keys() - before.keys(),
            "left": before.keys() - now.keys(),
            "changed": {name for name in now.keys() & before.keys() if now[name] is not before[name]},
        }
        for change, names in changes.items():
            if names:
                self._metrics.pool_changes.labels(change).inc(len(names))
        shown = {change: _shown(names) for change, names in changes.items() if names}
        if shown:
            _log.info("the pool has changed", extra={**shown, "endpoints": len(now)})

    def _left_out(self) -> None:
        self._metrics.pool_left_out.inc()
        suppressed = self._throttle.admit("left out")
        if suppressed is not None:
            _log.warning(
                "endpoints are left out: discovery reports more than --max-endpoints",
                extra={"endpoints": len(self._members), "suppressed": suppressed},
            )


def _shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - SHOWN_NAMES
    return ", ".join(ordered[:SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")
