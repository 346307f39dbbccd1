"""Runs the scheduling profiles that the profile handler names: filters, scorers and a picker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias, cast

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import BoolArray, Endpoints, FloatArray
from endpick.api.request import InferenceRequest, Rejection
from endpick.api.scheduling import ProfileRunResult, SchedulingResult, ScoredEndpoints
from endpick.api.state import CycleState, ScoringState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.instance import Instance
from endpick.host.methods import FILTER, PICK, PICK_PROFILES, PROCESS_RESULTS, SCORE
from endpick.host.telemetry import Telemetry

FilterStep: TypeAlias = Step[BoolArray | Endpoints]
ScoreStep: TypeAlias = Step[FloatArray]

NO_ENDPOINTS: Final = "no endpoints available for the given request"
NUMBERS: Final = "fiub"  # numpy's kinds of floats, integers and booleans


class Profile:
    """The bound filters, scorers and picker of one scheduling profile."""

    __slots__ = ("_factors", "filters", "name", "picker", "scorers", "weights")

    def __init__(
        self,
        name: str,
        filters: Sequence[FilterStep],
        scorers: Sequence[ScoreStep],
        weights: tuple[float, ...],
        picker: Step[Endpoints],
    ) -> None:
        self.name = name
        self.filters = filters
        self.scorers = scorers
        self.weights = weights
        self._factors = tuple([np.asarray(weight) for weight in weights])  # numpy multiplies by an array twice as fast as by a float
        self.picker = picker

    def run(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> ProfileRunResult:
        """Filter, score, weigh and pick. Never raises; `failure` describes a failed run."""
        for step in self.filters:
            if not endpoints._size:
                break
            kept = _checked_filter(step, endpoints, step.run(access, request, endpoints, state))
            if not isinstance(kept, Fault):
                endpoints = kept
            elif kept.refuses:
                return self._failed(kept)
        count = endpoints._size
        if not count:
            return ProfileRunResult(self.name, None, failure=NO_ENDPOINTS)

        # No matrix product: equal endpoints must get equal totals, because pickers break ties at random.
        totals = np.zeros(count)
        for scorer, factor in zip(self.scorers, self._factors, strict=True):
            scores = _checked_scores(scorer, count, scorer.run(access, request, endpoints, state))
            if not isinstance(scores, Fault):
                totals += scores * factor
            elif scores.refuses:
                return self._failed(scores)

        scored = ScoredEndpoints(endpoints, totals)
        picked = _checked_pick(self.picker, endpoints, self.picker.run(access, request, scored, state))
        if isinstance(picked, Fault):
            if picked.refuses:
                return self._failed(picked, scored)
            picked = endpoints.take([int(totals.argmax())])
        return ProfileRunResult(self.name, picked, scored)

    def _failed(self, fault: Fault, scored: ScoredEndpoints | None = None) -> ProfileRunResult:
        return ProfileRunResult(self.name, None, scored, failure=str(fault), fault=True)


def compile_profile(
    name: str, filters: Sequence[Instance], scorers: Sequence[tuple[Instance, float]], picker: Instance, telemetry: Telemetry
) -> Profile:
    """Bind the plugins of a profile. Raises TypeError for a wrong kind."""
    return Profile(
        name,
        tuple([bind(instance, FILTER, telemetry) for instance in filters]),
        tuple([bind(instance, SCORE, telemetry) for instance, _ in scorers]),
        tuple([float(weight) for _, weight in scorers]),
        bind(picker, PICK, telemetry),
    )


def _checked_filter(step: FilterStep, given: Endpoints, answer: BoolArray | Endpoints | Fault) -> Endpoints | Fault:
    if isinstance(answer, Fault):
        return answer
    kept = as_view(given, answer)
    return step.fault(kept) if isinstance(kept, str) else kept


def _checked_scores(step: Step[FloatArray], count: int, answer: FloatArray | Fault) -> FloatArray | Fault:
    """Scores clamped to [0, 1], or a fault unless there are `count` finite numbers."""
    if isinstance(answer, Fault):
        return answer
    if answer.shape != (count,):
        return step.fault(f"answered scores of shape {answer.shape} for {count} endpoints")
    if answer.dtype.kind not in NUMBERS:
        return step.fault(f"answered scores of type {answer.dtype}, which are not numbers")
    # `argmin` finds NaN first, and takes a fifth of the time of `isfinite`.
    if answer[answer.argmin()] >= 0.0 and answer[answer.argmax()] <= 1.0:
        return answer
    if not np.isfinite(answer).all():
        return step.fault("answered a score that is not a finite number")
    step.telemetry.clamped(step.instance, int(np.count_nonzero((answer < 0.0) | (answer > 1.0))))
    return np.clip(answer, 0.0, 1.0)


def _checked_pick(step: Step[Endpoints], candidates: Endpoints, answer: Endpoints | Fault) -> Endpoints | Fault:
    if isinstance(answer, Fault):
        return answer
    problem = validate_subset(candidates, answer) if answer._size else "picked no endpoint"
    return answer if problem is None else step.fault(problem)


def as_view(given: Endpoints, answer: BoolArray | Endpoints) -> Endpoints | str:
    """Return the view for a filter's mask or subset of `given`, or a description of the problem."""
    if isinstance(answer, np.ndarray):
        try:
            return given.where(answer)
        except ValueError as error:
            return str(error)
    return answer if answer is given else validate_subset(given, answer) or answer


def validate_subset(given: Endpoints, kept: Endpoints) -> str | None:
    """Return a description of the problem, or None if `kept` is a subset of `given` without repetitions."""
    if kept._generation is not given._generation:
        return "answered endpoints of another pool than it was given"
    rows = kept._row_numbers()
    if len(rows) <= 1 and given._rows is None:
        return None
    unused = np.zeros(len(given.pool_members), dtype=np.bool_)
    unused[given._row_numbers()] = True
    if not unused[rows].all():
        return "answered endpoints that it was not given"
    unused[rows] = False
    if np.count_nonzero(unused) != len(given) - len(rows):
        return "answered the same endpoint more than once"
    return None


Runs: TypeAlias = Mapping[str, ProfileRunResult]

REJECTED_SATURATED = "rejected-saturated"


@dataclass(frozen=True, slots=True)
class Scheduler:
    """A compiled profile handler and its profiles, in configuration order."""

    profiles: Mapping[str, Profile]
    names: tuple[str, ...]
    pick_profiles: Step[Sequence[object]]
    process_results: Step[SchedulingResult]

    def schedule(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState, access: Access) -> SchedulingResult | Rejection:
        """Choose endpoints. Never raises; rejects with 429 without an endpoint, with 500 after a fault."""
        runs: dict[str, ProfileRunResult] = {}
        shown = MappingProxyType(runs)
        # At most len(names) rounds, because naming a profile twice is a fault.
        while len(runs) < len(self.names):
            wanted = self._wanted(self.pick_profiles.run(access, request, self.names, shown, state), runs)
            if isinstance(wanted, Fault):
                if wanted.refuses or len(self.names) > 1:
                    return _rejection(str(wanted), fault=True)
                wanted = self.names
            if not wanted:
                break
            for name in wanted:
                if runs:
                    state._begin_profile_run()
                runs[name] = self.profiles[name].run(request, endpoints, state, access)
        if not runs:
            return _rejection(f"failed to run any scheduler profile for request {request.id}")
        result = _checked_result(self.process_results, self.process_results.run(access, request, shown, state))
        if isinstance(result, Fault):
            return _without_handler(result, shown)
        return _without_decision(result.failure, runs) if result.failure else result

    def _wanted(self, answer: Sequence[object] | Fault, runs: Runs) -> Sequence[str] | Fault:
        if isinstance(answer, Fault):
            return answer
        if answer is self.names and not runs:  # nearly always
            return self.names
        unknown = [name for name in answer if not isinstance(name, str) or name not in self.profiles]
        if unknown:
            return self.pick_profiles.fault(f"named a profile that does not exist: {unknown[0]!r:.80}")
        if len(set(answer)) != len(answer) or not runs.keys().isdisjoint(answer):
            return self.pick_profiles.fault(f"named a profile twice: {_listed(answer)} after {_listed(runs)}")
        return cast("Sequence[str]", answer)


def compile_scheduler(handler: Instance, profiles: Mapping[str, Profile], telemetry: Telemetry) -> Scheduler:
    """Bind the methods of the profile handler. Raises TypeError for a wrong kind."""
    return Scheduler(
        dict(profiles),
        tuple(profiles),
        bind(handler, PICK_PROFILES, telemetry),
        bind(handler, PROCESS_RESULTS, telemetry),
    )


def _checked_result(step: Step[SchedulingResult], answer: SchedulingResult | Fault) -> SchedulingResult | Fault:
    if isinstance(answer, Fault):
        return answer
    if answer.failure:
        return answer
    run = answer.runs.get(answer.primary)
    if run is None or run.picked is None:
        return step.fault(f"decided for profile '{answer.primary}', which picked nothing")
    return answer if answer.destinations else step.fault("decided for no destination")


def _without_handler(fault: Fault, runs: Runs) -> SchedulingResult | Rejection:
    if fault.refuses or len(runs) > 1:
        return _rejection(str(fault), fault=True)
    ((name, run),) = runs.items()
    if run.picked is None:
        return _without_decision(str(fault), runs)
    return SchedulingResult(name, runs, tuple([endpoint.address for endpoint in run.picked.members]))


def _without_decision(sentence: str, runs: Runs) -> Rejection:
    failed = [runs[name] for name in sorted(runs) if runs[name].picked is None]
    causes = "; ".join(f"{run.profile}: {run.failure}" for run in failed)
    message = f"{sentence} ({causes})" if causes else sentence
    drained = any(run.failure == NO_ENDPOINTS for run in failed)
    return _rejection(message, fault=any(run.fault for run in failed), reason=REJECTED_SATURATED if drained else "")


def _rejection(message: str, *, fault: bool = False, reason: str = "") -> Rejection:
    text = f"failed to find target endpoint: {message}"
    return Rejection(text, 500) if fault else Rejection(text, 429, reason)


def _listed(names: Iterable[object]) -> str:
    return ", ".join(f"'{name}'" for name in names) or "none"
