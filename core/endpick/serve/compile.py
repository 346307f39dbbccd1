"""Builds the instances of a plan and binds them to the request path and the data layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from endpick.api.data import AnyKey
from endpick.api.discovery import EndpointDiscovery
from endpick.api.plugin import Parameters, Plugin, PluginContext
from endpick.data.collection import Collection
from endpick.data.dispatch import SourceBinding
from endpick.diagnostics import Diagnostic, sort_diagnostics
from endpick.flow_control.policies import bind_flow_control
from endpick.host.breaker import DEFAULT_SETTINGS, BreakerSettings
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.instance import Instance, build, instance_logger, scope_of
from endpick.host.planning.plan import Plan, PlannedInstance
from endpick.host.proxies import DeciderProxy, proxy_for
from endpick.host.telemetry import Telemetry
from endpick.requests.pipeline import Pipeline, compile_pipeline
from endpick.scheduling.profile import Profile, compile_profile
from endpick.scheduling.scheduler import compile_scheduler


@dataclass(frozen=True, slots=True)
class Built:
    """The instances of a plan by name, in plan order."""

    instances: Mapping[str, Instance]


def build_plan(
    plan: Plan,
    context_for: Callable[[PlannedInstance], PluginContext],
    carried: Mapping[str, Instance] | None = None,
    breaker: BreakerSettings = DEFAULT_SETTINGS,
) -> Built | tuple[Diagnostic, ...]:
    """Construct every instance, or return a diagnostic for each that refuses.

    Args:
        plan: The plan to build.
        context_for: Clock, randomness, logger and registry of an instance.
        carried: Instances of an earlier plan to reuse, by name; from `carry_over`.
        breaker: When a failing instance is skipped.
    """
    carried = carried or {}
    built: dict[str, Instance] = {}
    faults: list[Diagnostic] = []
    for planned in plan.instances:
        known = carried.get(planned.name)
        if known is not None:
            built[planned.name] = known
            continue
        if not built.keys() >= set(planned.refers_to):
            continue  # an instance it refers to could not be built, which is reported already
        result = build(
            planned.loaded,
            planned.name,
            planned.parameters,
            planned.on_fault,
            replace(context_for(planned), instances=_proxies(planned, built)),
            subscriptions=planned.subscriptions,
            place=planned.place,
            breaker=breaker,
        )
        if isinstance(result, Diagnostic):
            faults.append(result)
        else:
            built[planned.name] = replace(result, proxy=proxy_for(result))
    return sort_diagnostics(faults) if faults else Built(built)


def _proxies(planned: PlannedInstance, built: Mapping[str, Instance]) -> Mapping[str, Plugin[Parameters]]:
    found = {name: built[name].proxy for name in planned.refers_to}
    return {name: proxy for name, proxy in found.items() if proxy is not None}


def carry_over(old: Plan, built: Built, new: Plan) -> dict[str, Instance]:
    """The instances a new plan reuses with everything they have learnt: same name, plugin, parameters and subscriptions.

    An instance that refers to another one is reused only together with it. `onFault` and the age limits of data may change.
    """
    carried: dict[str, Instance] = {}
    for planned in new.instances:
        before = old.by_name.get(planned.name)
        if before is None or before.loaded.plugin is not planned.loaded.plugin or not carried.keys() >= set(planned.refers_to):
            continue
        if _is_unchanged(before, planned):
            scope = scope_of(planned.name, planned.subscriptions, planned.loaded.type)
            carried[planned.name] = replace(
                built.instances[planned.name], on_fault=planned.on_fault, subscriptions=planned.subscriptions, scope=scope
            )
    return carried


def _is_unchanged(before: PlannedInstance, planned: PlannedInstance) -> bool:
    try:  # parameters may contain objects of the plugin, which compare themselves
        return bool(before.parameters == planned.parameters and before.subscriptions == planned.subscriptions)
    except PLUGIN_ERRORS as error:
        logger = instance_logger(planned.loaded, planned.name)
        logger.warning("the instance restarts because its parameters cannot be compared with the old ones: %s", describe_error(error))
        return False


def compile_plan(plan: Plan, built: Built, telemetry: Telemetry) -> Pipeline:
    """Bind everything a request needs."""
    instances = built.instances
    for instance in instances.values():
        if isinstance(instance.proxy, DeciderProxy):
            instance.proxy.connect(instance, telemetry)
    return compile_pipeline(
        scheduler=compile_scheduler(instances[plan.handler], compile_profiles(plan, built, telemetry), telemetry),
        parsers=[instances[name] for name in plan.parsers],
        detector=None if plan.detector is None else instances[plan.detector],
        on_request={kind: [instances[name] for name in names] for kind, names in plan.on_request.items()},
        objectives=plan.objectives,
        flow_control=None if plan.flow_control is None else bind_flow_control(plan.flow_control, instances, telemetry),
        telemetry=telemetry,
    )


def compile_profiles(plan: Plan, built: Built, telemetry: Telemetry) -> dict[str, Profile]:
    """The scheduling profiles by name, in document order."""
    instances = built.instances
    return {
        profile.name: compile_profile(
            profile.name,
            [instances[name] for name in profile.filters],
            [(instances[scorer.instance], scorer.weight) for scorer in profile.scorers],
            instances[profile.picker],
            telemetry,
        )
        for profile in plan.profiles
    }


def compile_collection(plan: Plan, built: Built) -> Collection:
    """Each data source with its active collectors; sources without any are left out."""
    instances = built.instances
    return Collection(
        tuple(
            SourceBinding(instances[source.instance], tuple(instances[name] for name in source.active), _needed(plan, source.active))
            for source in plan.sources
            if source.active
        ),
        _tolerated_age(plan, built),
    )


def _needed(plan: Plan, collectors: tuple[str, ...]) -> frozenset[str]:
    """The keys these collectors write and some instance requires."""
    return frozenset(one.key.partition("@")[0] for one in plan.graph.subscriptions if one.required and one.producer in collectors)


def _tolerated_age(plan: Plan, built: Built) -> float:
    """The shortest age at which any called instance considers data stale; infinite if none does."""
    asked = set(built.instances)
    filters = {name for profile in plan.profiles for name in profile.filters}
    if plan.detector is not None and plan.detector not in filters and plan.flow_control is None and not _may_shed(plan, built):
        asked.discard(plan.detector)  # without queues, only requests with negative priority are shed
    ages = [built.instances[name].plugin.tolerated_age_seconds for name in asked]
    limits = [age for name in asked for age in plan.by_name[name].subscriptions.max_ages.values()]
    return min((*(age for age in ages if age is not None), *limits), default=math.inf)


def _may_shed(plan: Plan, built: Built) -> bool:
    """Whether a request can have a negative priority, from the plan or from discovery."""
    discovery = None if plan.discovery is None else built.instances[plan.discovery].plugin
    published = isinstance(discovery, EndpointDiscovery) and discovery.publishes_objectives
    return published or min(plan.objectives.values(), default=0) < 0


def declared_keys(plan: Plan) -> tuple[AnyKey, ...]:
    """Every data key some instance writes, sorted by name: the columns of the endpoint table."""
    keys = {key.name: key for instance in plan.instances for key in instance.subscriptions.produces}
    return tuple(keys[name] for name in sorted(keys))
