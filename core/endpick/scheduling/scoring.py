"""The second third of a profile run: every scorer rates every candidate, and the weighted scores are added up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints, FloatArray
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import Scorer
from endpick.api.state import ScoringState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

ScorerStep: TypeAlias = Step[[InferenceRequest, Endpoints, ScoringState], object]

NumberArray: TypeAlias = NDArray[np.number[Any] | np.bool_]

_REAL_NUMBERS = "fiub"
"""numpy's kinds of numbers that can be a score: floats, integers, booleans."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """The scorers of one profile with their weights."""

    steps: tuple[ScorerStep, ...]
    weights: FloatArray
    """Shape `(len(steps), 1)`."""

    def rate(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access) -> FloatArray | Fault:
        """Scores in 0..1 before weighting, one row per scorer, shape `(len(steps), len(endpoints))`.

        The row of a scorer that failed and is to be skipped is all zero, so its weight counts for nobody.
        """
        scores = np.zeros((len(self.steps), len(endpoints)))
        for row, step in zip(scores, self.steps, strict=True):
            answer = step.run(access, request, endpoints, state)
            rated = answer if isinstance(answer, Fault) else _rated(answer, len(endpoints))
            if isinstance(rated, str):
                rated = step.fault(rated)
            if not isinstance(rated, Fault):
                row[:] = rated
            elif rated.refuses:
                return rated
        return scores if not self.steps or _in_range(scores) else self._into_range(scores)

    def total(self, scores: FloatArray) -> FloatArray:
        """Weighted sums, shape `(len(endpoints),)`.

        Rows are added one after the other for every column alike, so equal endpoints get equal totals to the last bit:
        a matrix product would not promise that, and pickers break ties at random.
        """
        totals: FloatArray = np.add.reduce(scores * self.weights, axis=0)
        return totals

    def _into_range(self, scores: FloatArray) -> FloatArray | Fault:
        for row, step in zip(scores, self.steps, strict=True):
            if not np.isfinite(row).all():
                row[:] = 0.0
                fault = step.fault("answered a score that is not a finite number")
                if fault.refuses:
                    return fault
                continue
            outside = int(np.count_nonzero((row < 0.0) | (row > 1.0)))
            if outside:
                step.instruments.clamped(step.instance, outside)
                np.clip(row, 0.0, 1.0, out=row)
        return scores


def compile_scoring(scorers: Sequence[tuple[Instance, float]], instruments: Instruments) -> Scoring:
    """Bind each instance's `score`. Raises TypeError when one has none: a mistake in the plan."""
    weights = np.array([weight for _, weight in scorers], dtype=np.float64).reshape(-1, 1)
    return Scoring(tuple(_scorer_step(instance, instruments) for instance, _ in scorers), weights)


def _scorer_step(instance: Instance, instruments: Instruments) -> ScorerStep:
    plugin = instance.plugin
    if not isinstance(plugin, Scorer):
        raise wrong_kind(instance, "scorer")
    return bind(plugin.score, instance, ExtensionPoint.SCORER, instruments)


def _in_range(scores: FloatArray) -> bool:
    """Whether all scores lie in 0..1; False when one is NaN, which `argmin` gives then.

    0.9 µs for 3 scores of 16 endpoints; `min` and `max` take 4 µs.
    """
    flat = scores.ravel()
    return bool(flat[flat.argmin()] >= 0.0 and flat[flat.argmax()] <= 1.0)


def _rated(answer: object, candidates: int) -> NumberArray | str:
    """The scores that a scorer's answer stands for, or what is wrong with the answer."""
    if not isinstance(answer, np.ndarray):
        return f"answered {type(answer).__name__}, not an array of scores"
    if answer.shape != (candidates,):
        return f"answered scores of shape {answer.shape} for {candidates} endpoints"
    if answer.dtype.kind not in _REAL_NUMBERS:
        return f"answered scores of type {answer.dtype}, which are not numbers"
    return answer
