"""Real endpoints, instances and instruments for tests of the request path."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from prometheus_client import CollectorRegistry

from endpick.api import (
    Endpoint,
    Filter,
    InferenceRequest,
    Picker,
    Plugin,
    PluginContext,
    ProfileHandler,
    Scorer,
)
from endpick.api.access import Access, AccessScope
from endpick.api.fast_metrics import Distribution
from endpick.api.keys import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
)
from endpick.api.request_control import ResponseEnd
from endpick.data.table import EndpointTable
from endpick.host.breaker import Breaker, BreakerSettings, BreakerState
from endpick.host.discovery import Candidate, discover
from endpick.host.instance import Instance, scope_of
from endpick.host.kinds import OnFault, default_on_fault, kinds_of, parameters_model
from endpick.host.telemetry import NullTelemetry, ResponsePace

KEYS = (
    WAITING_QUEUE_SIZE,
    RUNNING_REQUESTS_SIZE,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
)
PATIENT = BreakerSettings(budget_seconds=math.inf)
"""No call counts as late: how long one takes depends on what else the machine does, and three late ones open a circuit."""

REQUEST = InferenceRequest(id="r-1", model="m", incoming_model="m")


@dataclass(slots=True)
class Pace:
    """A `ResponsePace` as an exchange would have it."""

    request_id: str = "r-1"
    streaming: bool = False
    processing_seconds: float = 0.0
    gaps: Distribution | None = None


@dataclass
class Recording(NullTelemetry):
    """Instruments that remember what they were told."""

    faults: list[tuple[str, str, str]] = field(default_factory=list)
    clamps: list[tuple[str, int]] = field(default_factory=list)
    violations: list[tuple[str, str, str]] = field(default_factory=list)
    decided: list[tuple[str, str, str, int, int]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    scheduled: list[tuple[str | None, str]] = field(default_factory=list)
    ended: list[ResponseEnd] = field(default_factory=list)
    paces: list[ResponsePace] = field(default_factory=list)
    bodiless: list[tuple[str, float]] = field(default_factory=list)
    outs: list[tuple[str, str]] = field(default_factory=list)
    circuits: list[tuple[str, str, str]] = field(default_factory=list)
    lates: list[tuple[str, str]] = field(default_factory=list)
    unread: list[tuple[str, str]] = field(default_factory=list)
    timers: dict[tuple[str, str], Distribution] = field(default_factory=dict)
    delivered: list[tuple[bool, bool, tuple[str, ...]]] = field(default_factory=list)

    def plugin_timer(self, extension_point: str, instance: Instance) -> Distribution:
        return self.timers.setdefault((str(extension_point), instance.name), Distribution((1.0,)))

    @property
    def timed(self) -> list[tuple[str, str]]:
        """What was called, as often as it was called, in the order in which it was bound."""
        return [bound for bound, timer in self.timers.items() for _ in range(sum(timer.counts))]

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        text = f"{type(problem).__name__}: {problem}" if isinstance(problem, BaseException) else problem
        self.faults.append((instance.name, str(extension_point), text))

    def late(self, instance: Instance, extension_point: str, seconds: float) -> None:
        self.lates.append((instance.name, str(extension_point)))

    def left_out(self, instance: Instance, extension_point: str) -> None:
        self.outs.append((instance.name, str(extension_point)))

    def circuit_changed(self, instance: Instance, before: BreakerState) -> None:
        self.circuits.append((instance.name, before.name, instance.breaker.state.name))

    def unread_response(self, encoding: str, lost: str) -> None:
        self.unread.append((encoding, lost))

    def clamped(self, instance: Instance, count: int) -> None:
        self.clamps.append((instance.name, count))

    def undeclared_access(self, scope: AccessScope, key: str, access: str) -> None:
        self.violations.append((scope.instance, key, access))

    def gateway_body_modes(self, request_bodies: bool, response_bodies: bool, losses: Sequence[str]) -> None:
        self.delivered.append((request_bodies, response_bodies, tuple(losses)))

    def request_decided(self, model: str, target_model: str, fairness_id: str, priority: int, size_bytes: int, seconds: float) -> None:
        self.decided.append((model, target_model, fairness_id, priority, size_bytes))

    def request_refused(self, model: str, target_model: str, fairness_id: str, priority: int, code: str) -> None:
        self.refused.append((model, code))

    def request_scheduled(self, seconds: float, endpoint: Endpoint | None, target_model: str) -> None:
        self.scheduled.append((None if endpoint is None else endpoint.address, target_model))

    def request_ended(self, model: str, target_model: str, fairness_id: str, priority: int, end: ResponseEnd, pace: ResponsePace) -> None:
        self.ended.append(end)
        self.paces.append(pace)

    def bodiless_ended(self, fairness_id: str, seconds: float) -> None:
        self.bodiless.append((fairness_id, seconds))


def pool(columns: Mapping[object, list[object]] | None = None, size: int = 3, labels: list[dict[str, str]] | None = None) -> EndpointTable:
    """A table of endpoints `pool/e0`, `pool/e1`, … at 10.0.0.1:8000, 10.0.0.2:8000, …; None in a column is never written."""
    columns = columns or {}
    size = len(next(iter(columns.values()))) if columns else len(labels) if labels is not None else size
    table = EndpointTable(clock=lambda: 100.0, keys={*KEYS, *columns})
    table.replace_all(
        Endpoint(f"pool/e{n}", f"10.0.{n // 250}.{n % 250 + 1}", 8000, labels=labels[n] if labels else {}) for n in range(size)
    )
    writer = table.writer(None)
    for key, values in columns.items():
        for endpoint, value in zip(table.generation.endpoints, values, strict=True):
            if value is not None:
                writer.set(key, value, endpoint)
    return table


def instance(
    plugin: type[Plugin], name: str = "", *, on_fault: OnFault | None = None, seed: int = 1, columns: object = None, **parameters: object
) -> Instance:
    """One built plugin, as the host builds it."""
    values = parameters_model(plugin).model_validate(parameters)
    plugin_type = _type_of(plugin)
    name = name or plugin_type
    subscriptions, kinds = plugin.subscriptions(values), kinds_of(plugin)
    registry = CollectorRegistry()
    built = plugin(name, values, PluginContext(random=random.Random(seed), registry=registry, columns=columns))
    policy = on_fault or default_on_fault(kinds)
    scope, breaker = scope_of(name, subscriptions), Breaker(PATIENT, time.monotonic)
    return Instance(name, plugin_type, "endpick", "0", kinds, built, subscriptions, policy, scope, registry, breaker=breaker)


def _type_of(plugin: type[Plugin]) -> str:
    """The name of its entry point, for a built-in plugin."""
    target = f"{plugin.__module__}:{plugin.__qualname__}"
    installed = (one.type for one in _installed() if one.target == target and one.type not in plugin.aliases)
    return next(installed, f"test.{plugin.__name__}")


@cache
def _installed() -> tuple[Candidate, ...]:
    return discover()


def plugin_of(kind: type[Plugin], name: str, on_fault: OnFault | None = None, consumes: tuple = (), **methods: Callable) -> Instance:
    """An instance whose methods are these functions, without `self`."""
    namespace: dict[str, object] = {method: _as_method(function) for method, function in methods.items()}
    namespace["consumes"] = consumes
    return instance(type(name, (kind,), namespace), name, on_fault=on_fault)


def filter_of(function: Callable, name: str = "filter", on_fault: OnFault | None = None) -> Instance:
    return plugin_of(Filter, name, on_fault, filter=lambda request, endpoints, state: function(endpoints))


def scorer_of(function: Callable, name: str = "scorer", on_fault: OnFault | None = None) -> Instance:
    return plugin_of(Scorer, name, on_fault, score=lambda request, endpoints, state: function(endpoints))


def picker_of(function: Callable, name: str = "picker", on_fault: OnFault | None = None) -> Instance:
    return plugin_of(Picker, name, on_fault, pick=lambda request, scored, state: function(scored))


def handler_of(pick_profiles: Callable, process_results: Callable, name: str = "handler") -> Instance:
    return plugin_of(
        ProfileHandler,
        name,
        pick_profiles=lambda request, profiles, results, state: pick_profiles(profiles, results),
        process_results=lambda request, results, state: process_results(results),
    )


def access() -> Access:
    """One that raises at undeclared accesses."""
    return Access()


def names(endpoints: object) -> list[str]:
    """`e0`, `e1`, … of a view."""
    return [endpoint.name.removeprefix("pool/") for endpoint in endpoints]


def _as_method(function: Callable) -> Callable:
    return lambda self, *arguments: function(*arguments)
