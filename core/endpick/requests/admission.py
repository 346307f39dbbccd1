"""Who is let in: shedding of unimportant requests when the pool is full, and the word of the admitters."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Real
from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.requests import Admitter, Rejection, SaturationDetector
from endpick.api.state import ScoringState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.requests.decision import Refused
from endpick.requests.refusals import SATURATED, refused
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

AdmitStep: TypeAlias = Step[[InferenceRequest, Endpoints, ScoringState], object]
SaturationStep: TypeAlias = Step[[Endpoints], object]


def admit_step(instance: Instance, instruments: Instruments) -> AdmitStep:
    """Bind the instance's `admit`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, Admitter):
        raise wrong_kind(instance, "admitter")
    return bind(plugin.admit, instance, ExtensionPoint.ADMISSION, instruments)


def saturation_step(instance: Instance, instruments: Instruments) -> SaturationStep:
    """Bind the instance's `saturation`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, SaturationDetector):
        raise wrong_kind(instance, "saturation detector")
    return bind(plugin.saturation, instance, ExtensionPoint.ADMISSION, instruments)


def shed(detector: SaturationStep | None, request: InferenceRequest, endpoints: Endpoints, access: Access) -> Refused | None:
    """Refuse a request of negative priority while the pool is full. Any other request passes without asking the detector."""
    if request.priority >= 0 or detector is None:
        return None
    saturation = detector.run(access, endpoints)
    if not isinstance(saturation, Real | Fault):
        saturation = detector.fault(f"answered {type(saturation).__name__}, not a number")
    if isinstance(saturation, Fault):
        return refused(saturation) if saturation.refuses else None
    return SATURATED if float(saturation) >= 1.0 else None


def admit(
    steps: Sequence[AdmitStep], request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access
) -> Refused | None:
    """The first refusal, in configuration order; None when all admit."""
    for step in steps:
        answer = step.run(access, request, endpoints, state)
        if isinstance(answer, Rejection):
            return refused(answer)
        if answer is not None and not isinstance(answer, Fault):
            answer = step.fault(f"answered {type(answer).__name__}, not a Rejection or None")
        if isinstance(answer, Fault) and answer.refuses:
            return refused(answer)
    return None
