"""What every plugin said in one decision: recorded for a sample of requests, for `endpick try`, and as plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Final, cast

import numpy as np

from endpick.api.access import Access
from endpick.api.data import DataKey, Scope
from endpick.api.endpoints import Endpoints, FloatArray
from endpick.api.request import InferenceRequest, JSONValue, Rejection
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState, ScoringState
from endpick.host.boundary import Fault, Step
from endpick.scheduling.profile import Profile, as_view
from endpick.scheduling.scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class FilterRecord:
    """One filter's say: the names of the endpoints it was given and those it kept; `problem` instead when it failed."""

    instance: str
    type: str
    given: tuple[str, ...]
    kept: tuple[str, ...]
    problem: str = ""

    @property
    def dropped(self) -> tuple[str, ...]:
        """Who went, in the order given."""
        kept = set(self.kept)
        return tuple(name for name in self.given if name not in kept)


@dataclass(frozen=True, slots=True)
class ScorerRecord:
    """One scorer's say about each candidate.

    Attributes:
        instance: Name.
        type: Plugin type.
        weight: Of the scorer in this profile.
        answered: Scores as the plugin gave them, one per candidate; none when it failed.
        weighted: What they added to the totals: cut to 0..1 and multiplied by the weight; all 0 when it failed.
        problem: Why its scores do not count; empty when they do.
    """

    instance: str
    type: str
    weight: float
    answered: tuple[float, ...]
    weighted: tuple[float, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """One run of one scheduling profile; names of endpoints throughout.

    Attributes:
        profile: Name.
        filters: In the order they ran; those after one that kept no endpoint did not.
        candidates: Who passed all filters.
        scorers: In the order they ran.
        totals: Sum of the weighted scores, one per candidate; none when nothing was rated.
        picker: Instance name.
        picked: Best first; none when the run failed.
        failure: Why nothing was picked; empty on success.
    """

    profile: str
    filters: tuple[FilterRecord, ...]
    candidates: tuple[str, ...]
    scorers: tuple[ScorerRecord, ...]
    totals: tuple[float, ...]
    picker: str
    picked: tuple[str, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Waited:
    """That a request had to wait, and why.

    Attributes:
        seconds: For how long.
        saturation: How full the pool was when it came, 1 for full: its band was closed, or others waited already.
    """

    seconds: float
    saturation: float


WAITED = DataKey("flow-control/waited", Waited, Scope.REQUEST, doc="How long the request waited in endpick, and how full the pool was.")
"""What the host leaves in the cycle state of a request that waited; not for plugins."""

UNREAD = DataKey("request/unread", str, Scope.REQUEST, doc="Why the parser, which may be skipped, did not read the body.")
"""What the host leaves in the cycle state of a request that goes on unread; not for plugins."""


@dataclass(frozen=True, slots=True)
class DecisionTrace:
    """One request that reached the scheduler, and everything its plugins said about it.

    Attributes:
        id: The request's `x-request-id`.
        model: What the model servers are asked for.
        path: Of the request.
        priority: Of its inference objective.
        fairness_id: Whose request it is.
        endpoints: Names of those that were there to choose from.
        destinations: `host:port`, best first; none when no endpoint was found.
        status: HTTP status of the refusal; None when endpoints were found.
        refusal: Why no endpoint was found; empty when one was.
        runs: The profile runs, in order.
        waited: None for a request that did not wait.
        unread: Why the parser, which may be skipped, did not read the body; empty where it did, and where the gateway keeps bodies.
    """

    id: str
    model: str
    path: str
    priority: int
    fairness_id: str
    endpoints: tuple[str, ...]
    destinations: tuple[str, ...]
    status: int | None
    refusal: str
    runs: tuple[ProfileRecord, ...]
    waited: Waited | None = None
    unread: str = ""


def traced(scheduler: Scheduler, note: Callable[[ProfileRecord], None]) -> Scheduler:
    """The same scheduler, which tells `note` of each profile run, in order.

    An untraced scheduler knows nothing of this and pays nothing.
    """
    return replace(scheduler, profiles={name: _TracedProfile(profile, note) for name, profile in scheduler.profiles.items()})


class _CallTrace:
    """What one plugin was given and what it answered; nothing when it was not asked."""

    __slots__ = ("answer", "given", "problem")

    def __init__(self) -> None:
        self.given: object = None
        self.answer: object = None
        self.problem = ""


class _TracedStep(Step):
    """A step that notes the endpoints its plugin was given and the answer."""

    __slots__ = ("trace",)

    def __init__(self, step: Step, trace: _CallTrace) -> None:
        def noted(*arguments: object) -> object:
            trace.given = arguments[1]
            trace.answer = answer = step.call(*arguments)
            return answer

        super().__init__(noted, step.instance, step.extension_point, step.telemetry)
        self.trace = trace

    def ask(self, *arguments: object) -> object:
        self.trace.given = arguments[1]
        return Step.ask(self, *arguments)

    def fault(self, problem: BaseException | str) -> Fault:
        fault = Step.fault(self, problem)
        self.trace.problem = fault.problem
        return fault

    def left_out(self) -> Fault:
        fault = Step.left_out(self)
        self.trace.problem = fault.problem
        return fault


class _TracedProfile(Profile):
    """A profile whose runs are noted."""

    __slots__ = ("note",)

    def __init__(self, profile: Profile, note: Callable[[ProfileRecord], None]) -> None:
        super().__init__(profile.name, profile.filters, profile.scorers, profile.weights, profile.picker)
        self.note = note

    def run(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> ProfileRunResult:
        filters = [(step, _CallTrace()) for step in self.filters]
        scorers = [(step, _CallTrace()) for step in self.scorers]
        listening = Profile(
            self.name,
            tuple([_TracedStep(step, trace) for step, trace in filters]),
            tuple([_TracedStep(step, trace) for step, trace in scorers]),
            self.weights,
            self.picker,
        )
        result = listening.run(request, endpoints, state, access)
        self.note(self._record(filters, scorers, result))
        return result

    def _record(
        self, filters: Sequence[tuple[Step, _CallTrace]], scorers: Sequence[tuple[Step, _CallTrace]], result: ProfileRunResult
    ) -> ProfileRecord:
        rated = result.scored
        return ProfileRecord(
            self.name,
            tuple([_filter_record(step, trace) for step, trace in filters if trace.given is not None]),
            () if rated is None else _names(rated.endpoints),
            tuple(
                [
                    _scorer_record(step, float(weight), trace)
                    for (step, trace), weight in zip(scorers, self.weights.ravel(), strict=True)
                    if trace.given is not None
                ]
            ),
            () if rated is None else tuple(rated.scores.tolist()),
            self.picker.instance.name,
            () if result.picked is None else _names(result.picked),
            result.failure or "",
        )


def _filter_record(step: Step, trace: _CallTrace) -> FilterRecord:
    assert isinstance(trace.given, Endpoints)
    kept = trace.given if trace.problem else as_view(trace.given, trace.answer)
    assert isinstance(kept, Endpoints)
    return FilterRecord(step.instance.name, step.instance.type, _names(trace.given), _names(kept), trace.problem)


def _scorer_record(step: Step, weight: float, trace: _CallTrace) -> ScorerRecord:
    assert isinstance(trace.given, Endpoints)
    answered = _numbers(trace.answer, len(trace.given))
    weighted = np.zeros(len(trace.given)) if trace.problem else np.clip(answered, 0.0, 1.0) * weight
    instance = step.instance
    return ScorerRecord(instance.name, instance.type, weight, tuple(answered.tolist()), tuple(weighted.tolist()), trace.problem)


def _numbers(answer: object, count: int) -> FloatArray:
    """The scores in an answer, none where there are not so many; asked of numpy itself, because a class may answer for its objects."""
    if not issubclass(type(answer), np.ndarray):
        return np.empty(0)
    plain = np.ndarray.view(cast("FloatArray", answer), np.ndarray)
    return np.asarray(plain, dtype=np.float64) if plain.shape == (count,) and plain.dtype.kind in "fiub" else np.empty(0)


def _names(endpoints: Endpoints) -> tuple[str, ...]:
    return tuple([endpoint.name for endpoint in endpoints.members])


@dataclass(frozen=True, slots=True)
class SampledScheduler(Scheduler):
    """A scheduler that shows some of its decisions.

    Attributes:
        chosen: Asked once for each request, whether its decision is recorded.
        show: Given the record of a decision just taken, before it is answered: it may not wait.
    """

    chosen: Callable[[], bool] = field(kw_only=True)
    show: Callable[[DecisionTrace], None] = field(kw_only=True)

    def schedule(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access) -> SchedulingResult | Rejection:
        """As the plain scheduler does."""
        if not self.chosen():
            return Scheduler.schedule(self, request, endpoints, state, access)
        runs: list[ProfileRecord] = []
        result = Scheduler.schedule(traced(self, runs.append), request, endpoints, state, access)
        self.show(_decision_record(request, endpoints, result, runs, state))
        return result


def sampled(scheduler: Scheduler, chosen: Callable[[], bool], show: Callable[[DecisionTrace], None]) -> Scheduler:
    """The same scheduler, which shows the decisions that are chosen."""
    parts = {part.name: getattr(scheduler, part.name) for part in fields(Scheduler)}
    return SampledScheduler(**parts, chosen=chosen, show=show)


def _decision_record(
    request: InferenceRequest,
    endpoints: Endpoints,
    result: SchedulingResult | Rejection,
    runs: Sequence[ProfileRecord],
    state: CycleState,
) -> DecisionTrace:
    refusal = result if isinstance(result, Rejection) else None
    return DecisionTrace(
        request.id,
        request.model,
        request.path,
        request.priority,
        request.fairness_id,
        tuple([endpoint.name for endpoint in endpoints.members]),
        result.destinations if isinstance(result, SchedulingResult) else (),
        None if refusal is None else refusal.status,
        "" if refusal is None else refusal.message,
        tuple(runs),
        state.get(WAITED),
        state.get(UNREAD) or "",
    )


_MOST_LEVELS: Final = 64


def to_json(value: object, levels: int = _MOST_LEVELS) -> JSONValue:
    """The value as JSON knows it: field names in camelCase; NaN and infinity, which JSON does not have, become null.

    What lies deeper than `levels` becomes "…": compiled code has no limit of recursion, and would run out of its stack.
    """
    if not levels:
        return "…"
    if is_dataclass(value):
        return {_camel_case(field.name): to_json(getattr(value, field.name), levels - 1) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_json(inner, levels - 1) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner, levels - 1) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
