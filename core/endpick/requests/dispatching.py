"""The last plugins before a request leaves: they note the decision and add headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.request import InferenceRequest
from endpick.api.requests import PreRequest, Rejection, UpstreamHeaders
from endpick.api.scheduling import SchedulingResult
from endpick.api.state import CycleState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.requests.decision import Refused
from endpick.requests.refusals import refused
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

PreRequestStep: TypeAlias = Step[[InferenceRequest, SchedulingResult, UpstreamHeaders, CycleState], object]


def pre_request_step(instance: Instance, instruments: Instruments) -> PreRequestStep:
    """Bind the instance's `before_request`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, PreRequest):
        raise wrong_kind(instance, "pre-request plugin")
    return bind(plugin.before_request, instance, ExtensionPoint.PRE_REQUEST, instruments)


def tell_before_request(
    steps: Sequence[PreRequestStep],
    request: InferenceRequest,
    result: SchedulingResult,
    headers: UpstreamHeaders,
    state: CycleState,
    access: Access,
) -> Refused | None:
    """Tell every instance, also after one has refused, so that all of them count the same requests; the first refusal wins."""
    refusal: Refused | None = None
    for step in steps:
        answer = step.run(access, request, result, headers, state)
        if answer is not None and not isinstance(answer, Rejection | Fault):
            answer = step.fault(f"answered {type(answer).__name__}, not a Rejection or None")
        if isinstance(answer, Rejection) or (isinstance(answer, Fault) and answer.refuses):
            refusal = refusal or refused(answer)
    return refusal
