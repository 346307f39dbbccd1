"""`acme.carbon-source`: asks a service for the carbon intensity of electricity, for the whole pool at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import aiohttp
from endpick.api import Duration, Parameters, PluginContext, PollingPoolSource, Unavailable
from pydantic import Field, TypeAdapter, ValidationError


class CarbonSourceParameters(Parameters):
    """Whom to ask, and how often."""

    url: Annotated[
        str,
        Field(
            pattern="^https?://",
            examples=["http://127.0.0.1:8090/carbon"],
            description='Service that answers `{"zones": {"eu-west-1a": 312.5}}`, in grams of CO2 per kWh.',
        ),
    ]
    interval: Annotated[Duration, Field(gt=0, description="Time between two questions.")] = 300.0


@dataclass(frozen=True, slots=True)
class CarbonReport:
    """One answer of the service."""

    zones: dict[str, float]
    """Grams of CO2 per kWh, by zone."""


REPORT = TypeAdapter(CarbonReport)


class CarbonSource(PollingPoolSource[CarbonSourceParameters, CarbonReport]):
    """Asks the service at an interval. While it cannot be had, the last answer stays."""

    default_collectors = ("acme.carbon-collector",)

    def __init__(self, name: str, parameters: CarbonSourceParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.interval_seconds = parameters.interval
        self.latest: CarbonReport | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the connection pool."""
        self._session = aiohttp.ClientSession()

    async def stop(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def poll_pool(self) -> CarbonReport:
        """One report; endpick asks again, soon at first and then ever more slowly, when there is none."""
        if self._session is None:
            raise Unavailable("the source has not been started")
        try:
            async with self._session.get(self.parameters.url, raise_for_status=True) as response:
                self.latest = REPORT.validate_json(await response.read())
                return self.latest
        except (aiohttp.ClientError, OSError, ValidationError) as problem:
            raise Unavailable(f"GET {self.parameters.url}: {problem}") from problem
