"""The first third of a profile run: each filter narrows what the one before it kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from endpick.api.access import Access
from endpick.api.endpoints import Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.scheduling import Filter
from endpick.api.state import ScoringState
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.scheduling.narrowing import narrowed
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

FilterStep: TypeAlias = Step[[InferenceRequest, Endpoints, ScoringState], object]


def filter_step(instance: Instance, instruments: Instruments) -> FilterStep:
    """Bind the instance's `filter`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, Filter):
        raise wrong_kind(instance, "filter")
    return bind(plugin.filter, instance, ExtensionPoint.FILTER, instruments)


def apply_filters(
    steps: Sequence[FilterStep], request: InferenceRequest, endpoints: Endpoints, state: ScoringState, access: Access
) -> Endpoints | Fault:
    """What all filters kept, perhaps nothing; filters after one that kept nothing are not called."""
    for step in steps:
        if not len(endpoints):
            break
        answer = step.run(access, request, endpoints, state)
        kept = answer if isinstance(answer, Fault) else narrowed(endpoints, answer)
        if isinstance(kept, str):
            kept = step.fault(kept)
        if not isinstance(kept, Fault):
            endpoints = kept
        elif kept.refuses:
            return kept
    return endpoints
