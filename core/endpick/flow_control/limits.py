"""What holds for all queues together: limits, how long a request may wait, and what is forgotten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from endpick.api.access import Access
from endpick.flow_control.calls import Detector, Eviction, Fairness, Ordering, UsageLimit
from endpick.flow_control.policies import BoundFlowControl
from endpick.flow_control.queues import BandRules
from endpick.host.boundary import Step
from endpick.host.planning.flow_control_settings import BandSettings

BAND_IDLE_SECONDS = 600.0
"""A band to which nothing came for so long is forgotten, unless the configuration lists it."""
SWEEP_SECONDS = 1.0
"""How often requests that waited too long are looked for at least."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What one configuration says about waiting, bound to its policies.

    Attributes:
        max_bytes: How many bytes may wait in all; 0 for any number.
        max_requests: How many requests may wait in all; 0 for any number.
        ttl_seconds: How long a request may wait while the pool has endpoints; 0 for any time.
        no_endpoint_ttl_seconds: The same while it has none.
        bands: Of the priorities that the configuration lists.
        default_band: Of those that it does not list.
        negative_band: Of those below 0 that it does not list.
        usage_limit: Up to which saturation each band is served.
        detector: Says how full the pool is.
        eviction: Who says which requests in flight may be evicted; None where none is.
    """

    max_bytes: int
    max_requests: int
    ttl_seconds: float
    no_endpoint_ttl_seconds: float
    bands: Mapping[int, BandRules]
    default_band: BandRules
    negative_band: BandRules
    usage_limit: UsageLimit
    detector: Detector
    eviction: Eviction | None = None

    def of_band(self, priority: int) -> BandRules:
        """What holds for a priority."""
        listed = self.bands.get(priority)
        if listed is not None:
            return listed
        return self.default_band if priority >= 0 else self.negative_band

    @property
    def longest_wait_seconds(self) -> float:
        """What a request may wait in all, however often the pool becomes empty and fills again; 0 for any time."""
        both = self.ttl_seconds, self.no_endpoint_ttl_seconds
        return max(both) if all(both) else 0.0


def rules_of(bound: BoundFlowControl, detector: Step, access: Access) -> Rules:
    """What a configuration says, ready to be asked; `access` is what the calls of plugins are judged by."""
    settings = bound.settings
    fairness = {name: Fairness(policy, access) for name, policy in bound.fairness.items()}
    ordering = {name: Ordering(policy, access) for name, policy in bound.ordering.items()}

    def of_band(band: BandSettings) -> BandRules:
        return BandRules(band.max_bytes, band.max_requests, fairness[band.fairness], ordering[band.ordering])

    return Rules(
        settings.max_bytes,
        settings.max_requests,
        settings.ttl_seconds,
        settings.no_endpoint_ttl_seconds,
        {priority: of_band(band) for priority, band in settings.bands.items()},
        of_band(settings.template),
        of_band(settings.negative_template),
        UsageLimit(bound.ceilings, access),
        Detector(detector, access),
        None if bound.eviction is None else Eviction(bound.eviction, access),
    )


class Regime:
    """Whether the pool has endpoints, and since when: a change gives all that wait their time anew, within the longest."""

    __slots__ = ("changed_at", "is_empty")

    def __init__(self, now: float) -> None:
        self.is_empty = False
        self.changed_at = now

    def observe(self, is_empty: bool, now: float) -> None:
        """Take note of the pool."""
        if is_empty is not self.is_empty:
            self.is_empty = is_empty
            self.changed_at = now

    def is_due(self, enqueued_at: float, rules: Rules, now: float) -> bool:
        """Whether a request has waited for as long as it may. Of two requests, the one that came first is due first."""
        budget = rules.no_endpoint_ttl_seconds if self.is_empty else rules.ttl_seconds
        longest = rules.longest_wait_seconds
        if budget and now - max(enqueued_at, self.changed_at) >= budget:
            return True
        return bool(longest) and now - enqueued_at >= longest
