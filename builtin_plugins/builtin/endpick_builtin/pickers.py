"""Pickers: to which of the rated endpoints does a request go?"""

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
"""Of so many numbers Python finds the largest sooner than numpy does."""


class MaxScorePicker(Picker[PickerParameters]):
    """Pick the endpoints with the highest totals, best first; among equal totals each order is as likely as any other."""

    def __init__(self, name: str, parameters: PickerParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._picks_one = parameters.max_num_of_endpoints <= 1

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        scores, random = scored.scores, self.context.random
        if self._picks_one and len(scores) <= FEW:
            totals = scores.tolist()
            highest = max(totals)
            position, others = totals.index(highest), totals.count(highest) - 1
            for _ in range(random.randrange(others + 1) if others else 0):
                position = totals.index(highest, position + 1)
            return scored.endpoints.take([position])
        if self._picks_one or len(scores) == 1:
            # `...` keeps the highest an array, with which numpy compares in three quarters of the time that a number takes.
            best = (scores == scores[scores.argmax(), ...]).nonzero()[0]
            chosen = random.randrange(len(best)) if len(best) > 1 else 0
            return scored.endpoints.take(best[chosen : chosen + 1])
        count = self.parameters.count(len(scores))
        shuffled = random.sample(range(len(scores)), len(scores))
        return scored.take(sorted(shuffled, key=lambda position: -scores[position])[:count])


class RandomPicker(Picker[PickerParameters]):
    """Pick endpoints uniformly at random; scores are ignored."""

    uses_scores = False

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        candidates = len(scored.scores)
        return scored.take(self.context.random.sample(range(candidates), self.parameters.count(candidates)))


SMALLEST_DRAW = 1e-10


class WeightedRandomPicker(Picker[PickerParameters]):
    """Pick endpoints at random without replacement, each with a chance in proportion to its total (A-Res, Efraimidis and Spirakis).

    key = U^(1 / total), U uniform in (0, 1); the largest keys win. A total of 0 or less has key 0: such an endpoint is picked only when
    there are not enough others, and all are equally likely when no total is positive.
    """

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        scores, random = scored.scores, self.context.random
        positive = scores > 0.0
        # log(key) orders like the key and, unlike it, does not underflow for small totals.
        keys = np.full(len(scores), -np.inf)
        np.divide(np.log(self._draws(len(scores))), scores, out=keys, where=positive)
        count = self.parameters.count(len(scores))
        if count == 1 and np.count_nonzero(positive):
            return scored.take([int(keys.argmax())])
        return scored.take(np.lexsort((np.array(random.sample(range(len(scores)), len(scores))), -keys))[:count])

    def _draws(self, count: int) -> FloatArray:
        """Numbers between 0 and 1, never 0. All bits are drawn at once: that many calls of `random` take five times as long."""
        bits = np.frombuffer(self.context.random.randbytes(8 * count), dtype=np.uint64) >> np.uint64(11)
        draws: FloatArray = np.maximum(bits * 2.0**-53, SMALLEST_DRAW)
        return draws
