"""Overload by memory: measures what the process uses, has plugins forget, and says in which stage it is and why."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from prometheus_client.metrics import Gauge
from prometheus_client.registry import CollectorRegistry

from endpick.api.plugin import Parameters, Plugin
from endpick.host.apart import apart
from endpick.host.boundary import report_late as late
from endpick.host.failures import CALL_FAILURES, is_the_hosts, kind_of
from endpick.host.instance import Instance
from endpick.host.kinds import ExtensionPoint
from endpick.host.telemetry import Telemetry
from endpick.requests.memory import STAGE_BOUNDS, MemoryAccount, OverloadStage
from endpick.serve.exposition import EventCounts
from endpick.serve.free_memory import FreeMemory, give_back, resident_bytes
from endpick.serve.garbage import FullSearches

_log = logging.getLogger("endpick.overload")

_MEASURE_SECONDS = 0.1
_LEARNT_SECONDS = 1.0
"""How often plugins are asked what they have learnt."""
_FORGET_SECONDS = 10.0
"""How often plugins are told to forget, while there is need."""
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def available_bytes() -> int:
    """What this process may use: the limit of its container where there is one, else the memory of the machine."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # `max` is no number, and means that there is no limit
            return min(int(path.read_text(encoding="ascii")), machine)
    return machine


class OverloadWatch:
    """Runs beside the requests on their event loop, ten times a second and briefly."""

    def __init__(
        self, account: MemoryAccount, instances: Callable[[], Iterable[Instance]], telemetry: Telemetry, registry: CollectorRegistry
    ) -> None:
        """Keep what is needed, and show the account in `registry`.

        Args:
            account: What is measured against its limit; its stage is what others act on.
            instances: Gives the instances that have learnt something: those that serve now, and those that are yet to be stopped.
            telemetry: Told of plugins that fail when they are asked or told.
            registry: Gets the metrics.
        """
        self._account = account
        self._instances = instances
        self._telemetry = telemetry
        self._searches = FullSearches(account)
        self._free = FreeMemory(account)
        self._timer: asyncio.TimerHandle | None = None
        self._next_question = 0.0
        self._next_forgetting = 0.0
        self._forgetting: frozenset[int] = frozenset()
        """The ids of the instances that have more to forget."""
        self._stages = Gauge("endpick_overload_stage", "1 for the stage of overload by memory.", ("stage",), registry=registry)
        self._forgotten = 0
        self._show(account.stage)
        account.on_stage.append(self._entered)
        self._limit = Gauge("endpick_memory_limit_bytes", "What the process may use: --max-memory.", registry=registry)
        self._limit.set(account.limit_bytes)
        held = Gauge("endpick_memory_held_bytes", "What is accounted for, by what it is.", ("use",), registry=registry)
        held.labels("parsed").set_function(lambda: account.parsed_bytes)
        held.labels("learnt").set_function(lambda: account.learnt_bytes)
        held.labels("messages").set_function(lambda: account.held_bytes - account.parsed_bytes - account.learnt_bytes)
        registry.register(EventCounts("endpick_overload_actions", "What was done in stages of overload by memory.", self._counts))

    def start(self) -> None:
        """Measure from now on."""
        self._measure()

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()

    def remarks(self) -> tuple[str, ...]:
        """What `/healthz` says of the stage; nothing while all is well."""
        if self._account.stage is OverloadStage.NORMAL:
            return ()
        return (f"short of memory: {STAGE_BOUNDS[self._account.stage].action}",)

    def _measure(self) -> None:
        """Measure once, and come again whatever becomes of this time."""
        loop = asyncio.get_running_loop()
        try:
            self._measure_at(loop.time())
        finally:
            self._timer = loop.call_later(_MEASURE_SECONDS, self._measure)

    def _measure_at(self, now: float) -> None:
        account = self._account
        learnt = account.learnt_bytes
        if now >= self._next_question:
            self._next_question = now + _LEARNT_SECONDS
            learnt = sum(map(self._learnt, self._instances()))
        account.measured(resident_bytes(), learnt)
        self._free.look()
        if account.stage >= OverloadStage.RELEASING and now >= self._next_forgetting:
            self._next_forgetting = now + _FORGET_SECONDS
            self._forgotten += 1
            self._forget(self._instances())
        elif self._forgetting:
            self._forget([each for each in self._instances() if id(each) in self._forgetting])
        self._searches.look(now)

    def _learnt(self, instance: Instance) -> int:
        size = self._asked(instance, lambda plugin: plugin.learnt_bytes())
        if type(size) is int and 0 <= size <= sys.maxsize:  # not `isinstance`, which asks the answer
            return size
        if size is not None:
            self._telemetry.fault(instance, ExtensionPoint.MEMORY, f"says that it has learnt what is no number of bytes: {kind_of(size)}")
        return 0

    def _forget(self, instances: Iterable[Instance]) -> None:
        """A part of it at a time, and no search for garbage in all that is left: 250,000 of 500,000 blocks took two seconds at once."""
        self._forgetting = frozenset([id(each) for each in instances if self._asked(each, lambda plugin: plugin.forget_some()) is True])
        self._next_question = 0.0
        if not self._forgetting:
            give_back()

    def _asked(self, instance: Instance, call: Callable[[Plugin[Parameters]], object]) -> object:
        """What an instance answers; None where it fails, or is left out: one that blocks would block here as well."""
        if instance.breaker.seconds_left:
            return None
        began = time.perf_counter()
        try:
            with apart():
                return call(instance.plugin)
        except CALL_FAILURES as problem:
            if is_the_hosts(problem):
                raise
            self._telemetry.fault(instance, ExtensionPoint.MEMORY, problem)
            return None
        finally:
            seconds = time.perf_counter() - began
            if seconds > instance.breaker.budget_seconds:
                late(instance, ExtensionPoint.MEMORY, seconds, self._telemetry)

    def _counts(self) -> dict[str, int]:
        return {"plugins_told_to_forget": self._forgotten, **self._account.counts()}

    def _entered(self, before: OverloadStage, after: OverloadStage) -> None:
        self._show(after)
        account = self._account
        figures = {
            "stage": after.name.lower(),
            "resident_bytes": resident_bytes(),
            "held_bytes": account.held_bytes,
            "parsed_bytes": account.parsed_bytes,
            "learnt_bytes": account.learnt_bytes,
            "limit_bytes": account.limit_bytes,
        }
        if after > before:
            _log.warning(
                "short of memory: %s; more memory for the container, --max-memory, or more replicas help",
                STAGE_BOUNDS[after].action,
                extra=figures,
            )
        else:
            _log.info("less short of memory: %s", STAGE_BOUNDS[after].action, extra=figures)

    def _show(self, present: OverloadStage) -> None:
        for stage in OverloadStage:
            self._stages.labels(stage.name.lower()).set(stage is present)
