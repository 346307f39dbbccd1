"""The policies of flow control, bound once: every call of one is timed, counted and guarded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from endpick.api.flow_control import EvictionFilter, EvictionOrderingPolicy, FairnessPolicy, OrderingPolicy, UsageLimitPolicy
from endpick.host.boundary import Step, bind, bind_wanted
from endpick.host.instance import Instance
from endpick.host.planning.flow_control_settings import FlowControlSettings
from endpick.host.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class BoundFairness:
    """A fairness policy: whom to ask, and what it wants to be told; None for what it does not listen to."""

    choose: Step
    flow_changed: Step | None
    dispatched: Step | None


@dataclass(frozen=True, slots=True)
class BoundEviction:
    """Which requests in flight may be evicted, and which of them first."""

    is_evictable: Step
    sort_key: Step


@dataclass(frozen=True, slots=True)
class BoundFlowControl:
    """What the queues call.

    Attributes:
        settings: Limits and times, and which policy each priority has, by name.
        fairness: Every fairness policy that `settings` names.
        ordering: `sort_key` of every ordering policy that `settings` names.
        ceilings: Of the usage limit policy.
        eviction: None while requests in flight are left alone.
    """

    settings: FlowControlSettings
    fairness: Mapping[str, BoundFairness]
    ordering: Mapping[str, Step]
    ceilings: Step
    eviction: BoundEviction | None


def bind_flow_control(settings: FlowControlSettings, instances: Mapping[str, Instance], telemetry: Telemetry) -> BoundFlowControl:
    """Bind what the settings name.

    Raises:
        TypeError: an instance is not of the kind its place needs: a mistake in the plan.
    """
    fairness = dict.fromkeys(band.fairness for band in settings.all_bands)
    ordering = dict.fromkeys(band.ordering for band in settings.all_bands)
    return BoundFlowControl(
        settings,
        {name: _bind_fairness(instances[name], telemetry) for name in fairness},
        {name: bind(instances[name], OrderingPolicy, "sort_key", telemetry) for name in ordering},
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
