"""Tells how the pool changes, whatever discovers it: counts who joined, left or changed, and logs it in few lines however much it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from endpick.api.endpoint import Endpoint
from endpick.api.generation import Generation
from endpick.data.table import EndpointTable
from endpick.host.throttle import Throttle
from endpick.serve.limit_log import LEFT_OUT
from endpick.serve.metrics import EndpickMetrics

_log = logging.getLogger("endpick.pool")

SHOWN_NAMES = 10
"""Of endpoints in one log line."""
LINES_AT_ONCE = 10
"""Changes that are told one by one; more of them within `SUMMARY_SECONDS` are told together."""
SUMMARY_SECONDS = 10.0
_LOG_SECONDS = 30.0
_MOST_REMEMBERED = 1000
"""Names of each kind that wait to be told together; those that come later are only counted."""


class PoolLog:
    """Follows one table. A discovery that is made to change the pool all the time writes ten lines in ten seconds, and one more."""

    def __init__(self, table: EndpointTable, metrics: EndpickMetrics, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._metrics = metrics
        self._clock = clock
        self._throttle = Throttle(clock, _LOG_SECONDS)
        self._members: dict[str, Endpoint] = {}
        self._window_began = clock()
        self._lines = 0
        self._untold: dict[str, _Untold] = {}
        self._summary: asyncio.TimerHandle | None = None
        table.on_changed.append(self._changed)
        table.on_left_out.append(self._left_out)

    def stop(self) -> None:
        """Tell what has not been told."""
        if self._summary is not None:
            self._summary.cancel()
            self._tell()

    def _changed(self, generation: Generation) -> None:
        before, self._members = self._members, {endpoint.name: endpoint for endpoint in generation.endpoints}
        now = self._members
        self._note("joined", now.keys() - before.keys())
        self._note("left", before.keys() - now.keys())
        self._note("changed", {name for name in now.keys() & before.keys() if now[name] is not before[name]})
        if not self._untold or self._summary is not None:
            return
        seconds_left = self._window_began + SUMMARY_SECONDS - self._clock()
        if seconds_left <= 0:
            self._window_began, self._lines = self._clock(), 0
        if self._lines < LINES_AT_ONCE:
            self._lines += 1
            self._tell()
        else:
            self._summary = asyncio.get_running_loop().call_later(seconds_left, self._tell)

    def _note(self, change: str, names: set[str]) -> None:
        if names:
            self._metrics.pool_changes.labels(change).inc(len(names))
            self._untold.setdefault(change, _Untold()).add(names)

    def _tell(self) -> None:
        self._summary = None
        untold, self._untold = self._untold, {}
        shown = {change: each.shown() for change, each in untold.items()}
        _log.info("the pool has changed", extra={**shown, "endpoints": len(self._members)})

    def _left_out(self) -> None:
        self._metrics.pool_left_out.inc()
        suppressed = self._throttle.admit("left out")
        if suppressed is not None:
            _log.warning("%s", LEFT_OUT, extra={"endpoints": len(self._members), "suppressed": suppressed})


class _Untold:
    """Names that have not been told, and how many there are in all; one that comes twice counts twice."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._count = 0

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            self._count += 1
            if len(self._names) < _MOST_REMEMBERED:
                self._names.add(name)

    def shown(self) -> str:
        shown = sorted(self._names)[:SHOWN_NAMES]
        more = self._count - len(shown)
        return ", ".join(shown) + (f" and {more} more" if more else "")
