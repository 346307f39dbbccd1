"""`metrics-data-source`: each endpoint's page of Prometheus metrics."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from endpick.api import Endpoint, MetricsPage, PluginMeta
from endpick_builtin.sources.http import HttpSource, HttpSourceParameters


class MetricsSourceParameters(HttpSourceParameters):
    """Where the metrics are."""

    path: Annotated[str, Field(pattern="^/", description="Path of the metrics page, from the root of the server.")] = "/metrics"


class MetricsDataSource(HttpSource[MetricsSourceParameters, MetricsPage]):
    """Asks every endpoint for its metrics page. Nothing is parsed here: collectors look up what they want in the `MetricsPage`.

    Anything but status 200, and a page over 8 MiB, is a poll error; the columns keep their values and grow older.
    """

    meta = PluginMeta(
        type="metrics-data-source",
        api=">=1.0,<2",
        parameters=MetricsSourceParameters,
        payload=MetricsPage,
        default_collectors=("core-metrics-extractor",),
    )
    accept = "text/plain;version=0.0.4"

    async def poll(self, endpoint: Endpoint) -> MetricsPage:
        """One scrape."""
        return MetricsPage(await self.fetch(endpoint))
