"""The last third of a profile run: the picker chooses, and the host checks that it chose candidates."""

from __future__ import annotations

from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import Picker, ScoredEndpoints
from endpick.api.state import ScoringState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.scheduling.narrowing import stray
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

PickerStep: TypeAlias = Step[[InferenceRequest, ScoredEndpoints, ScoringState], Endpoints]


def picker_step(instance: Instance, instruments: Instruments) -> PickerStep:
    """Bind the instance's `pick`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, Picker):
        raise wrong_kind(instance, "picker")
    return bind(plugin.pick, instance, ExtensionPoint.PICKER, instruments)


def pick(step: PickerStep, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState, access: Access) -> Endpoints | Fault:
    """What the picker chose; of a picker that failed and is to be skipped, the candidate with the highest total."""
    answer = step.run(access, request, scored, state)
    if not isinstance(answer, Fault):
        problem = _unusable(scored.endpoints, answer)
        if problem is None:
            return answer
        answer = step.fault(problem)
    return answer if answer.refuses else scored.take([int(scored.scores.argmax())])


def _unusable(candidates: Endpoints, answer: object) -> str | None:
    if not isinstance(answer, Endpoints):
        return f"answered {type(answer).__name__}, not Endpoints"
    if not len(answer):
        return "picked no endpoint"
    return stray(candidates, answer)
