"""`random-picker`: any endpoint, whatever its rating."""

from __future__ import annotations

from endpick.api import Endpoints, InferenceRequest, Picker, PluginMeta, ScoredEndpoints, ScoringState
from endpick_builtin.pickers.parameters import PickerParameters


class RandomPicker(Picker[PickerParameters]):
    """Pick endpoints uniformly at random; scores are ignored."""

    meta = PluginMeta(type="random-picker", api=">=1.0,<2", parameters=PickerParameters)

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        candidates = len(scored.scores)
        return scored.take(self.context.random.sample(range(candidates), self.parameters.count(candidates)))
