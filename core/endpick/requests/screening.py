"""Screeners: each says which candidates it would keep, and those that all of them keep remain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from endpick.api.access import Access
from endpick.api.endpoints import BoolArray, Endpoints
from endpick.api.request import InferenceRequest
from endpick.api.requests import Screener
from endpick.observability.instruments import Instruments
from endpick.plugins.instance import Instance
from endpick.scheduling.narrowing import narrowed
from endpick.scheduling.step import ExtensionPoint, Fault, Step, bind, wrong_kind

ScreenStep: TypeAlias = Step[[InferenceRequest, Endpoints], object]


def screen_step(instance: Instance, instruments: Instruments) -> ScreenStep:
    """Bind the instance's `screen`. Raises TypeError when it has none: a mistake in the plan."""
    plugin = instance.plugin
    if not isinstance(plugin, Screener):
        raise wrong_kind(instance, "screener")
    return bind(plugin.screen, instance, ExtensionPoint.SCREENER, instruments)


def screen(steps: Sequence[ScreenStep], request: InferenceRequest, endpoints: Endpoints, access: Access) -> Endpoints | Fault:
    """What all screeners keep, in the order of `endpoints`; every one of them is asked about the same candidates."""
    dropped: BoolArray | None = None
    for step in steps:
        answer = step.run(access, request, endpoints)
        kept = answer if isinstance(answer, Fault) else narrowed(endpoints, answer)
        if isinstance(kept, str):
            kept = step.fault(kept)
        if isinstance(kept, Fault):
            if kept.refuses:
                return kept
        elif kept is not endpoints:
            others = np.ones(len(endpoints.generation.endpoints), dtype=np.bool_)
            others[kept.rows] = False
            dropped = others if dropped is None else dropped | others
    return endpoints if dropped is None else endpoints.where(~dropped[endpoints.rows])
