"""A host without sockets: plans, builds and schedules over endpoints from a test or a file."""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from endpick.api import DataCollector
from endpick.api.access import AccessScope
from endpick.api.data import AnyKey, Scope
from endpick.api.endpoint import Endpoint
from endpick.api.plugin import Parameters, Plugin
from endpick.api.request import DirectResponse, InferenceRequest
from endpick.config import load_config
from endpick.config.load import documents_of
from endpick.diagnostics import did_you_mean, render_text
from endpick.engine.building import declared_keys
from endpick.engine.instances import StartRefused
from endpick.engine.picker import Picker, PickerSettings
from endpick.host.discovery import API_MAJOR, Candidate, discover
from endpick.host.hooks import Hooks
from endpick.host.instance import Instance
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan
from endpick.host.telemetry import FaultRecord, NullTelemetry
from endpick.requests.headers import REQUEST_ID
from endpick.requests.model import CloseCause, Decision, Exchange, IncomingRequest, Refused, Routed
from endpick.requests.pipeline import Pipeline
from endpick.requests.record import DecisionRecord, Why
from endpick.requests.waiting import EXPIRY_SECONDS
from endpick.scheduling.trace import ProfileRecord
from endpick.testing.bench import Clock
from endpick.testing.factories import BUILT_IN_KEYS, make_pool

TEST_DISTRIBUTION = "plugins-under-test"
_OFFERED = "endpick_testing_offered"
DEFAULT_PATH = "/v1/chat/completions"
_STEP_SECONDS = 0.001
_PATIENCE_SECONDS = 3600.0


class HostRefused(Exception):  # noqa: N818 - an outcome, not an accident
    """The configuration or a plugin is refused; the message is the output of `endpick validate`."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """One decision of `Host`, and the answers of every plugin.

    Attributes:
        record: The decision's record, as in `endpick schema decision`.
        destinations: `host:port`, best first; empty for a refusal and a plugin's own response.
        status: HTTP status of a refusal or of a plugin's own response; None if the request was routed.
        headers: Headers added for the model server.
    """

    record: DecisionRecord
    destinations: tuple[str, ...]
    status: int | None
    headers: Mapping[str, str]

    @property
    def waits(self) -> bool:
        """True if the request waited in flow control for an hour without a decision."""
        return not self.destinations and self.status is None

    @property
    def refusal(self) -> str:
        """The reason of the refusal for the client; empty if not refused."""
        return self.record.refusal

    @property
    def runs(self) -> tuple[ProfileRecord, ...]:
        """The runs of scheduling profiles, in order, with the answers of their plugins."""
        return tuple(self.record.runs)

    @property
    def faults(self) -> tuple[FaultRecord, ...]:
        """The plugins that raised, returned an invalid answer, or read an undeclared key."""
        return tuple(self.record.faults)

    def run(self, profile: str) -> ProfileRecord:
        """Return the run of one profile. Raises KeyError if the profile did not run."""
        return {run.profile: run for run in self.runs}[profile]


class _AccessLog(NullTelemetry):
    def undeclared_access(self, scope: AccessScope, key: str, access: Literal["read", "write"]) -> None:
        if self.listener is not None:
            self.listener.append(FaultRecord(scope.instance, access, f"data key '{key}' is not declared"))


class _LatestRecord:
    def __init__(self) -> None:
        self._record: DecisionRecord | None = None

    def begin(self, request: InferenceRequest, plan: str) -> DecisionRecord:
        self._record = DecisionRecord.of(request, plan, Why.ASKED)
        return self._record

    def finish(self, record: DecisionRecord) -> None:
        if self._record is None:
            self._record = record

    def take(self) -> DecisionRecord | None:
        record, self._record = self._record, None
        return record


class Host:
    """A planned and built configuration that decides without serving.

    ```python
    def test_idle_endpoint_wins(host):
        picker = host(CONFIG, {"acme.latency-scorer": LatencyScorer})
        picker.put({WAITING_QUEUE_SIZE: [9, 0, 4]})
        assert picker.ask("Hello").destinations == ("10.0.0.2:8000",)
    ```

    It is the picker of `endpick serve`, except that sources and discoveries do not run: `put` fills the endpoint table. Time stands still
    unless `clock.now` is set; while a request waits in flow control, a second passes at a time. Reading an undeclared data key is a fault.
    Close it, or use it as a context manager.
    """

    def __init__(self, plan: Plan, *, seed: int = 1, adapt: Callable[[Pipeline], Pipeline] | None = None) -> None:
        """Build and start a plan, whose pipeline `adapt` may change. Raises HostRefused."""
        self.plan = plan
        self.clock = Clock()
        self.keys: Mapping[str, AnyKey] = {key.name: key for key in (*BUILT_IN_KEYS, *declared_keys(plan))}
        self._log = _LatestRecord()
        self.picker = Picker(
            plan,
            PickerSettings(is_offline=True),
            clock=self.clock,
            telemetry=_AccessLog(),
            random=random.Random(seed),  # noqa: S311 - routing needs no secrets
            decisions=self._log,
            keys=BUILT_IN_KEYS,
            adapt=adapt or (lambda pipeline: pipeline),
        )
        self.table = self.picker.table
        self._runner = asyncio.Runner()
        self._is_closed = False
        try:
            self._runner.run(self.picker.start())
        except StartRefused as refusal:
            self.close()
            raise HostRefused(render_text(refusal.diagnostics, {plan.config.path: plan.config.source.text}, colour=False)) from refusal
        except BaseException:
            self.close()
            raise

    @property
    def instances(self) -> Mapping[str, Instance]:
        """The plugin instances of the current plan by name, with their plugins as `instance.plugin`."""
        return self.picker.deployment.instances

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(self, columns: Mapping[AnyKey, Sequence[object]] | int, labels: Sequence[Mapping[str, str]] = ()) -> None:
        """Replace the endpoints and their values, as reported just now; see `make_pool`."""
        pool = make_pool(columns, labels=labels, clock=self.clock)
        self.table.replace_all(pool.generation.endpoints)
        for key, values in ({} if isinstance(columns, int) else columns).items():
            for endpoint, value in zip(pool.generation.endpoints, values, strict=True):
                if value is not None:
                    self.table.write(key, endpoint, value)

    def ask(
        self, prompt: str = "Say something.", *, model: str = "base", headers: Mapping[str, str] | None = None, path: str = DEFAULT_PATH
    ) -> Explanation:
        """Send a chat request with this prompt, and return the decision. It ends at once."""
        body = {"model": model, "messages": [{"role": "user", "content": prompt}]}
        return self.send(json.dumps(body).encode(), headers=headers, path=path)

    def send(self, body: bytes, *, headers: Mapping[str, str] | None = None, path: str = DEFAULT_PATH) -> Explanation:
        """Send a request with this body, and return the decision.

        The request ends at once, so later requests see no load from it.
        """
        explanation, exchange = self.begin(body, headers=headers, path=path)
        if exchange is not None:
            exchange.finish(CloseCause.RESET)
        return explanation

    def begin(
        self, body: bytes, *, headers: Mapping[str, str] | None = None, path: str = DEFAULT_PATH
    ) -> tuple[Explanation, Exchange | None]:
        """Send a request that goes on until its exchange is finished.

        Returns:
            The decision, and the exchange; None if the request was not routed.
        """
        named = {REQUEST_ID: "request-1"} | {name.lower(): value for name, value in (headers or {}).items()}
        incoming = IncomingRequest({":path": path, ":method": "POST", **named}, body, None, self.clock())
        self._log.take()
        decision = self._runner.run(self._decide(incoming))
        routed, refused = (decision, None) if isinstance(decision, Routed) else (None, decision)
        record = self._log.take() or DecisionRecord(Why.ASKED, "", named[REQUEST_ID], "", path, 0, "")
        if isinstance(refused, Refused):
            record.refused(refused)
        record.time, record.schedule_seconds = self.clock(), 0.0  # the same seed gives the same record
        explanation = Explanation(
            record,
            () if routed is None else routed.destinations,
            None if refused is None else refused.status,
            {} if routed is None else routed.set_headers,
        )
        return explanation, None if routed is None else routed.exchange

    def replace(self, plan: Plan) -> None:
        """Decide with another plan from now on, as after a reload. Raises HostRefused."""
        try:
            self._runner.run(self._replace(plan))
        except StartRefused as refusal:
            raise HostRefused(render_text(refusal.diagnostics, {plan.config.path: plan.config.source.text}, colour=False)) from refusal
        self.plan = plan

    def close(self) -> None:
        """Stop every plugin and close the event loop. A second call does nothing."""
        if not self._is_closed:
            self._is_closed = True
            self._runner.run(self.picker.stop())
            self._runner.close()

    async def _replace(self, plan: Plan) -> None:
        await self.picker.replace(await self.picker.prepare(plan))

    async def _decide(self, incoming: IncomingRequest) -> Decision | None:
        """None for a request that waits for longer than an hour."""
        decision = self.picker.decide(incoming)
        if isinstance(decision, Routed | Refused | DirectResponse):
            return decision
        task, gate = asyncio.ensure_future(decision), self.picker.gate
        give_up = self.clock.now + _PATIENCE_SECONDS
        while gate.waiting and not task.done():  # nothing changes while time stands still, so it moves on
            await asyncio.wait({task}, timeout=_STEP_SECONDS)
            self.clock.now += EXPIRY_SECONDS
            gate.something_changed()
            if self.clock.now > give_up:
                task.cancel()
                await asyncio.wait({task})
                return None
        return await task


def host_of(
    config: str | None = None,
    plugins: Mapping[str, type[Plugin[Any]]] | None = None,
    *,
    seed: int = 1,
    installed: Sequence[Candidate] | None = None,
) -> Host:
    """Make a host for a configuration in YAML or JSON, or for the built-in default.

    `plugins`, by type, replace installed ones. Raises HostRefused.
    """
    loaded = load_config(text=config, name="config.yaml") if config is not None else load_config()
    offered = tuple(_offer(plugin_type, plugin) for plugin_type, plugin in (plugins or {}).items())
    types = {candidate.type for candidate in offered}
    others = [candidate for candidate in (discover() if installed is None else installed) if candidate.type not in types]
    outcome = make_plan(loaded, (*others, *offered), hooks=Hooks())
    if outcome.plan is None:
        raise HostRefused(render_text(outcome.diagnostics, {loaded.path: loaded.source.text}, colour=False))
    return Host(outcome.plan, seed=seed)


def _offer(plugin_type: str, plugin: type[Plugin[Parameters]]) -> Candidate:
    module = sys.modules.setdefault(_OFFERED, ModuleType(_OFFERED))
    attribute = f"{plugin.__name__}_{id(plugin)}"
    setattr(module, attribute, plugin)
    return Candidate(plugin_type, API_MAJOR, TEST_DISTRIBUTION, "0", f"{_OFFERED}:{attribute}", "")


class FixtureError(ValueError):
    """Raised for an invalid endpoints file; the message lists the mistakes."""


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class _Entry(_Closed):
    name: str
    namespace: str = "default"
    address: str
    port: Annotated[int, Field(ge=1, le=65535)]
    labels: Mapping[str, str] = {}
    data: Mapping[str, object] = {}


class EndpointsFixture(_Closed):
    """Endpoints as in `file-discovery`, with `data:` by data key; `pool:` is data of the pool."""

    endpoints: tuple[_Entry, ...]
    pool: Mapping[str, object] = {}


def read_fixture(text: bytes) -> EndpointsFixture:
    """Read an endpoints file in YAML or JSON. Raises FixtureError."""
    return read_document(EndpointsFixture, text, FixtureError)


M = TypeVar("M", bound=BaseModel)


def read_document(model: type[M], text: bytes, refusal: type[ValueError]) -> M:
    """Read the first document of a text in YAML or JSON; raises `refusal`, with a line for each mistake."""
    try:
        return model.model_validate(next(iter(documents_of(text.decode())), None))
    except ValidationError as error:
        found = [f"{'.'.join(map(str, detail['loc'])) or 'the document'}: {detail['msg']}" for detail in error.errors(include_url=False)]
        raise refusal("\n".join(found)) from error
    except ValueError as error:
        raise refusal(f"it is not YAML: {error}") from error


def arrange(host: Host, situation: EndpointsFixture) -> None:
    """Put endpoints and data into the host's table, as reported just now. Raises FixtureError."""
    known = host.keys
    mistakes: list[str] = []
    endpoints = {f"{entry.namespace}/{entry.name}": entry for entry in situation.endpoints}
    if len(endpoints) < len(situation.endpoints):
        mistakes.append("endpoints: two have the same name")
    host.table.replace_all(Endpoint(name, entry.address, entry.port, entry.labels) for name, entry in endpoints.items())
    for name, entry in endpoints.items():
        endpoint = host.table.find(name)
        assert endpoint is not None
        for key, value in _read(entry.data, Scope.ENDPOINT, known, f"data of {name}", mistakes):
            host.table.write(key, endpoint, value)
    for key, value in _read(situation.pool, Scope.POOL, known, "pool", mistakes):
        host.table.write_pool(key, value)
    if mistakes:
        raise FixtureError("\n".join(mistakes))


def missing_data(host: Host) -> tuple[str, ...]:
    """Return a sentence for each required key of a collector that some endpoints have no value for."""
    generation = host.table.generation
    collectors = {instance.name for instance in host.instances.values() if DataCollector in instance.kinds}
    readers: dict[str, list[str]] = {}
    for subscription in host.plan.graph.subscriptions:
        if subscription.required and subscription.producer in collectors and subscription.consumer not in collectors:
            readers.setdefault(subscription.key.partition("@")[0], []).append(subscription.consumer)
    found = []
    for key, names in readers.items():
        written_at = generation.columns[key].written_at.tolist()
        missing = [endpoint.name for endpoint, at in zip(generation.endpoints, written_at, strict=True) if at == -math.inf]
        if missing:
            found.append(f"{', '.join(missing)}: no '{key}', which {', '.join(names)} reads")
    return tuple(found)


def _read(
    data: Mapping[str, object], scope: Scope, known: Mapping[str, AnyKey], where: str, mistakes: list[str]
) -> Iterable[tuple[AnyKey, object]]:
    names = sorted(name for name, key in known.items() if key.scope is scope)
    for name, written in data.items():
        if name not in names:
            hint = did_you_mean(name, names) or f"known are {', '.join(names) or 'none'}"
            mistakes.append(f"{where}: there is no data key '{name}' of scope '{scope}'; {hint}")
            continue
        try:
            yield known[name], TypeAdapter(known[name].type).validate_python(written)
        except ValidationError as error:
            mistakes.append(f"{where}: {written!r} is no value of '{name}': {error.errors(include_url=False)[0]['msg']}")
