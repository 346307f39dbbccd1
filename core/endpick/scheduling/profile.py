"""A scheduling profile, compiled: filters narrow the candidates, scorers rate them, a picker chooses."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Final

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints, FloatArray, KnownEndpoints
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import Filter, Picker, ProfileRunResult, ScoredEndpoints, Scorer
from endpick.api.state import ScoringState
from endpick.host.boundary import Fault, Step, bind
from endpick.host.failures import CALL_FAILURES, kind_of
from endpick.host.instance import Instance
from endpick.host.telemetry import Telemetry

NO_ENDPOINTS: Final = "no endpoints available for the given request"

_FLOAT: Final = np.dtype(np.float64)
_REAL_NUMBERS: Final = "fiub"
"""numpy's kinds of numbers that can be a score: floats, integers, booleans."""


class Profile:
    """Everything one profile run calls, in order."""

    __slots__ = ("_last_answers", "_last_weighted", "_weights", "filters", "name", "picker", "scorers", "weights")

    def __init__(self, name: str, filters: tuple[Step, ...], scorers: tuple[Step, ...], weights: FloatArray, picker: Step) -> None:
        """`weights` has one for each scorer."""
        self.name = name
        self.filters = filters
        self.scorers = scorers
        self.weights = weights
        self._weights: list[FloatArray] = [weights[position, ...] for position in range(len(scorers))]
        """The same, each an array without dimensions: numpy takes half as long again to multiply by a number of its own or of Python's."""
        self.picker = picker
        self._last_answers: list[object] = [None] * len(scorers)
        """What each scorer answered last, if that cannot change any more, as the results of `Endpoints.derived`."""
        self._last_weighted: list[FloatArray] = [np.zeros(0)] * len(scorers)

    def run(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> ProfileRunResult:
        """Filter, rate, pick. Never raises: a run that came to nothing says why in `failure`. Its calls are left for `settle` to count."""
        candidates = self._filter(request, endpoints, state, access) if self.filters else endpoints
        if isinstance(candidates, Fault):
            return self._failed(candidates)
        count = candidates._size
        if not count:
            return ProfileRunResult(self.name, None, failure=NO_ENDPOINTS)

        # The scores are added one scorer after the other for every endpoint alike, so equal endpoints get equal totals to the last bit: a
        # matrix product would not promise that, and pickers break ties at random. A scorer that is to be skipped counts for no endpoint.
        totals: FloatArray | None = None
        is_sum = False
        answer: object
        for position, step in enumerate(self.scorers):
            access.scope = step.scope
            try:
                answer = (step.ask if step.breaker.state else step.call)(request, candidates, state)
                access.called.append((step, perf_counter()))
            except CALL_FAILURES as problem:
                answer = step.failed(problem, access)
            weighted = self._last_weighted[position]
            if answer is not self._last_answers[position] or len(weighted) != count:
                try:
                    # For 16 scores `argmin` and `argmax` take a fifth of the time of `min` and `max`. `argmin` finds NaN first.
                    if (
                        type(answer) is np.ndarray
                        and answer.dtype is _FLOAT
                        and answer.shape == (count,)
                        and answer[answer.argmin()] >= 0.0
                        and answer[answer.argmax()] <= 1.0
                    ):
                        scores: FloatArray | Fault = answer
                    else:
                        scores = _scores_of(step, answer, count)
                    if not isinstance(scores, Fault):
                        weighted = scores * self._weights[position]
                        # The next answer may be the same object. No number of it changes: its memory is `bytes`, or its own and read-only,
                        # which only its author can take back, for the author's own scores.
                        base: object = scores.base
                        if scores is answer and not scores.flags.writeable and (base is None or isinstance(base, bytes)):
                            self._last_answers[position], self._last_weighted[position] = answer, weighted
                except CALL_FAILURES as problem:
                    scores = step.failed(problem, access)
                if isinstance(scores, Fault):
                    if scores.refuses:
                        return self._failed(scores)
                    continue
            if totals is None:
                totals = weighted
            else:
                totals, is_sum = totals + weighted, True

        if totals is None:
            totals = np.zeros(count)
        elif not is_sum:
            totals = totals.copy()  # it may be kept for the next request, and the picker gets this one
        # The picker may change totals, and the shape of its view of them, but how many there are it may not.
        scored, step = ScoredEndpoints(candidates, totals[...]), self.picker
        access.scope = step.scope
        try:
            answer = (step.ask if step.breaker.state else step.call)(request, scored, state)
            access.called.append((step, perf_counter()))
            if (
                type(answer) is KnownEndpoints
                and answer._size == 1
                and answer._rows is not None
                and candidates._rows is None
                and answer._generation is candidates._generation
                and scored.scores.shape == totals.shape
                and scored.scores.dtype is totals.dtype
            ):
                return ProfileRunResult(self.name, answer, scored)  # one endpoint of the whole pool, as nearly always
            scored = ScoredEndpoints(candidates, totals)
            picked = self._picked(answer, scored)
        except CALL_FAILURES as problem:
            scored = ScoredEndpoints(candidates, totals)
            picked = self._picked(step.failed(problem, access), scored)
        if isinstance(picked, Fault):
            return self._failed(picked, scored)
        return ProfileRunResult(self.name, picked, scored)

    def _filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> Endpoints | Fault:
        """What all filters kept, perhaps nothing; filters after one that kept nothing are not called."""
        for step in self.filters:
            if not endpoints._size:
                break
            access.scope = step.scope
            kept: Endpoints | str | Fault
            try:
                answer = (step.ask if step.breaker.state else step.call)(request, endpoints, state)
                access.called.append((step, perf_counter()))
                kept = as_view(endpoints, answer)
            except CALL_FAILURES as problem:
                kept = step.failed(problem, access)
            if isinstance(kept, str):
                kept = step.fault(kept)
            if not isinstance(kept, Fault):
                endpoints = kept
            elif kept.refuses:
                return kept
        return endpoints

    def _picked(self, answer: object, scored: ScoredEndpoints) -> Endpoints | Fault:
        """What the picker chose; of a picker that failed and is to be skipped, the candidate with the highest total."""
        step = self.picker
        if type(answer) is KnownEndpoints or type(answer) is Endpoints:
            assert isinstance(answer, Endpoints)
            problem = validate_subset(scored.endpoints, answer) if len(answer) else "picked no endpoint"
            if problem is None:
                return answer
            fault = step.fault(problem)
        else:
            fault = answer if isinstance(answer, Fault) else step.fault(f"answered {kind_of(answer)}, not Endpoints")
        return fault if fault.refuses else scored.take([int(scored.scores.argmax())])

    def _failed(self, fault: Fault, scored: ScoredEndpoints | None = None) -> ProfileRunResult:
        return ProfileRunResult(self.name, None, scored, failure=str(fault), fault=True)


def compile_profile(
    name: str, filters: Sequence[Instance], scorers: Sequence[tuple[Instance, float]], picker: Instance, telemetry: Telemetry
) -> Profile:
    """Bind the instances' methods once, for all runs. Raises TypeError when one is not of its slot's kind: a mistake in the plan."""
    return Profile(
        name,
        tuple([bind(instance, Filter, "filter", telemetry) for instance in filters]),
        tuple([bind(instance, Scorer, "score", telemetry) for instance, _ in scorers]),
        np.array([weight for _, weight in scorers], dtype=np.float64),
        bind(picker, Picker, "pick", telemetry),
    )


def _scores_of(step: Step, answer: object, count: int) -> FloatArray | Fault:
    """Scores from 0 to 1 out of an answer that is no array of them: other numbers as they are, or clamped; what is left is a fault."""
    if not (isinstance(answer, np.ndarray) and answer.shape == (count,) and answer.dtype.kind in _REAL_NUMBERS):
        return answer if isinstance(answer, Fault) else step.fault(_not_scores(answer, count))
    if not np.isfinite(answer).all():
        return step.fault("answered a score that is not a finite number")
    # Of numpy's own class: totals of another one, such as a masked array, would be the picker's trouble.
    plain: FloatArray = np.asarray(answer)
    if plain is not answer and not np.isfinite(plain).all():
        return step.fault("answered a score that is not a finite number")
    outside = int(np.count_nonzero((plain < 0.0) | (plain > 1.0)))
    if not outside:
        return plain
    step.telemetry.clamped(step.instance, outside)
    return np.clip(plain, 0.0, 1.0)


def as_view(given: Endpoints, answer: object) -> Endpoints | str:
    """The view that a filter's answer stands for, or what is wrong with the answer.

    Args:
        given: What the plugin was asked about.
        answer: A boolean mask for `given`, or a view of some of its endpoints in any order.
    """
    if isinstance(answer, np.ndarray):
        try:
            return given.where(np.asarray(answer))  # of numpy's own class: others are asked again when the view is, on behalf of others
        except ValueError as problem:
            return str(problem)
    if type(answer) is not Endpoints and type(answer) is not KnownEndpoints:  # an author's subclass would answer for itself later
        return f"answered {kind_of(answer)}, not a mask or Endpoints"
    assert isinstance(answer, Endpoints)
    return answer if answer is given else validate_subset(given, answer) or answer


def validate_subset(given: Endpoints, kept: Endpoints) -> str | None:
    """Why `kept` is not a part of `given`, without repetitions; None when it is."""
    if kept._generation is not given._generation:
        return "answered endpoints of another pool than it was given"
    if kept._rows is None:
        rows = kept._row_numbers()
    else:
        rows = kept._rows
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


def _not_scores(answer: object, count: int) -> str:
    """What is wrong with a scorer's answer."""
    if not isinstance(answer, np.ndarray):
        return f"answered {kind_of(answer)}, not an array of scores"
    if answer.shape != (count,):
        return f"answered scores of shape {answer.shape} for {count} endpoints"
    return f"answered scores of type {answer.dtype}, which are not numbers"
