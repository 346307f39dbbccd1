"""Builds the instances of a plan and compiles them; reuses unchanged ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from endpick.api import DisaggregationDecider, Endpoints, InferenceRequest, Parameters, PluginContext, SaturationDetector, ScoringState
from endpick.api.data import AnyKey
from endpick.api.discovery import EndpointDiscovery
from endpick.api.fleet import LearntState
from endpick.data.collection import Collection
from endpick.data.polling import SourceBinding
from endpick.diagnostics import Diagnostic, sort_diagnostics
from endpick.engine.changes import plan_hash
from endpick.flow_control.policies import bind_flow_control, checked_saturation
from endpick.host.boundary import Fault, Step, bind
from endpick.host.breaker import DEFAULT_SETTINGS, BreakerSettings
from endpick.host.failures import PLUGIN_ERRORS, FaultOfAnother, describe_error
from endpick.host.instance import Instance, build, instance_logger, scope_of
from endpick.host.methods import DISAGGREGATE, SATURATION
from endpick.host.planning.plan import Plan, PlannedInstance
from endpick.host.telemetry import Telemetry
from endpick.requests.pipeline import Pipeline, compile_pipeline
from endpick.scheduling.scheduler import Profile, compile_profile, compile_scheduler


def build_plan(
    plan: Plan,
    context_for: Callable[[PlannedInstance], PluginContext],
    carried: Mapping[str, Instance] | None = None,
    breaker: BreakerSettings = DEFAULT_SETTINGS,
) -> dict[str, Instance] | tuple[Diagnostic, ...]:
    """Construct the instances by name, reusing `carried` ones; returns a diagnostic for each failure."""
    carried = carried or {}
    built: dict[str, Instance] = {}
    faults: list[Diagnostic] = []
    for planned in plan.instances:
        known = carried.get(planned.name)
        if known is not None:
            built[planned.name] = known
            continue
        if not built.keys() >= set(planned.refers_to):
            continue  # the instance it refers to is reported already
        proxies = {name: proxy for name in planned.refers_to if (proxy := built[name].proxy) is not None}
        result = build(
            planned.loaded,
            planned.name,
            planned.parameters,
            planned.on_fault,
            replace(context_for(planned), instances=proxies),
            subscriptions=planned.subscriptions,
            place=planned.place,
            breaker=breaker,
        )
        if isinstance(result, Diagnostic):
            faults.append(result)
        else:
            built[planned.name] = replace(result, proxy=proxy_for(result))
    return sort_diagnostics(faults) if faults else built


def carry_over(old: Plan, instances: Mapping[str, Instance], new: Plan) -> dict[str, Instance]:
    """Return the instances to reuse: same name, plugin, parameters, subscriptions and references."""
    carried: dict[str, Instance] = {}
    for planned in new.instances:
        before = old.by_name.get(planned.name)
        if before is None or before.loaded.plugin is not planned.loaded.plugin or not carried.keys() >= set(planned.refers_to):
            continue
        begins_to_share = issubclass(planned.loaded.plugin, LearntState) and (old.fleet is None) is not (new.fleet is None)
        if not begins_to_share and _is_unchanged(before, planned):
            scope = scope_of(planned.name, planned.subscriptions, planned.loaded.type)
            carried[planned.name] = replace(
                instances[planned.name], on_fault=planned.on_fault, subscriptions=planned.subscriptions, scope=scope
            )
    return carried


def _is_unchanged(before: PlannedInstance, planned: PlannedInstance) -> bool:
    try:  # parameters may contain plugin objects with their own `__eq__`
        return bool(before.parameters == planned.parameters and before.subscriptions == planned.subscriptions)
    except PLUGIN_ERRORS as error:
        logger = instance_logger(planned.loaded, planned.name)
        logger.warning("the instance restarts because its parameters cannot be compared with the old ones: %s", describe_error(error))
        return False


def compile_plan(plan: Plan, instances: Mapping[str, Instance], telemetry: Telemetry) -> Pipeline:
    """Bind the instances of a plan to the pipeline that decides about requests."""
    for instance in instances.values():
        if isinstance(instance.proxy, _DeciderProxy | _DetectorProxy):
            instance.proxy.connect(instance, telemetry)
    return compile_pipeline(
        scheduler=compile_scheduler(instances[plan.handler], compile_profiles(plan, instances, telemetry), telemetry),
        parsers=[instances[name] for name in plan.parsers],
        detector=None if plan.detector is None else instances[plan.detector],
        on_request={kind: [instances[name] for name in names] for kind, names in plan.on_request.items()},
        objectives=plan.objectives,
        flow_control=None if plan.flow_control is None else bind_flow_control(plan.flow_control, instances, telemetry),
        propagates_priority=plan.propagates_priority,
        plan=plan_hash(plan),
        telemetry=telemetry,
    )


def compile_profiles(plan: Plan, instances: Mapping[str, Instance], telemetry: Telemetry) -> dict[str, Profile]:
    """Bind the scheduling profiles, in document order."""
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


def compile_collection(plan: Plan, instances: Mapping[str, Instance]) -> Collection:
    """Return each source with its active collectors, and the tolerated age of data."""
    return Collection(
        tuple(
            SourceBinding(instances[source.instance], tuple(instances[name] for name in source.active), _needed(plan, source.active))
            for source in plan.sources
            if source.active
        ),
        _tolerated_age(plan, instances),
    )


def _needed(plan: Plan, collectors: tuple[str, ...]) -> frozenset[str]:
    return frozenset(edge.key.partition("@")[0] for edge in plan.graph.subscriptions if edge.required and edge.producer in collectors)


def _tolerated_age(plan: Plan, instances: Mapping[str, Instance]) -> float:
    asked = set(instances)
    filters = {name for profile in plan.profiles for name in profile.filters}
    if plan.detector is not None and plan.detector not in filters and plan.flow_control is None and not _may_shed(plan, instances):
        asked.discard(plan.detector)  # called for negative priorities only
    ages = [instances[name].plugin.tolerated_age_seconds for name in asked]
    limits = [age for name in asked for age in plan.by_name[name].subscriptions.max_ages.values()]
    return min((*(age for age in ages if age is not None), *limits), default=math.inf)


def _may_shed(plan: Plan, instances: Mapping[str, Instance]) -> bool:
    discovery = None if plan.discovery is None else instances[plan.discovery].plugin
    published = isinstance(discovery, EndpointDiscovery) and discovery.publishes_objectives
    return published or min(plan.objectives.values(), default=0) < 0


def declared_keys(plan: Plan) -> tuple[AnyKey, ...]:
    """Return the columns of the endpoint table, sorted by name."""
    keys = {key.name: key for instance in plan.instances for key in instance.subscriptions.produces}
    return tuple(keys[name] for name in sorted(keys))


class _DeciderProxy(DisaggregationDecider[Parameters]):
    """Calls a decider on behalf of the plugin whose parameters name it."""

    _step: Step[bool]

    def connect(self, instance: Instance, telemetry: Telemetry) -> None:
        self._step = bind(instance, DISAGGREGATE, telemetry)

    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """Return the decider's answer; False after a fault whose `onFault` is to skip.

        Raises:
            FaultOfAnother: The decider failed and its `onFault` is to refuse the request.
        """
        access = state._access
        caller = access.scope
        answer = self._step.run(access, request, endpoint, state)
        access.scope = caller
        if not isinstance(answer, Fault):
            return bool(answer)
        if answer.refuses:
            raise FaultOfAnother(answer)
        return False


class _DetectorProxy(SaturationDetector[Parameters]):
    """Calls a saturation detector on behalf of the plugin whose parameters name it."""

    _step: Step[float]

    def connect(self, instance: Instance, telemetry: Telemetry) -> None:
        self._step = bind(instance, SATURATION, telemetry)

    def saturation(self, endpoints: Endpoints) -> float:
        """Return the detector's answer; after a fault 0, or 1 if its `onFault` refuses requests."""
        access = endpoints._access
        caller = access.scope
        answer = checked_saturation(self._step, self._step.run(access, endpoints))
        access.scope = caller
        return answer


def proxy_for(instance: Instance) -> _DeciderProxy | _DetectorProxy | None:
    """Return a proxy for an instance of a kind that is called by reference; None for other kinds."""
    for kind, proxy in ((DisaggregationDecider, _DeciderProxy), (SaturationDetector, _DetectorProxy)):
        if kind in instance.kinds:
            return proxy(instance.name, instance.plugin.parameters, PluginContext())
    return None
