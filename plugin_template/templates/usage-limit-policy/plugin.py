"""`{{ cookiecutter.plugin_type }}`: reserves a share of the pool for the highest priority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from endpick.api import Parameters
from endpick.api.flow_control import UsageLimitPolicy
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the policy."""

    reserve: Annotated[float, Field(ge=0, lt=1, description="Share reserved for the highest priority.")] = 0.2


class {{ cookiecutter.__class }}(UsageLimitPolicy[{{ cookiecutter.__parameters }}]):
    """Serve the highest priority until the pool is full, and others until only `reserve` of it is free."""

    def ceilings(self, saturation: float, priorities: Sequence[int]) -> Sequence[float]:
        """Return the highest saturation at which each priority is served, highest priority first."""
        return [1.0 if place == 0 else 1.0 - self.parameters.reserve for place in range(len(priorities))]
