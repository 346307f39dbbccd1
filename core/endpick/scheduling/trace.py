"""Records the answers of plugins in a decision, for hook objects and `endpick try`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace

import numpy as np

from endpick.api.access import Access
from endpick.api.data import DataKey, Scope
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest, JSONValue, Rejection
from endpick.api.scheduling import ProfileRunResult, SchedulingResult
from endpick.api.state import CycleState, ScoringState
from endpick.host.boundary import Fault, Step
from endpick.scheduling.scheduler import NUMBERS, Profile, Scheduler, as_view


@dataclass(frozen=True, slots=True)
class FilterRecord:
    """Names of endpoints; `problem` if it failed."""

    instance: str
    type: str
    given: tuple[str, ...]
    kept: tuple[str, ...]
    problem: str = ""

    @property
    def dropped(self) -> tuple[str, ...]:
        """Given but not kept, in the order given."""
        kept = set(self.kept)
        return tuple(name for name in self.given if name not in kept)


@dataclass(frozen=True, slots=True)
class ScorerRecord:
    """One score per candidate: as returned, and as added to the totals."""

    instance: str
    type: str
    weight: float
    answered: tuple[float, ...]
    weighted: tuple[float, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """One profile run; one total per candidate; `picked` is best first."""

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
    """Time in flow control, and saturation on arrival (1 is full)."""

    seconds: float
    saturation: float


# For the host, not for plugins.
WAITED = DataKey("flow-control/waited", Waited, Scope.REQUEST, doc="How long the request waited in endpick, and how full the pool was.")

UNREAD = DataKey("request/unread", str, Scope.REQUEST, doc="Why the parser, which may be skipped, did not read the body.")


@dataclass(frozen=True, slots=True)
class DecisionTrace:
    """One request that reached the scheduler.

    Attributes:
        model: The name sent to the model server.
        destinations: `host:port`, best first.
        status: HTTP status of the refusal; None if an endpoint was found.
        unread: Why the parser did not read the body.
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
    """A copy that passes each profile run to `note`."""
    return replace(scheduler, profiles={name: _TracedProfile(profile, note) for name, profile in scheduler.profiles.items()})


class _TracedStep(Step):
    __slots__ = ("answer", "given", "problem")

    def __init__(self, step: Step) -> None:
        super().__init__(step.call, step.instance, step.extension_point, step.telemetry)
        self.given: Endpoints | None = None
        self.answer: object = None
        self.problem = ""

    def run(self, access: Access, *arguments: object) -> object:
        given = arguments[1]
        assert isinstance(given, Endpoints)
        self.given = given
        self.answer = Step.run(self, access, *arguments)
        if isinstance(self.answer, Fault):
            self.problem = self.answer.problem
        return self.answer

    def fault(self, problem: BaseException | str) -> Fault:
        fault = Step.fault(self, problem)
        self.problem = fault.problem
        return fault


class _TracedProfile(Profile):
    __slots__ = ("_note",)

    def __init__(self, profile: Profile, note: Callable[[ProfileRecord], None]) -> None:
        super().__init__(profile.name, profile.filters, profile.scorers, profile.weights, profile.picker)
        self._note = note

    def run(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> ProfileRunResult:
        filters = tuple([_TracedStep(step) for step in self.filters])
        scorers = tuple([_TracedStep(step) for step in self.scorers])
        result = Profile(self.name, filters, scorers, self.weights, self.picker).run(request, endpoints, state, access)
        scored = result.scored
        self._note(
            ProfileRecord(
                self.name,
                tuple([_filter_record(step, step.given) for step in filters if step.given is not None]),
                () if scored is None else _names(scored.endpoints),
                tuple(
                    [
                        _scorer_record(step, weight, step.given)
                        for step, weight in zip(scorers, self.weights, strict=True)
                        if step.given is not None
                    ]
                ),
                () if scored is None else tuple(scored.scores.tolist()),
                self.picker.instance.name,
                () if result.picked is None else _names(result.picked),
                result.failure or "",
            )
        )
        return result


def _filter_record(step: _TracedStep, given: Endpoints) -> FilterRecord:
    kept = given if step.problem else as_view(given, step.answer)
    assert isinstance(kept, Endpoints)
    return FilterRecord(step.instance.name, step.instance.type, _names(given), _names(kept), step.problem)


def _scorer_record(step: _TracedStep, weight: float, given: Endpoints) -> ScorerRecord:
    count = len(given)
    is_array = isinstance(step.answer, np.ndarray) and step.answer.shape == (count,) and step.answer.dtype.kind in NUMBERS
    answered = np.asarray(step.answer, dtype=np.float64) if is_array else np.empty(0)
    weighted = np.zeros(count) if step.problem else np.clip(answered, 0.0, 1.0) * weight
    instance = step.instance
    return ScorerRecord(instance.name, instance.type, weight, tuple(answered.tolist()), tuple(weighted.tolist()), step.problem)


def _names(endpoints: Endpoints) -> tuple[str, ...]:
    return tuple([endpoint.name for endpoint in endpoints.members])


@dataclass(frozen=True, slots=True)
class SampledScheduler(Scheduler):
    """Passes decisions to `show` if `chosen` returns True."""

    chosen: Callable[[], bool] = field(kw_only=True)
    show: Callable[[DecisionTrace], None] = field(kw_only=True)

    def schedule(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access) -> SchedulingResult | Rejection:
        """See `Scheduler.schedule`."""
        if not self.chosen():
            return Scheduler.schedule(self, request, endpoints, state, access)
        runs: list[ProfileRecord] = []
        result = Scheduler.schedule(traced(self, runs.append), request, endpoints, state, access)
        self.show(_decision_record(request, endpoints, result, runs, state))
        return result


def sampled(scheduler: Scheduler, chosen: Callable[[], bool], show: Callable[[DecisionTrace], None]) -> Scheduler:
    """A copy that shows the chosen decisions."""
    return SampledScheduler(
        scheduler.profiles, scheduler.names, scheduler.pick_profiles, scheduler.process_results, chosen=chosen, show=show
    )


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
        _names(endpoints),
        result.destinations if isinstance(result, SchedulingResult) else (),
        None if refusal is None else refusal.status,
        "" if refusal is None else refusal.message,
        tuple(runs),
        state.get(WAITED),
        state.get(UNREAD) or "",
    )


def to_json(value: object) -> JSONValue:
    """A record as JSON: field names in camelCase; NaN and infinity become null."""
    if is_dataclass(value):
        return {_camel_case(field.name): to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): to_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(word.capitalize() for word in others)
