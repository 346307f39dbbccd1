"""Flow control settings of a plan, with every default filled in; policies are instance names."""

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
        max_bytes: Bytes that may wait, 1 or more.
        max_requests: Requests that may wait, 1 or more.
        fairness: Fairness policy.
        ordering: Ordering policy.
    """

    max_bytes: int
    max_requests: int
    fairness: str
    ordering: str


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """The eviction filter and the eviction ordering policy."""

    filter: str
    ordering: str


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    """The `flowControl` section without the saturation detector, which is used without queues too.

    Attributes:
        max_bytes: Bytes that may wait in all bands; 0 means no limit.
        max_requests: Requests that may wait in all bands; 0 means no limit.
        ttl_seconds: Maximum wait of a request while the pool has endpoints; 0 means no limit.
        no_endpoint_ttl_seconds: Maximum wait while the pool has no endpoints; 0 means no limit.
        bands: The listed priorities.
        template: For unlisted priorities of 0 and above.
        negative_template: For unlisted priorities below 0.
        usage_limit: Usage limit policy.
        eviction: None if requests in flight are not evicted.
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
        """Settings for a priority."""
        listed = self.bands.get(priority)
        if listed is not None:
            return listed
        return self.negative_template if priority < 0 else self.template

    @property
    def all_bands(self) -> tuple[BandSettings, ...]:
        """Settings of the listed priorities and both templates."""
        return (*self.bands.values(), self.template, self.negative_template)
