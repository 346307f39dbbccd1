"""`acme.carbon-source`: asks a service for the carbon intensity of electricity, for the whole pool at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import aiohttp
from endpick.api import Duration, Parameters, PoolSource, Unavailable
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


_REPORT = TypeAdapter(CarbonReport)


class CarbonSource(PoolSource[CarbonSourceParameters, CarbonReport]):
    """Asks the service at an interval. While it cannot be had, the last answer stays."""

    default_collectors = ("acme.carbon-collector",)

    async def watch_pool(self, publish: Callable[[CarbonReport], None]) -> None:
        """Deliver reports until cancelled; endpick calls again, ever more slowly, when it fails."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10)) as session:
            while True:
                publish(await self._ask(session))
                await asyncio.sleep(self.parameters.interval)

    async def _ask(self, session: aiohttp.ClientSession) -> CarbonReport:
        try:
            async with session.get(self.parameters.url, raise_for_status=True) as response:
                return _REPORT.validate_json(await response.read())
        except (aiohttp.ClientError, OSError, ValidationError) as problem:
            raise Unavailable(f"GET {self.parameters.url}: {problem}") from problem
