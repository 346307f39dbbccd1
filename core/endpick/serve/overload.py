"""Watches resident memory, and reports the overload stage."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from endpick.requests.memory import Memory, OverloadStage

_log = logging.getLogger("endpick.overload")

_INTERVAL_SECONDS = 1.0
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_EFFECT = {
    OverloadStage.NORMAL: "everything is served",
    OverloadStage.SHEDDING: "requests with negative priority get 429",
    OverloadStage.REFUSING: "new requests get 503",
}


def available_bytes() -> int:
    """The container's memory limit, or the machine's memory."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # `max` is no number: no limit
            return min(int(path.read_text(encoding="ascii")), machine)
    return machine


class OverloadWatch(Collector):
    """Measures memory every second."""

    def __init__(self, memory: Memory, registry: CollectorRegistry) -> None:
        """Register the metrics."""
        self._memory = memory
        self._timer: asyncio.TimerHandle | None = None
        memory.on_stage.append(self._entered)
        registry.register(self)

    def start(self) -> None:
        """Measure, now and every second."""
        self._memory.measure()
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_SECONDS, self.start)

    def stop(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def remarks(self) -> tuple[str, ...]:
        """For `/healthz`."""
        stage = self._memory.stage
        return () if stage is OverloadStage.NORMAL else (f"short of memory: {_EFFECT[stage]}",)

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        memory = self._memory
        stages = GaugeMetricFamily("endpick_overload_stage", "1 for the current memory overload stage.", labels=("stage",))
        for stage in OverloadStage:
            stages.add_metric((stage.name.lower(),), stage is memory.stage)
        yield stages
        yield GaugeMetricFamily("endpick_memory_limit_bytes", "Memory the process may use: --max-memory.", memory.limit_bytes)
        yield GaugeMetricFamily("endpick_memory_held_bytes", "Bytes of undecided request bodies.", memory.held_bytes)
        refusals = CounterMetricFamily("endpick_overload_refusals", "Requests refused for lack of memory.", labels=("action",))
        refusals.add_metric(("shed",), memory.shed)
        refusals.add_metric(("refused",), memory.refused)
        yield refusals

    def _entered(self, stage: OverloadStage) -> None:
        memory = self._memory
        figures = {"stage": stage.name.lower(), "resident_bytes": memory.resident(), "limit_bytes": memory.limit_bytes}
        if stage is OverloadStage.NORMAL:
            _log.info("memory is sufficient again: %s", _EFFECT[stage], extra=figures)
        else:
            _log.warning(
                "short of memory: %s; raise the container's memory and --max-memory, or add replicas", _EFFECT[stage], extra=figures
            )
