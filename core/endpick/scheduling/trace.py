"""Records the answers of filters, scorers and the picker in a profile run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from endpick.api.access import Access
from endpick.api.data import DataKey, Scope
from endpick.api.endpoints import BoolArray, Endpoints, FloatArray
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import ProfileRunResult
from endpick.api.state import ScoringState
from endpick.host.boundary import Fault, Step
from endpick.scheduling.scheduler import NUMBERS, Profile, Scheduler, as_view


@dataclass(slots=True)
class FilterRecord:
    """The endpoints that a filter was given and kept, by name; `problem` if it failed."""

    instance: str
    type: str
    given: tuple[str, ...]
    kept: tuple[str, ...]
    problem: str = ""
    seconds: float = 0.0

    @property
    def dropped(self) -> tuple[str, ...]:
        """The endpoints given but not kept, in the order given."""
        kept = set(self.kept)
        return tuple(name for name in self.given if name not in kept)


@dataclass(slots=True)
class ScorerRecord:
    """One score per candidate: as returned, and as added to the totals.

    Not frozen, because freezing makes the records of a request a tenth slower.
    """

    instance: str
    type: str
    weight: float
    answered: tuple[float, ...]
    weighted: tuple[float, ...]
    problem: str = ""
    seconds: float = 0.0


@dataclass(slots=True)
class ProfileRecord:
    """One profile run, with one total per candidate; `picked` lists the best endpoint first."""

    profile: str
    filters: tuple[FilterRecord, ...]
    candidates: tuple[str, ...]
    scorers: tuple[ScorerRecord, ...]
    totals: tuple[float, ...]
    picker: str
    picked: tuple[str, ...]
    failure: str = ""
    pick_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Waited:
    """The seconds a request waited in flow control, and the saturation on arrival (1 is full)."""

    seconds: float
    saturation: float


# For the host, not for plugins.
WAITED = DataKey("flow-control/waited", Waited, Scope.REQUEST, doc="How long the request waited in endpick, and how full the pool was.")

UNREAD = DataKey("request/unread", str, Scope.REQUEST, doc="Why the parser, which may be skipped, did not read the body.")


class Tracer:
    """A scheduler that records its profile runs. Reuse it: binding its steps costs more than a run."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self.scheduler = scheduler
        self._runs: list[ProfileRecord] = []
        profiles = {name: _TracedProfile(profile, self._note, clock) for name, profile in scheduler.profiles.items()}
        self._traced = replace(scheduler, profiles=profiles)

    def into(self, runs: list[ProfileRecord]) -> Scheduler:
        """Return the scheduler, which appends its runs to `runs` until the next call."""
        self._runs = runs
        return self._traced

    def _note(self, run: ProfileRecord) -> None:
        self._runs.append(run)


T = TypeVar("T")


class _TracedStep(Step[T]):
    __slots__ = ("answer", "clock", "given", "problem", "seconds")

    def __init__(self, step: Step[T], clock: Callable[[], float]) -> None:
        super().__init__(step.call, step.instance, step.method, step.telemetry)
        self.clock = clock
        self.reset()

    def reset(self) -> None:
        self.given: Endpoints | None = None
        self.answer: T | Fault | None = None
        self.problem = ""
        self.seconds = 0.0

    def run(self, access: Access, *arguments: object) -> T | Fault:
        given = arguments[1]
        self.given = given if isinstance(given, Endpoints) else None  # a picker gets scored ones
        started = self.clock()
        answer = self.answer = Step.run(self, access, *arguments)
        self.seconds = self.clock() - started
        if isinstance(answer, Fault):
            self.problem = answer.problem
        return answer

    def fault(self, problem: BaseException | str) -> Fault:
        fault = Step.fault(self, problem)
        self.problem = fault.problem
        return fault


class _TracedProfile(Profile):
    __slots__ = ("_note", "_traced_filters", "_traced_picker", "_traced_scorers")

    def __init__(self, profile: Profile, note: Callable[[ProfileRecord], None], clock: Callable[[], float]) -> None:
        self._traced_filters = tuple([_TracedStep(step, clock) for step in profile.filters])
        self._traced_scorers = tuple([_TracedStep(step, clock) for step in profile.scorers])
        self._traced_picker = _TracedStep(profile.picker, clock)
        super().__init__(profile.name, self._traced_filters, self._traced_scorers, profile.weights, self._traced_picker)
        self._note = note

    def run(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> ProfileRunResult:
        filters, scorers = self._traced_filters, self._traced_scorers
        result = Profile.run(self, request, endpoints, state, access)
        scored = result.scored
        self._note(
            ProfileRecord(
                self.name,
                tuple([_filter_record(step, step.given) for step in filters if step.given is not None]),
                () if scored is None else names_of(scored.endpoints),
                tuple(
                    [
                        _scorer_record(step, weight, step.given)
                        for step, weight in zip(scorers, self.weights, strict=True)
                        if step.given is not None
                    ]
                ),
                () if scored is None else tuple(scored.scores.tolist()),
                self.picker.instance.name,
                () if result.picked is None else names_of(result.picked),
                result.failure or "",
                self._traced_picker.seconds,
            )
        )
        for step in filters:
            step.reset()
        for scorer in scorers:
            scorer.reset()
        self._traced_picker.reset()
        return result


def _filter_record(step: _TracedStep[BoolArray | Endpoints], given: Endpoints) -> FilterRecord:
    kept = given if step.problem or step.answer is None or isinstance(step.answer, Fault) else as_view(given, step.answer)
    assert isinstance(kept, Endpoints)
    return FilterRecord(step.instance.name, step.instance.type, names_of(given), names_of(kept), step.problem, step.seconds)


def _scorer_record(step: _TracedStep[FloatArray], weight: float, given: Endpoints) -> ScorerRecord:
    count = len(given)
    is_array = isinstance(step.answer, np.ndarray) and step.answer.shape == (count,) and step.answer.dtype.kind in NUMBERS
    answered = np.asarray(step.answer, dtype=np.float64) if is_array else np.empty(0)
    weighted = np.zeros(count) if step.problem else np.minimum(np.maximum(answered, 0.0), 1.0) * weight  # `clip` takes longer
    instance = step.instance
    return ScorerRecord(
        instance.name, instance.type, weight, tuple(answered.tolist()), tuple(weighted.tolist()), step.problem, step.seconds
    )


def names_of(endpoints: Endpoints) -> tuple[str, ...]:
    """Return the names of the endpoints, in view order."""
    return tuple([endpoint.name for endpoint in endpoints.members])
