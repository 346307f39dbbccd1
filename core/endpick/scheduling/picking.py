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

PickerStep: TypeAlias = Step[[InferenceRequest, ScoredEndpoints, ScoringState], object]


def picker_step(instance: Instance, instruments: Instruments) -> PickerStep:
    """Bind the instance's `pick`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, Picker):
        raise wrong_kind(instance, "picker")
    return bind(plugin.pick, instance, ExtensionPoint.PICKER, instruments)


def pick(step: PickerStep, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState, access: Access) -> Endpoints | Fault:
    """What the picker chose; of a picker that failed and is to be skipped, the candidate with the highest total."""
    answer = step.run(access, request, scored, state)
    picked = answer if isinstance(answer, Fault) else _picked(scored.endpoints, answer)
    if isinstance(picked, str):
        picked = step.fault(picked)
    if isinstance(picked, Endpoints) or picked.refuses:
        return picked
    return scored.take([int(scored.scores.argmax())])


def _picked(candidates: Endpoints, answer: object) -> Endpoints | str:
    """The endpoints that a picker's answer stands for, or what is wrong with the answer."""
    if not isinstance(answer, Endpoints):
        return f"answered {type(answer).__name__}, not Endpoints"
    if not len(answer):
        return "picked no endpoint"
    return stray(candidates, answer) or answer
