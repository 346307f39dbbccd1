"""Builds an instance of a plugin class and records everything it reads, writes and blocks on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any, Literal, TypeVar, cast

import numpy as np
from prometheus_client.registry import CollectorRegistry

from endpick.api.access import Access, AccessScope
from endpick.api.data import AnyKey, DataKey, Scope
from endpick.api.endpoint import Endpoint, Generation
from endpick.api.endpoints import Endpoints
from endpick.api.plugin import Parameters, Plugin, PluginContext
from endpick.api.request import InferenceRequest
from endpick.api.request_control import SaturationDetector
from endpick.api.scheduling import DisaggregationDecider, ProfileHandler
from endpick.api.state import CycleState, ScoringState
from endpick.data.table import EndpointTable, TableWriter
from endpick.diagnostics import Diagnostic
from endpick.host.failures import PLUGIN_ERRORS, describe_error, place
from endpick.host.instance import Instance, build, scope_of, subscriptions_of
from endpick.host.kinds import payload_of
from endpick.host.planning.references import references_in
from endpick.testing.factories import garbage_of, make_pool, make_request, unprotected, value_of
from endpick.testing.plugin_under_test import PluginUnderTest
from endpick.testing.side_effects import Watch, watched

START_OF_TIME = 1000.0
TYPICAL_SIZE = 8
P = TypeVar("P", bound=Plugin[Any])
T = TypeVar("T")
_LABELS: tuple[Mapping[str, str], ...] = (
    {"llm-d.ai/role": "decode", "zone": "a"},
    {"llm-d.ai/role": "prefill", "zone": "b"},
    {"llm-d.ai/role": "encode", "tenant": "acme"},
    {},
)


class Reported(StrEnum):
    """The amount of data that the endpoints have reported."""

    EVERYTHING = "every endpoint has reported"
    SOME = "every second endpoint has reported nothing"
    NOTHING = "no endpoint has reported anything"
    ZEROS = "every reported number is 0"


@dataclass(frozen=True, slots=True)
class Scene:
    """A request, its candidates and the state after the producers."""

    request: InferenceRequest
    endpoints: Endpoints
    state: CycleState


@dataclass(frozen=True, slots=True)
class Raised:
    """The exception that a method of the plugin raised."""

    problem: BaseException

    def __str__(self) -> str:
        where = place(self.problem)
        return f"{describe_error(self.problem)} at {where}" if where else describe_error(self.problem)


class Accesses:
    """Allows every access to data, and records the keys."""

    def __init__(self, declared: AccessScope) -> None:
        self.access = Access(on_violation=self._accessed)
        self.declared = declared
        self.running = AccessScope(declared.instance, frozenset())
        self.reads: set[str] = set()
        self.writes: set[str] = set()
        self.undeclared: dict[tuple[str, str], None] = {}

    def _accessed(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        reads = access == "read"
        (self.reads if reads else self.writes).add(key)
        if key not in (self.declared.readable if reads else self.declared.writable):
            self.undeclared[access, key] = None


@dataclass(frozen=True, slots=True)
class _RecordingTable:
    table: EndpointTable
    accesses: Accesses

    @property
    def generation(self) -> Generation:
        return self.table.generation

    def write(self, key: AnyKey, endpoint: Endpoint, value: object, since: float | None = None) -> None:
        self.accesses.writes.add(key.name)
        self.table.write(key, endpoint, value, since)

    def write_pool(self, key: AnyKey, value: object) -> None:
        self.accesses.writes.add(key.name)
        self.table.write_pool(key, value)

    def restarted(self, endpoint: Endpoint) -> None:
        self.table.restarted(endpoint)

    def view(self, access: Access | None = None) -> Endpoints:
        return self.table.view(Access(self.accesses.running, self.accesses.access.on_violation))


@dataclass(slots=True)
class Clock:
    """A manual clock; tests set `now`, in seconds."""

    now: float = START_OF_TIME

    def __call__(self) -> float:
        """Return the time in seconds, as set by the test."""
        return self.now


@dataclass
class Bench:
    """One instance of a plugin, with the data, clock and recorders that it runs with."""

    instance: Instance
    block: str  # origin of the `parameters:`
    table: EndpointTable
    accesses: Accesses
    clock: Clock
    samples: Mapping[AnyKey, Sequence[object]]
    payloads: Sequence[object] = ()  # for collectors: the author's, else garbage of the right type
    watch: Watch = field(default_factory=Watch)
    _made_up: dict[tuple[Reported, int], tuple[Generation, Random]] = field(default_factory=dict)

    @property
    def consumed(self) -> tuple[AnyKey, ...]:
        """The data keys that the instance consumes."""
        declared = self.instance.subscriptions
        return (*declared.consumes, *declared.consumes_optional)

    def plugin_as(self, kind: Callable[..., T]) -> T:
        """Return the plugin, which is an instance of `kind`."""
        plugin = self.instance.plugin
        assert isinstance(plugin, cast("type[T]", kind))
        return plugin

    def call(self, method: Callable[..., object], *arguments: object) -> object:
        """Call a method; returns its answer, or `Raised`."""
        self.accesses.access.scope = self.accesses.running
        try:
            with watched(self.watch):
                return method(*arguments)
        except PLUGIN_ERRORS as problem:
            return Raised(problem)
        finally:
            self.accesses.access.scope = None

    def writer(self, endpoint: Endpoint | None = None) -> TableWriter:
        """Return the column writer that the instance gets as a collector."""
        recording = _RecordingTable(self.table, self.accesses)
        return TableWriter(recording, self.instance.scope, endpoint, self.accesses.access.on_violation)

    def scene(self, reported: Reported = Reported.EVERYTHING, size: int = TYPICAL_SIZE, request: InferenceRequest | None = None) -> Scene:
        """Return a request and candidates with plausible data for the declared keys; always the same data."""
        if (reported, size) not in self._made_up:
            random = Random(1)  # noqa: S311 - made-up data
            self._made_up[reported, size] = self._generation(reported, size, random), random
        generation, random = self._made_up[reported, size]
        endpoints = Endpoints(unprotected(generation), None, self.accesses.access)
        return Scene(request or make_request(), endpoints, self._state(endpoints, reported, copy(random)))

    def _generation(self, reported: Reported, size: int, random: Random) -> Generation:
        columns = {key: self._column(key, reported, size, random) for key in self.consumed if key.scope is Scope.ENDPOINT}
        pool = {key: self._value(key, random) for key in self.consumed if key.scope is Scope.POOL and reported is not Reported.NOTHING}
        labels = [_LABELS[number % len(_LABELS)] for number in range(size)]
        return make_pool(columns or size, labels=labels, pool=pool, clock=self.clock).generation

    def _state(self, endpoints: Endpoints, reported: Reported, random: Random) -> CycleState:
        state = CycleState(self.accesses.access)
        if reported is Reported.NOTHING:
            return state
        for key in self.consumed:
            assert isinstance(key, DataKey)
            if key.scope is Scope.REQUEST:
                state.put(key, self._value(key, random))
            if key.scope is Scope.CANDIDATE:
                column = self._column(key, reported, len(endpoints), random)
                state.put_column(key, endpoints, np.array([np.nan if value is None else value for value in column], dtype=np.float64))
        return state

    def _column(self, key: AnyKey, reported: Reported, size: int, random: Random) -> list[object]:
        match reported:
            case Reported.NOTHING:
                return [None] * size
            case Reported.ZEROS if key.is_number:
                return [0.0] * size
            case Reported.SOME:
                return [self._value(key, random) if number % 2 else None for number in range(size)]
            case _:
                return [self._value(key, random) for _ in range(size)]

    def _value(self, key: AnyKey, random: Random) -> object:
        return value_of(key, random, self.samples)


def make_bench(
    subject: PluginUnderTest, block: str, parameters: Parameters, *, seed: int = 1, is_shared: bool = False
) -> Bench | Diagnostic:
    """Build the plugin as the host does, with recorders around it."""
    declared = subscriptions_of(subject.loaded, parameters)
    if isinstance(declared, Diagnostic):
        return declared
    scope, clock = scope_of(subject.name, declared), Clock()
    accesses = Accesses(scope)
    keys = (*declared.consumes, *declared.consumes_optional, *declared.produces)
    table = make_pool(TYPICAL_SIZE, keys=keys, clock=clock)
    payloads = subject.inputs.payloads or garbage_of(payload_of(subject.plugin) or object)
    context = PluginContext(
        random=Random(seed),  # noqa: S311 - routing needs no secrets
        clock=clock,
        logger=_quiet_logger(),
        registry=CollectorRegistry(),
        columns=TableWriter(_RecordingTable(table, accesses), scope, None, accesses.access.on_violation),
        instances=stub_instances(parameters),
        is_shared=is_shared,
    )
    built = build(subject.loaded, subject.name, parameters, None, context, subscriptions=declared)
    return built if isinstance(built, Diagnostic) else Bench(built, block, table, accesses, clock, subject.inputs.samples, payloads)


class _AlwaysDisaggregate(DisaggregationDecider):
    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        return True


class _HalfSaturated(SaturationDetector):
    def saturation(self, endpoints: Endpoints) -> float:
        return 0.5 if len(endpoints) else 1.0


_STUBS: Mapping[type[Plugin[Any]], type[Plugin[Parameters]]] = {
    DisaggregationDecider: _AlwaysDisaggregate,
    SaturationDetector: _HalfSaturated,
}


def stub_instances(parameters: Parameters) -> dict[str, Plugin[Parameters]]:
    """Return a stub for each instance that the parameters name."""
    named = {reference.name: _STUBS[reference.kind] for reference in references_in(parameters, {}) if reference.kind in _STUBS}
    return {name: stub(name, Parameters(), PluginContext()) for name, stub in named.items()}


def _quiet_logger() -> logging.Logger:
    logger = logging.getLogger("endpick.testing.plugin")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return logger


def benches(subject: PluginUnderTest, *, seed: int = 1, is_shared: bool = False) -> Iterator[Bench]:
    """Yield a bench for each `parameters:` block that the host accepts."""
    for block, parameters in subject.valid_blocks():
        bench = make_bench(subject, block.origin, parameters, seed=seed, is_shared=is_shared)
        if isinstance(bench, Bench):
            yield bench


def instances(subject: PluginUnderTest, kind: Callable[..., P]) -> Iterator[tuple[Bench, P]]:
    """Yield a bench for each `parameters:` block that the host accepts, and its plugin as an instance of `kind`."""
    for bench in benches(subject):
        yield bench, bench.plugin_as(kind)


DEFAULT_PROFILE = "default"


def profiles_of(bench: Bench) -> tuple[str, ...]:
    """Return the profiles that a handler requires or names in its parameters, else `default`."""
    parameters = bench.instance.plugin.parameters.model_dump()
    named = [value for name, value in parameters.items() if "profile" in name.lower() and isinstance(value, str) and value]
    plugin = bench.instance.plugin
    if isinstance(plugin, ProfileHandler):
        named = [*plugin.required_profiles(plugin.parameters), *plugin.optional_profiles(plugin.parameters), *named]
    return tuple(dict.fromkeys(named)) or (DEFAULT_PROFILE,)
