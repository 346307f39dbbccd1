"""The policies of flow control, and the checks of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from numbers import Real

from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, SortKey, UsageLimitPolicy
from endpick.host.boundary import Fault, Step, bind, bind_wanted
from endpick.host.instance import Instance
from endpick.host.planning.plan import BandSettings, FlowControlSettings
from endpick.host.telemetry import Telemetry

_LAST: SortKey = (inf,)
"""The key after a fault."""


@dataclass(frozen=True, slots=True)
class BoundFairness:
    """A fairness policy; None for a method that it does not override."""

    choose: Step
    flow_changed: Step | None
    dispatched: Step | None


@dataclass(frozen=True, slots=True)
class BandRules:
    """Limits and policies of one priority."""

    max_bytes: int
    max_requests: int
    fairness: BoundFairness
    ordering: Step

    def orders_as(self, other: BandRules) -> bool:
        """True if both have the same policies."""
        return (
            self.fairness.choose.instance.plugin is other.fairness.choose.instance.plugin
            and self.ordering.instance.plugin is other.ordering.instance.plugin
        )


@dataclass(frozen=True, slots=True)
class BoundEviction:
    """The policies that select requests in flight for eviction."""

    is_evictable: Step
    sort_key: Step


@dataclass(frozen=True, slots=True)
class BoundFlowControl:
    """The flow control of one configuration.

    Attributes:
        bands: Rules of the listed priorities.
        default_band: Rules of other priorities of 0 and above.
        negative_band: Rules of other priorities below 0.
    """

    settings: FlowControlSettings
    bands: Mapping[int, BandRules]
    default_band: BandRules
    negative_band: BandRules
    ceilings: Step
    eviction: BoundEviction | None

    def of_band(self, priority: int) -> BandRules:
        """The rules of a priority."""
        return self.bands.get(priority) or (self.default_band if priority >= 0 else self.negative_band)


def bind_flow_control(settings: FlowControlSettings, instances: Mapping[str, Instance], telemetry: Telemetry) -> BoundFlowControl:
    """Bind the policies that the settings name. Raises TypeError for an instance of the wrong kind; a mistake in the plan."""

    def band(of: BandSettings) -> BandRules:
        return BandRules(of.max_bytes, of.max_requests, fairness[of.fairness], ordering[of.ordering])

    fairness = {each.fairness: _bind_fairness(instances[each.fairness], telemetry) for each in settings.all_bands}
    ordering = {each.ordering: bind(instances[each.ordering], OrderingPolicy, "sort_key", telemetry) for each in settings.all_bands}
    return BoundFlowControl(
        settings,
        {priority: band(listed) for priority, listed in settings.bands.items()},
        band(settings.template),
        band(settings.negative_template),
        bind(instances[settings.usage_limit], UsageLimitPolicy, "ceilings", telemetry),
        None
        if settings.eviction is None
        else BoundEviction(
            bind(instances[settings.eviction.filter], EvictionFilter, "is_evictable", telemetry),
            bind(instances[settings.eviction.ordering], EvictionOrderingPolicy, "sort_key", telemetry),
        ),
    )


def _bind_fairness(instance: Instance, telemetry: Telemetry) -> BoundFairness:
    return BoundFairness(
        bind(instance, FairnessPolicy, "choose", telemetry),
        bind_wanted(instance, FairnessPolicy, "flow_changed", telemetry),
        bind_wanted(instance, FairnessPolicy, "dispatched", telemetry),
    )


def checked_key(step: Step, answer: object) -> SortKey:
    """The sort key of an ordering policy; after a fault the last of all keys."""
    if isinstance(answer, tuple) and all(isinstance(part, Real) and part == part for part in answer):  # not NaN
        return answer
    if not isinstance(answer, Fault):
        step.fault(f"answered {answer!r:.80}, not a tuple of numbers")
    return _LAST


def checked_ceilings(step: Step, count: int, answer: object) -> Sequence[float]:
    """One ceiling for each priority, in descending order; 1 for each after a fault."""
    if isinstance(answer, Fault):
        return [1.0] * count
    if not isinstance(answer, list | tuple) or len(answer) != count or not all(isinstance(ceiling, Real) for ceiling in answer):
        step.fault(f"answered {answer!r:.80}, not {count} numbers, one for each priority")
    elif not all(after <= before for before, after in pairwise((inf, *answer))):
        step.fault(f"answered {answer!r:.80}; each ceiling must be a number not greater than the one before it")
    else:
        return answer
    return [1.0] * count


def checked_saturation(step: Step, answer: object) -> float:
    """The saturation, 0 or more. After a fault 0, as without a detector, or 1 if `onFault` refuses requests."""
    if isinstance(answer, Real) and answer == answer:  # not NaN
        return max(0.0, float(answer))
    fault = answer if isinstance(answer, Fault) else step.fault(f"answered {answer!r:.80}, not a number")
    return 1.0 if fault.refuses else 0.0


def checked_evictable(step: Step, answer: object) -> bool:
    """The answer of an eviction filter; False after a fault."""
    if not isinstance(answer, bool | Fault):
        step.fault(f"answered {answer!r:.80}, not a boolean")
    return answer is True
