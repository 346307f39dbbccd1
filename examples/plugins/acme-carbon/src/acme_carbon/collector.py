"""`acme.carbon-collector`: makes pool-wide data of what `acme.carbon-source` brings."""

from __future__ import annotations

import math

from endpick.api import ColumnWriter, DataCollector, Parameters, Unavailable

from acme_carbon.keys import CARBON_INTENSITY
from acme_carbon.source import CarbonReport


class CarbonCollector(DataCollector[Parameters, CarbonReport]):
    """Keeps the carbon intensity of every zone. A number that no meter could show is dropped."""

    produces = (CARBON_INTENSITY,)
    default_source = "acme.carbon-source"

    def collect(self, payload: CarbonReport, writer: ColumnWriter) -> None:
        """Write what makes sense."""
        zones = {zone: grams for zone, grams in payload.zones.items() if math.isfinite(grams) and grams >= 0}
        if not zones:
            raise Unavailable("the report knows no zone")
        writer.set_pool(CARBON_INTENSITY, zones)
