"""`{{ cookiecutter.plugin_type }}`: keeps a share of the pool for the highest priority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import UsageLimitPolicy
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """The reserved share."""

    reserve: Annotated[
        float, Field(ge=0, lt=1, description="Share of the pool that is kept for the highest priority.")
    ] = 0.2


class {{ cookiecutter.__class }}(UsageLimitPolicy[{{ cookiecutter.__parameters }}]):
    """Serves the highest priority until the pool is full, and all others until only `reserve` of it is free."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Ceilings of saturation by priority, the highest priority first."""
        return [1.0 if place == 0 else 1.0 - self.parameters.reserve for place in range(len(priorities))]
