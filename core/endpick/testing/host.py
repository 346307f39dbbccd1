"""A whole host without sockets: real planning, building and scheduling over endpoints that a test or a file describes."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal, Self

from endpick.api.access import Access, AccessScope
from endpick.api.data import AnyKey
from endpick.api.errors import ConfigurationError
from endpick.api.plugin import Kind, Parameters, Plugin, PluginContext
from endpick.config import load_config
from endpick.diagnostics import render_text
from endpick.observability.instruments import Silent
from endpick.planning.build import build_plan
from endpick.planning.compile import compile_pipeline, declared_keys
from endpick.planning.plan import Plan, PlannedInstance
from endpick.planning.planner import make_plan
from endpick.plugins.discovery import Candidate, discover
from endpick.plugins.instance import Instance, scope_of
from endpick.requests.decision import CloseCause, Decision, Refused, Routed
from endpick.requests.director import Director, DirectorSettings
from endpick.requests.headers import REQUEST_ID
from endpick.requests.incoming import IncomingRequest
from endpick.scheduling.explaining import explained
from endpick.scheduling.record import ProfileRecord
from endpick.testing.bench import Clock
from endpick.testing.pools import BUILT_IN_KEYS, make_pool
from endpick.versions import API_MAJOR

TEST_DISTRIBUTION = "plugins-under-test"
_OFFERED = "endpick_testing_offered"
DEFAULT_PATH = "/v1/chat/completions"
_IDLE = frozenset({Kind.DATA_SOURCE, Kind.DATA_COLLECTOR, Kind.ENDPOINT_DISCOVERY})
"""Kinds that no decision calls: they are built and not started."""


class HostRefused(Exception):  # noqa: N818 - what `endpick validate` would say, as an exception
    """The configuration, or a plugin, would not start; the message is what `endpick validate` prints."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A plugin raised, or answered nonsense, during a decision."""

    instance: str
    extension_point: str
    problem: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision, and what every plugin had to say in it.

    Attributes:
        destinations: `host:port`, best first; none when the request was refused.
        status: HTTP status of a refusal; None when the request was routed.
        refusal: Why it was refused; empty when it was routed.
        headers: What was added to the request for the model server.
        pool: Names of all endpoints.
        runs: The profile runs, in order.
        faults: What went wrong on the way.
    """

    destinations: tuple[str, ...]
    status: int | None
    refusal: str
    headers: Mapping[str, str]
    pool: tuple[str, ...]
    runs: tuple[ProfileRecord, ...]
    faults: tuple[FaultRecord, ...]

    def run(self, profile: str) -> ProfileRecord:
        """The run of one profile; KeyError when it was not run."""
        return {run.profile: run for run in self.runs}[profile]


class _FaultLog(Silent):
    """Instruments that remember faults."""

    def __init__(self) -> None:
        self.faults: list[FaultRecord] = []

    def fault(self, instance: Instance, extension_point: str, problem: BaseException | str) -> None:
        text = problem if isinstance(problem, str) else f"{type(problem).__name__}: {problem}"
        self.faults.append(FaultRecord(instance.name, str(extension_point), text))

    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        self.faults.append(FaultRecord(scope.instance, access, f"data key '{key}' is not declared"))


class Host:
    """A configuration, planned and built, that answers questions instead of serving.

    ```python
    def test_idle_endpoint_wins(host):
        picker = host(CONFIG, [LatencyScorer])
        picker.put({WAITING_QUEUE_SIZE: [9, 0, 4]})
        assert picker.ask("Hello").destinations == ("10.0.0.2:8000",)
    ```

    Sources and discoveries do not run: the table holds what `put` says, and time stands still unless `clock.now` is set. Reading an
    undeclared data key is a fault. Close it at the end, or use it as a context manager; the fixture does.

    Attributes:
        plan: What the configuration came to.
        table: The endpoint table.
        keys: The data keys that can be written to it, by name.
        clock: What plugins read as the time.
        instances: Every instance by name.
    """

    def __init__(self, plan: Plan, *, seed: int = 1) -> None:
        """Build and start a plan; the same seed gives the same draws.

        Raises:
            HostRefused: a plugin would not be built or would not start.
        """
        self.plan = plan
        self.clock = Clock()
        self.keys: Mapping[str, AnyKey] = {key.name: key for key in (*BUILT_IN_KEYS, *declared_keys(plan))}
        self.table = make_pool(0, keys=self.keys.values(), clock=self.clock)
        self._faults = _FaultLog()
        self._runs: list[ProfileRecord] = []
        draws = random.Random(seed)  # noqa: S311 - routing needs no secrets

        def context_for(planned: PlannedInstance) -> PluginContext:
            columns = self.table.writer(scope_of(planned.name, planned.subscriptions))
            return PluginContext(random=random.Random(draws.random()), clock=self.clock, columns=columns)  # noqa: S311

        built = build_plan(plan, context_for)
        if isinstance(built, tuple):
            raise HostRefused(render_text(built, {plan.config.path: plan.config.source.text}, colour=False))
        self.instances: Mapping[str, Instance] = built.instances
        pipeline = compile_pipeline(plan, built, self._faults)
        listening = replace(pipeline, scheduler=explained(pipeline.scheduler, self._runs.append))
        settings = DirectorSettings(random=random.Random(draws.random()))  # noqa: S311
        access = Access(on_violation=self._faults.undeclared_access)
        self._director = Director(lambda: listening, self.table, self._faults, self.clock, settings, access)
        self._runner = asyncio.Runner()
        self._started: list[Instance] = []
        try:
            self._runner.run(self._start())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, columns: Mapping[AnyKey, Sequence[object]] | int, labels: Sequence[Mapping[str, str]] = ()) -> None:
        """Make these the endpoints `default/e0`, `default/e1`, …; see `endpick.testing.make_pool`."""
        pool = make_pool(columns, labels=labels, clock=self.clock)
        self.table.replace_all(pool.generation.endpoints)
        for key, values in ({} if isinstance(columns, int) else columns).items():
            for endpoint, value in zip(pool.generation.endpoints, values, strict=True):
                if value is not None:
                    self.table.write(key, endpoint, value)

    def ask(
        self, prompt: str = "Say something.", *, model: str = "base", headers: Mapping[str, str] | None = None, path: str = DEFAULT_PATH
    ) -> Explanation:
        """Send a chat request through every plugin of the configuration."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
        return self.send(json.dumps(body).encode(), headers=headers, path=path)

    def send(self, body: bytes, *, headers: Mapping[str, str] | None = None, path: str = DEFAULT_PATH) -> Explanation:
        """Send any request. The response is over at once, as if the client had gone, so nothing counts as in flight afterwards."""
        self._runs.clear()
        self._faults.faults.clear()
        named = {REQUEST_ID: "request-1"} | {name.lower(): value for name, value in (headers or {}).items()}
        incoming = IncomingRequest({":path": path, ":method": "POST", **named}, body, None, self.clock())
        decision = self._runner.run(self._decide(incoming))
        routed, refused = (decision, None) if isinstance(decision, Routed) else (None, decision)
        if routed is not None:
            routed.exchange.finish(CloseCause.RESET)
        return Explanation(
            () if routed is None else routed.destinations,
            None if refused is None else refused.status,
            "" if refused is None else refused.message,
            {} if routed is None else routed.set_headers,
            tuple(endpoint.name for endpoint in self.table.generation.endpoints),
            tuple(self._runs),
            tuple(self._faults.faults),
        )

    def close(self) -> None:
        """Stop every plugin. Safe to call twice."""
        if self._started:
            self._runner.run(self._stop())
        self._runner.close()

    async def _decide(self, incoming: IncomingRequest) -> Decision:
        decision = self._director.decide(incoming)
        return decision if isinstance(decision, Routed | Refused) else await decision

    async def _start(self) -> None:
        for instance in self.instances.values():
            if not _IDLE & set(instance.kinds):
                try:
                    await instance.plugin.start()
                except ConfigurationError as problem:
                    raise HostRefused(f"{instance.origin}: {problem}") from problem
                self._started.append(instance)

    async def _stop(self) -> None:
        while self._started:
            await self._started.pop().plugin.stop()


def host_of(
    config: str | None = None,
    plugins: Sequence[type[Plugin[Any]]] = (),
    *,
    seed: int = 1,
    installed: Sequence[Candidate] | None = None,
) -> Host:
    """A host for the text of a configuration; None means the built-in default.

    Args:
        config: YAML or JSON.
        plugins: Classes to offer under their types, as if they were installed; they take the place of installed ones.
        seed: Of everything random.
        installed: What else is installed; looked up unless given.

    Raises:
        HostRefused: there is a mistake in the configuration, or a plugin would not be built.
    """
    loaded = load_config(text=config, name="config.yaml") if config is not None else load_config()
    offered = tuple(_offer(plugin) for plugin in plugins)
    types = {one.type for one in offered}
    others = [one for one in (discover() if installed is None else installed) if one.type not in types]
    outcome = make_plan(loaded, (*others, *offered))
    if outcome.plan is None:
        raise HostRefused(render_text(outcome.diagnostics, {loaded.path: loaded.source.text}, colour=False))
    return Host(outcome.plan, seed=seed)


def _offer(plugin: type[Plugin[Parameters]]) -> Candidate:
    """An entry point that leads to the class, also to one that is defined inside a test."""
    module = sys.modules.setdefault(_OFFERED, ModuleType(_OFFERED))
    attribute = f"{plugin.__name__}_{id(plugin)}"
    setattr(module, attribute, plugin)
    return Candidate(plugin.meta.type, API_MAJOR, TEST_DISTRIBUTION, "0", f"{_OFFERED}:{attribute}", "")
