"""What a configuration says of queues, with every default filled in; policies by the names of their instances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

DEFAULT_TTL_SECONDS = 60.0
DEFAULT_BAND_BYTES = 1_000_000_000
DEFAULT_BAND_REQUESTS = 5000


@dataclass(frozen=True, slots=True)
class BandSettings:
    """Limits and policies of one priority.

    Attributes:
        max_bytes: How many bytes may wait, 1 or more.
        max_requests: How many requests may wait, 1 or more.
        fairness: The instance that chooses the flow.
        ordering: The instance that puts the requests of a flow in order.
    """

    max_bytes: int
    max_requests: int
    fairness: str
    ordering: str


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """Who says which requests in flight may be evicted, and which of them first: instances."""

    filter: str
    ordering: str


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    """All of `flowControl` but the saturation detector, which is used without queues as well.

    Attributes:
        max_bytes: How many bytes may wait in all bands; 0 for any number.
        max_requests: How many requests may wait in all bands; 0 for any number.
        ttl_seconds: How long a request may wait while the pool has endpoints; 0 for any time.
        no_endpoint_ttl_seconds: How long while it has none; 0 for any time.
        bands: The priorities that the document lists.
        template: What other priorities of 0 and above get.
        negative_template: What other priorities below 0 get.
        usage_limit: The instance that says how full the pool may become by each band.
        eviction: None while requests in flight are left alone.
    """

    max_bytes: int
    max_requests: int
    ttl_seconds: float
    no_endpoint_ttl_seconds: float
    bands: Mapping[int, BandSettings]
    template: BandSettings
    negative_template: BandSettings
    usage_limit: str
    eviction: EvictionSettings | None = None

    def band(self, priority: int) -> BandSettings:
        """What holds for requests of a priority."""
        listed = self.bands.get(priority)
        if listed is not None:
            return listed
        return self.negative_template if priority < 0 else self.template

    @property
    def all_bands(self) -> tuple[BandSettings, ...]:
        """Those of the listed priorities and both templates."""
        return (*self.bands.values(), self.template, self.negative_template)
