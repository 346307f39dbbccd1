"""Scheduling that takes notes: the same steps as in any profile run, each with somebody listening.

A plain `Profile` knows nothing of this, so requests nobody asks about pay nothing for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import ProfileRunResult
from endpick.api.state import ScoringState
from endpick.scheduling.filtering import FilterStep
from endpick.scheduling.narrowing import narrowed
from endpick.scheduling.profile import Profile
from endpick.scheduling.record import FilterRecord, ProfileRecord, ScorerRecord
from endpick.scheduling.scheduler import Scheduler
from endpick.scheduling.scoring import ScorerStep
from endpick.scheduling.step import Answer, Arguments, Fault, Step


def explained(scheduler: Scheduler, note: Callable[[ProfileRecord], None]) -> Scheduler:
    """The same scheduler, which tells `note` of each profile run, in order."""
    profiles = {
        name: _ExplainedProfile(profile.name, profile.filters, profile.scoring, profile.picker, note=note)
        for name, profile in scheduler.profiles.items()
    }
    return replace(scheduler, profiles=profiles)


@dataclass(slots=True)
class _Say:
    """What one plugin was given and what it answered; nothing when it was not asked."""

    given: object = None
    answer: object = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _OverheardStep(Step[Arguments, Answer]):
    say: _Say = field(kw_only=True)

    def run(self, access: Access, *arguments: Arguments.args, **keywords: Arguments.kwargs) -> Answer | Fault:
        self.say.given = arguments[1]
        self.say.answer = answer = Step.run(self, access, *arguments, **keywords)
        return answer

    def fault(self, problem: BaseException | str) -> Fault:
        fault = Step.fault(self, problem)
        self.say.problem = fault.problem
        return fault


@dataclass(frozen=True, slots=True)
class _ExplainedProfile(Profile):
    note: Callable[[ProfileRecord], None] = field(kw_only=True)

    def run(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> ProfileRunResult:
        filters, scorers = [_Say() for _ in self.filters], [_Say() for _ in self.scoring.steps]
        heard = Profile(
            self.name,
            tuple(_overheard(step, say) for step, say in zip(self.filters, filters, strict=True)),
            replace(self.scoring, steps=tuple(_overheard(step, say) for step, say in zip(self.scoring.steps, scorers, strict=True))),
            self.picker,
        )
        result = heard.run(request, endpoints, state, access)
        self.note(self._record(filters, scorers, result))
        return result

    def _record(self, filters: Sequence[_Say], scorers: Sequence[_Say], result: ProfileRunResult) -> ProfileRecord:
        rated = result.scored
        return ProfileRecord(
            self.name,
            tuple(_filter_record(step, say) for step, say in zip(self.filters, filters, strict=True) if say.given is not None),
            () if rated is None else _names(rated.endpoints),
            tuple(
                _scorer_record(step, float(weight), say)
                for step, weight, say in zip(self.scoring.steps, self.scoring.weights.ravel(), scorers, strict=True)
                if say.given is not None
            ),
            () if rated is None else tuple(rated.scores.tolist()),
            self.picker.instance.name,
            () if result.picked is None else _names(result.picked),
            result.failure or "",
        )


def _overheard(step: Step[Arguments, Answer], say: _Say) -> Step[Arguments, Answer]:
    return _OverheardStep(step.call, step.instance, step.extension_point, step.scope, step.record, step.instruments, say=say)


def _filter_record(step: FilterStep, say: _Say) -> FilterRecord:
    assert isinstance(say.given, Endpoints)
    kept = say.given if say.problem else narrowed(say.given, say.answer)
    assert isinstance(kept, Endpoints)
    return FilterRecord(step.instance.name, step.instance.type, _names(say.given), _names(kept), say.problem)


def _scorer_record(step: ScorerStep, weight: float, say: _Say) -> ScorerRecord:
    assert isinstance(say.given, Endpoints)
    answer = say.answer
    is_scores = isinstance(answer, np.ndarray) and answer.shape == (len(say.given),) and answer.dtype.kind in "fiub"
    answered = np.asarray(answer, dtype=np.float64) if is_scores else np.empty(0)
    weighted = np.zeros(len(say.given)) if say.problem else np.clip(answered, 0.0, 1.0) * weight
    instance = step.instance
    return ScorerRecord(instance.name, instance.type, weight, tuple(answered.tolist()), tuple(weighted.tolist()), say.problem)


def _names(endpoints: Endpoints) -> tuple[str, ...]:
    return tuple([endpoint.name for endpoint in endpoints.members])
