"""`{{ cookiecutter.plugin_type }}`: measures the time to connect to each endpoint."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated

from endpick.api import Duration, Endpoint, Parameters, PluginContext, PollingSource, Unavailable
from pydantic import Field


class {{ cookiecutter.__parameters }}(Parameters):
    """Parameters of the source."""

    interval: Annotated[Duration, Field(gt=0, description="Time between two measurements of one endpoint.")] = 5.0
    timeout: Annotated[Duration, Field(gt=0, description="A connection that takes longer counts as failed.")] = 1.0


@dataclass(frozen=True, slots=True)
class {{ cookiecutter.__payload }}:
    """One measurement of one endpoint."""

    connect_seconds: float


class {{ cookiecutter.__class }}(PollingSource[{{ cookiecutter.__parameters }}, {{ cookiecutter.__payload }}]):
    """Measures the time to open a connection to each endpoint."""

    default_collectors = ("{{ cookiecutter.__collector_type }}",)

    def __init__(self, name: str, parameters: {{ cookiecutter.__parameters }}, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval
        self.timeout_seconds = parameters.timeout

    async def poll(self, endpoint: Endpoint) -> {{ cookiecutter.__payload }}:
        """Measure one endpoint; endpick gives up after `timeout_seconds`."""
        started = self.context.clock()
        try:
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except OSError as problem:
            raise Unavailable(f"cannot connect to {endpoint.address}: {problem}") from problem
        connected = self.context.clock()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        return {{ cookiecutter.__payload }}(connected - started)
