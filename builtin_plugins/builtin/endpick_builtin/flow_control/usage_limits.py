"""Usage limits: up to which saturation of the pool is each priority served?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from endpick.api import Parameters, PluginContext, Stability, UsageLimitPolicy


class StaticLimitParameters(Parameters):
    """The same for all."""

    threshold: Annotated[
        float, Field(ge=0.0, allow_inf_nan=False, description="Requests are let go while the saturation of the pool is below it.")
    ] = 1.0


class StaticUsageLimit(UsageLimitPolicy[StaticLimitParameters]):
    """Serve every priority up to the same saturation: ceiling = threshold. A threshold above 1 lets model servers queue."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """See the class."""
        return [self.parameters.threshold] * len(priorities)


class HoldbackParameters(Parameters):
    """Between which ceilings the priorities are spread, and how."""

    shape: Annotated[Literal["linear"], Field(description="How ceilings rise with priorities; there is one way.")] = "linear"
    domain: Annotated[
        Literal["rank", "value"], Field(description="What rises: the place among the priorities (`rank`), or their numbers (`value`).")
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
    """Hold back room for higher priorities: the lower a priority, the less full the pool may be for it.

    `rank`: of N priorities number i, from 0 for the highest, has ceiling = maxCeiling - i / (N - 1) * (maxCeiling - minCeiling). `value`:
    with r = (priority - lowest) / (highest - lowest), ceiling = minCeiling + r * (maxCeiling - minCeiling). A lone priority has maxCeiling.
    Counted are the priorities that have a band now.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: HoldbackParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._priorities: list[int] = []
        self._ceilings: list[float] = []

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """See the class; reckoned anew only when the priorities change."""
        known = list(priorities)
        if known != self._priorities:
            self._priorities = known
            self._ceilings = self._reckoned(known)
        return self._ceilings.copy()

    def _reckoned(self, priorities: list[int]) -> list[float]:
        lowest, highest = self.parameters.min_ceiling, self.parameters.max_ceiling
        span = highest - lowest
        if len(priorities) < 2:
            return [highest] * len(priorities)
        if self.parameters.domain == "rank":
            last = len(priorities) - 1
            return [max(lowest, highest - span * (place / last)) for place in range(len(priorities))]
        bottom, top = priorities[-1], priorities[0]
        # Whole numbers of any size are divided exactly enough: floats of them would not be.
        return [min(highest, lowest + span * ((priority - bottom) / (top - bottom))) for priority in priorities]


class SoftReflectiveCeiling(UsageLimitPolicy[Parameters]):
    """Throttle lower priorities bit by bit as the pool fills, instead of all at once.

    Of N priorities number i, from 0 for the highest, is free while saturation s < 1 - i * s / (N - 1). Those above take turns: all of them
    may be served at every p-th attempt to let a request go, p = max(1, round(s / (1 - s))), and at no other. From s = 1 on only the highest
    priority has a ceiling, which is always 1, as that of a lone priority is. Attempts count while 1 - s <= s < 1, which is when some
    priority is throttled. A saturation that is no number counts as full.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._attempts = 0

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """See the class."""
        bands = len(priorities)
        if bands < 2:
            return [1.0] * bands
        if not saturation < 1.0:
            return [1.0, *[0.0] * (bands - 1)]
        if saturation < 1.0 - saturation:
            return [1.0] * bands
        self._attempts += 1
        period = max(1, math.floor(saturation / (1.0 - saturation) + 0.5))
        throttled = 1.0 if self._attempts % period == 0 else 0.0
        last = bands - 1
        return [1.0 if saturation < 1.0 - place * saturation / last else throttled for place in range(bands)]
