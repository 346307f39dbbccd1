"""`weighted-random-picker`: a draw in which high totals win more often."""

from __future__ import annotations

from math import log

from endpick.api import Endpoints, InferenceRequest, Picker, PluginMeta, ScoredEndpoints, ScoringState
from endpick_builtin.pickers.parameters import PickerParameters

SMALLEST_DRAW = 1e-10


class WeightedRandomPicker(Picker[PickerParameters]):
    """Pick endpoints at random without replacement, each with a chance in proportion to its total (A-Res, Efraimidis and Spirakis).

    key = U^(1 / total), U uniform in (0, 1); the largest keys win. A total of 0 or less has key 0: such an endpoint is picked only when
    there are not enough others, and all are equally likely when no total is positive.
    """

    meta = PluginMeta(type="weighted-random-picker", api=">=1.0,<2", parameters=PickerParameters)

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        random = self.context.random
        # log(key) orders like the key and, unlike it, does not underflow for small totals.
        keys = [log(random.random() or SMALLEST_DRAW) / score if score > 0.0 else float("-inf") for score in scored.scores.tolist()]
        shuffled = random.sample(range(len(keys)), len(keys))
        best_first = sorted(shuffled, key=keys.__getitem__, reverse=True)
        return scored.take(best_first[: self.parameters.count(len(keys))])
