"""Pickers: choose among the scored endpoints."""

from __future__ import annotations

import numpy as np

from endpick.api import (
    Endpoints,
    FloatArray,
    InferenceRequest,
    Picker,
    PluginContext,
    ScoredEndpoints,
    ScoringState,
)
from endpick_builtin.picker_parameters import PickerParameters

FEW = 16


class MaxScorePicker(Picker[PickerParameters]):
    """Picks the endpoints with the highest totals, best first; ties are broken at random."""

    def __init__(self, name: str, parameters: PickerParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._picks_one = parameters.max_num_of_endpoints <= 1

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        scores, random = scored.scores, self.context.random
        if self._picks_one and len(scores) <= FEW:
            totals = scores.tolist()
            highest = max(totals)
            position, others = totals.index(highest), totals.count(highest) - 1
            for _ in range(random.randrange(others + 1) if others else 0):
                position = totals.index(highest, position + 1)
            return scored.endpoints.take([position])
        if self._picks_one or len(scores) == 1:
            # `...` keeps an array, which numpy compares faster than a number
            best = (scores == scores[scores.argmax(), ...]).nonzero()[0]
            chosen = random.randrange(len(best)) if len(best) > 1 else 0
            return scored.endpoints.take(best[chosen : chosen + 1])
        count = self.parameters.count(len(scores))
        shuffled = random.sample(range(len(scores)), len(scores))
        return scored.take(sorted(shuffled, key=lambda position: -scores[position])[:count])


class RandomPicker(Picker[PickerParameters]):
    """Picks endpoints uniformly at random; scores are ignored."""

    uses_scores = False

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        candidates = len(scored.scores)
        return scored.take(self.context.random.sample(range(candidates), self.parameters.count(candidates)))


SMALLEST_DRAW = 1e-10


class WeightedRandomPicker(Picker[PickerParameters]):
    """Picks endpoints at random without replacement, weighted by total (A-Res, Efraimidis and Spirakis).

    key = U^(1 / total) with U uniform in (0, 1), 0 for totals of 0 or less; the largest keys win, ties at random.
    """

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        scores, random = scored.scores, self.context.random
        positive = scores > 0.0
        # log(key) has the same order and does not underflow for small totals
        keys = np.full(len(scores), -np.inf)
        np.divide(np.log(self._draws(len(scores))), scores, out=keys, where=positive)
        count = self.parameters.count(len(scores))
        if count == 1 and np.count_nonzero(positive):
            return scored.take([int(keys.argmax())])
        return scored.take(np.lexsort((np.array(random.sample(range(len(scores)), len(scores))), -keys))[:count])

    def _draws(self, count: int) -> FloatArray:
        """Draw uniform numbers in (0, 1) in one call, which is five times faster."""
        bits = np.frombuffer(self.context.random.randbytes(8 * count), dtype=np.uint64) >> np.uint64(11)
        draws: FloatArray = np.maximum(bits * 2.0**-53, SMALLEST_DRAW)
        return draws
