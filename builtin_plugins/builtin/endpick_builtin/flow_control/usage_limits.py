"""Usage limits: the saturation of the pool up to which each priority is served."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from endpick.api import Parameters, PluginContext, Stability
from endpick.api.flow_control import UsageLimitPolicy


class StaticLimitParameters(Parameters):
    """One ceiling for all priorities."""

    threshold: Annotated[
        float, Field(ge=0.0, allow_inf_nan=False, description="Requests are dispatched while the saturation of the pool is below this.")
    ] = 1.0


class StaticUsageLimit(UsageLimitPolicy[StaticLimitParameters]):
    """Serves every priority up to the same saturation: ceiling = threshold. Above 1, requests queue in model servers."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """See the class."""
        return [self.parameters.threshold] * len(priorities)


class HoldbackParameters(Parameters):
    """The range of the ceilings, and how priorities are mapped to it."""

    shape: Annotated[Literal["linear"], Field(description="Shape of the ceilings over the priorities; only `linear`.")] = "linear"
    domain: Annotated[
        Literal["rank", "value"], Field(description="Ceilings rise with the rank of a priority (`rank`) or with its number (`value`).")
    ] = "rank"
    min_ceiling: Annotated[float, Field(alias="minCeiling", ge=0.0, lt=1.0, description="Ceiling of the lowest priority.", examples=[0.5])]
    max_ceiling: Annotated[
        float, Field(alias="maxCeiling", gt=0.0, le=1e6, description="Ceiling of the highest priority; at least minCeiling.")
    ] = 1.0

    @model_validator(mode="after")
    def _ordered(self) -> HoldbackParameters:
        if self.max_ceiling < self.min_ceiling:
            raise ValueError("maxCeiling must not be below minCeiling")
        return self


class PriorityHoldback(UsageLimitPolicy[HoldbackParameters]):
    """Holds back room for higher priorities: the lower a priority, the lower its ceiling.

    With `rank`, priority i of N, counted from 0 for the highest, has ceiling = maxCeiling - i / (N - 1) * (maxCeiling - minCeiling). With
    `value`, r = (priority - lowest) / (highest - lowest) and ceiling = minCeiling + r * (maxCeiling - minCeiling). A single priority has
    maxCeiling. N counts the priorities that have a band now.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: HoldbackParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._priorities: Sequence[int] = ()
        self._ceilings: list[float] = []

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """See the class. Computed when the priorities change."""
        if priorities != self._priorities:
            self._priorities, self._ceilings = priorities, self._computed(priorities)
        return self._ceilings

    def _computed(self, priorities: Sequence[int]) -> list[float]:
        lowest, highest = self.parameters.min_ceiling, self.parameters.max_ceiling
        span = highest - lowest
        if len(priorities) < 2:
            return [highest] * len(priorities)
        if self.parameters.domain == "rank":
            last = len(priorities) - 1
            return [max(lowest, highest - span * (place / last)) for place in range(len(priorities))]
        bottom, top = priorities[-1], priorities[0]
        # Differences of integers are exact; those of floats are not.
        return [min(highest, lowest + span * ((priority - bottom) / (top - bottom))) for priority in priorities]


class SoftReflectiveCeiling(UsageLimitPolicy[Parameters]):
    """Throttles lower priorities gradually as the pool fills.

    At saturation s, priority i of N, counted from 0 for the highest, is not throttled while s < 1 - i * s / (N - 1). Throttled priorities
    are served only in every p-th dispatch cycle, p = max(1, round(s / (1 - s))). From s = 1 on, only the highest priority is served. The
    highest priority always has ceiling 1. Cycles count while 1 - s <= s < 1, when some priority is throttled. NaN counts as full.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._cycles = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """See the class."""
        bands = len(priorities)
        if bands < 2:
            return [1.0] * bands
        if not saturation < 1.0:
            return [1.0, *[0.0] * (bands - 1)]
        if saturation < 1.0 - saturation:
            return [1.0] * bands
        self._cycles += 1
        period = max(1, math.floor(saturation / (1.0 - saturation) + 0.5))
        throttled = 1.0 if self._cycles % period == 0 else 0.0
        last = bands - 1
        return [1.0 if saturation < 1.0 - place * saturation / last else throttled for place in range(bands)]
