"""The data key that collector and scorer share."""

from __future__ import annotations

from endpick.api import DataKey, Scope

CARBON_INTENSITY: DataKey[dict[str, float]] = DataKey(
    "acme/carbon-intensity",
    dict,
    Scope.POOL,
    doc="Carbon intensity of the electricity in each zone, in grams of CO2 per kWh (0 or more).",
    default_producer="acme.carbon-collector",
)
