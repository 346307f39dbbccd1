"""`max-score-picker`: the best rated endpoint, chance deciding among equals."""

from __future__ import annotations

from endpick.api import Endpoints, InferenceRequest, Picker, PluginMeta, ScoredEndpoints, ScoringState
from endpick_builtin.pickers.parameters import PickerParameters


class MaxScorePicker(Picker[PickerParameters]):
    """Pick the endpoints with the highest totals, best first; among equal totals each order is as likely as any other."""

    meta = PluginMeta(type="max-score-picker", api=">=1.0,<2", parameters=PickerParameters)

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """See the class."""
        scores, random = scored.scores, self.context.random
        count = self.parameters.count(len(scores))
        if count == 1:
            best = (scores == scores[scores.argmax()]).nonzero()[0]
            return scored.take(best if len(best) == 1 else [int(best[random.randrange(len(best))])])
        shuffled = random.sample(range(len(scores)), len(scores))
        return scored.take(sorted(shuffled, key=lambda position: -scores[position])[:count])
