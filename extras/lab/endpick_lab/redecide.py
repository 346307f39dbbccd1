"""Decides recorded requests again with another plan, over the values that were recorded."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from endpick.api.data import AnyKey, Scope
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import Endpoints
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, PrefixBlocks
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import ScoredEndpoints
from endpick.api.state import CycleState
from endpick.engine.reasons import loss_of
from endpick.host.boundary import Step
from endpick.host.methods import PRODUCE
from endpick.host.planning.plan import Plan
from endpick.requests.document import DecisionOutput, EndpointValues, ProfileRun
from endpick.requests.model import CloseCause, Exchange
from endpick.requests.pipeline import CompiledProducer, Pipeline
from endpick.requests.record import document_of
from endpick.scheduling.scheduler import Profile
from endpick.scheduling.trace import names_of
from endpick.testing.bench import START_OF_TIME
from endpick.testing.host import Host, missing_data
from endpick_lab.answers import begin_stream, fail, finish
from endpick_lab.decisions import Decisions, DecisionsError, mistake
from endpick_lab.trace import TraceRequest, body_of

_PATH = "/v1/completions"
_FIRST_ERROR = 400
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Redecided:
    """One request with its recorded and its new pick, None if there was none.

    Attributes:
        reason: Why the pick moved, in the words of `endpick why`.
        totals: Of the recorded and the new pick, if the plan rated both.
    """

    id: str
    time: str
    was: EndpointValues | None
    now: EndpointValues | None
    reason: str
    totals: tuple[float, float] | None
    prompt_tokens: int
    block_tokens: int

    @property
    def moved(self) -> bool:
        """Whether another endpoint is picked."""
        return self.was is not self.now


class Redecider:
    """A host whose pickers are overruled: requests go to the recorded endpoints, so plugins learn from them."""

    def __init__(self, plan: Plan, seed: int) -> None:
        """Build the host of a plan; raises HostRefused."""
        self.host = Host(plan, seed=seed, adapt=self._adapted)
        self.left_out: tuple[str, ...]
        self._recorded: DecisionOutput
        self._new_picks: dict[str, tuple[str, ...]] = {}  # by profile
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._values = _Values(self.host.keys)

    def decide(self, decisions: Decisions) -> Iterator[Redecided]:
        """Decide all requests in order of time; raises OSError, DecisionsError."""
        first = decisions.places[0].at
        for request, (place, line) in zip(decisions.trace(), decisions.lines(), strict=True):
            now = START_OF_TIME + place.at - first
            while self._due and self._due[0][0] <= now:
                self.host.clock.now, _, callback = heappop(self._due)
                callback()
            self.host.clock.now = now
            try:
                yield self._redecide(DecisionOutput.model_validate_json(line), request)
            except ValidationError as error:
                raise DecisionsError(mistake(decisions.path, place.line, error)) from error

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about data that the records lack, after the first decision."""
        return missing_data(self.host)

    def _redecide(self, recorded: DecisionOutput, request: TraceRequest) -> Redecided:
        self._recorded = recorded
        self._new_picks.clear()
        self._restore_endpoints()
        headers = {"x-request-id": recorded.id, **request.headers}
        body = body_of(replace(request, adapter=recorded.model or None), "unnamed")
        explanation, exchange = self.host.begin(body, headers=headers, path=_PATH)
        decided = DecisionOutput.model_validate(document_of(explanation.record, values=False))
        primary = _primary(decided, recorded.endpoints)
        if primary is not None:
            primary.picked = list(self._new_picks[primary.profile])
        if exchange is not None:
            self._schedule_end(exchange, request)
        return _compared(recorded, decided, primary)

    def _restore_endpoints(self) -> None:
        table, now = self.host.table, self.host.clock.now
        known = {endpoint.name: endpoint for endpoint in table.generation.endpoints}
        table.replace_all(_endpoint(row, known.get(row.name)) for row in self._recorded.endpoints)
        for row in self._recorded.endpoints:
            endpoint = table.find(row.name)
            for name, written in row.values.items():
                key = self.host.keys.get(name)
                if endpoint is not None and key is not None and key.scope is Scope.ENDPOINT:
                    self.host.clock.now = now - row.ages.get(name, 0.0)
                    table.write(key, endpoint, self._values.read(key, written))
        self.host.clock.now = now

    def _adapted(self, pipeline: Pipeline) -> Pipeline:
        """Put recorded values after the producers, and overrule the pickers."""
        scheduler = pipeline.scheduler
        profiles = {name: self._overruled(profile) for name, profile in scheduler.profiles.items()}
        self.left_out = tuple(producer.step.instance.name for producer in pipeline.producers_later if producer.awaits)
        picker = next(iter(profiles.values())).picker
        put = Step(self._put_recorded, picker.instance, PRODUCE, picker.telemetry)
        producers = [producer for producer in pipeline.producers if not producer.awaits]
        return replace(
            pipeline,
            producers_at_once=(*producers, CompiledProducer(put, awaits=False, timeout_seconds=0.0)),
            producers_later=(),
            scheduler=replace(scheduler, profiles=profiles),
        )

    def _overruled(self, profile: Profile) -> Profile:
        step = profile.picker
        choose: Callable[..., object] = step.call

        def pick(request: InferenceRequest, scored: ScoredEndpoints, state: CycleState) -> object:
            chosen = choose(request, scored, state)
            if not isinstance(chosen, Endpoints):
                return chosen
            self._new_picks[profile.name] = names_of(chosen)
            recorded_pick = _picked(self._recorded, profile.name)
            position = scored.endpoints.position(recorded_pick)
            return chosen if position is None else scored.take([position])

        picker = step.calling(pick)
        return Profile(profile.name, profile.filters, profile.scorers, profile.weights, picker)

    def _put_recorded(self, _request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        recorded = self._recorded
        view = self.host.table.view()
        names = {name for row in recorded.endpoints for name in row.values if name not in row.ages}
        for name in names:
            column = [row.values.get(name) for row in recorded.endpoints]
            numbers = np.array([value if isinstance(value, int | float) else math.nan for value in column], np.float64)
            state._columns[name] = view, numbers
        shape = recorded.request
        if shape is not None and shape.block_tokens and PREFIX_MATCH_BLOCKS.name in names:
            blocks = -(-shape.prompt_tokens // shape.block_tokens)
            state._values[PREFIX_BLOCKS.name] = PrefixBlocks(blocks, shape.block_tokens)

    def _schedule_end(self, exchange: Exchange, request: TraceRequest) -> None:
        ended, now = self._recorded.outcome, self.host.clock.now
        if ended is None:
            exchange.finish(CloseCause.RESET)
            return
        address = next((row.address for row in self._recorded.endpoints if row.name == ended.served_by), self._recorded.destinations[0])
        if ended.status >= _FIRST_ERROR or not ended.status:
            headers = {":status": str(ended.status or 503)}
            self._at(now + ended.duration_seconds, lambda: fail(exchange, headers, address, ended.gateway_error))
        elif ended.cause != "natural":
            self._at(now + ended.duration_seconds, lambda: exchange.finish(CloseCause.RESET))
        else:
            if request.stream and ended.ttft_seconds is not None:
                self._at(now + ended.ttft_seconds, lambda: begin_stream(exchange, address))
            tokens = ended.prompt_tokens or request.prompt_tokens, ended.completion_tokens or 0, ended.cached_tokens
            streams = request.stream and ended.ttft_seconds is not None
            self._at(now + ended.duration_seconds, lambda: finish(exchange, address, streams, tokens))

    def _at(self, when: float, callback: Callable[[], None]) -> None:
        heappush(self._due, (when, next(self._numbers), callback))


def _primary(decided: DecisionOutput, endpoints: Sequence[EndpointValues]) -> ProfileRun | None:
    """The run that picked the destination."""
    addresses = {endpoint.name: endpoint.address for endpoint in endpoints}
    picked = [run for run in decided.runs if run.picked]
    return next((run for run in picked if addresses.get(run.picked[0]) in decided.destinations[:1]), None)


def _compared(recorded: DecisionOutput, decided: DecisionOutput, primary: ProfileRun | None) -> Redecided:
    named = {endpoint.name: endpoint for endpoint in recorded.endpoints}
    old, new = _picked(recorded, ""), "" if primary is None else primary.picked[0]
    reason, totals = "", None
    if old != new:
        reason = decided.refusal if primary is None else loss_of(old, decided, primary) if old else "it was refused"
    if primary is not None and old in primary.candidates:
        totals = primary.totals[primary.candidates.index(old)], primary.totals[primary.candidates.index(new)]
    shape = recorded.request
    assert shape is not None
    was, now = named.get(old), named.get(new)
    return Redecided(recorded.id, recorded.time, was, now, reason, totals, shape.prompt_tokens, shape.block_tokens)


def _picked(recorded: DecisionOutput, profile: str) -> str:
    """The first pick of a profile, else of the request."""
    for run in recorded.runs:
        if run.profile == profile and run.picked:
            return run.picked[0]
    if not recorded.destinations:
        return ""
    return next((endpoint.name for endpoint in recorded.endpoints if endpoint.address == recorded.destinations[0]), "")


def _endpoint(recorded: EndpointValues, known: Endpoint | None) -> Endpoint:
    if known is not None and known.address == recorded.address and known.labels == recorded.labels:
        return known
    host, _, port = recorded.address.rpartition(":")
    return Endpoint(recorded.name, host.strip("[]"), int(port), recorded.labels)


class _Values:
    """Reads values of data keys as records have them: field names in camelCase."""

    def __init__(self, keys: Mapping[str, AnyKey]) -> None:
        self._adapters: dict[str, TypeAdapter[Any]] = {name: TypeAdapter(key.type) for name, key in keys.items() if not key.is_number}
        self._read: dict[str, object] = {}

    def read(self, key: AnyKey, written: object) -> object:
        if key.is_number:
            return float(written) if isinstance(written, int | float) else math.nan
        text = repr(written)
        if text not in self._read:
            fields = {_WORD.sub("_", name).lower(): value for name, value in written.items()} if isinstance(written, dict) else written
            self._read[text] = self._adapters[key.name].validate_python(fields if is_dataclass(key.type) else written)
        return self._read[text]


def changes_of(decided: Sequence[Redecided], key: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a value at the recorded picks and at the new ones, for requests that have both."""
    pairs = [(_value(decision, decision.was, key), _value(decision, decision.now, key)) for decision in decided]
    known = np.array([pair for pair in pairs if None not in pair], float).reshape(-1, 2)
    return known[:, 0], known[:, 1]


def _value(decision: Redecided, endpoint: EndpointValues | None, key: str) -> float | None:
    value = None if endpoint is None else endpoint.values.get(key)
    if not isinstance(value, int | float):
        return None
    return min(value * decision.block_tokens, decision.prompt_tokens) if key == PREFIX_MATCH_BLOCKS.name else float(value)
