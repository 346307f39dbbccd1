"""Parameters of `endpoint-health`, outside the compiled `plugin`: pydantic models cannot be compiled."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from endpick.api import Duration
from endpick_builtin.camel_parameters import CamelParameters


class EndpointHealthParameters(CamelParameters):
    """Sets ejection criteria and times, with the names and defaults of Envoy's outlier detection."""

    consecutive_failures: Annotated[int, Field(gt=0, description="Failures in a row that eject.")] = 5
    failure_percentage: Annotated[
        float, Field(gt=0, le=100, description="Share of failed requests in the latest intervals that ejects.")
    ] = 85.0
    request_volume: Annotated[int, Field(gt=0, description="Requests in the latest intervals from which `failurePercentage` counts.")] = 50
    interval: Annotated[
        Duration, Field(gt=0, description="Length of a window of requests, and of the healthy time that takes one ejection off.")
    ] = 10.0
    base_ejection_time: Annotated[Duration, Field(gt=0, description="The first ejection; the second lasts twice as long, and so on.")] = (
        30.0
    )
    max_ejection_time: Annotated[Duration, Field(gt=0, description="The longest ejection.")] = 300.0
    max_ejection_percent: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="Share of the endpoints of one role that may be left out. Those asleep or dead do not count. 0: observe only.",
        ),
    ] = 50.0
    tolerance: Annotated[Duration, Field(gt=0, description="Age of the newest metric from which an endpoint is degraded.")] = 2.0
    slow_factor: Annotated[float, Field(gt=1, description="First-token time, as a multiple of the pool's median, that counts as slow.")] = (
        5.0
    )
    hang_timeout: Annotated[
        Duration, Field(gt=0, description="Time without a first token that ejects; longer if the pool's slowest took longer.")
    ] = 10.0

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.base_ejection_time > self.max_ejection_time:
            raise ValueError("baseEjectionTime must not exceed maxEjectionTime")
        return self
