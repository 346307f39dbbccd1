"""Makes a plan in steps that continue after mistakes, so that one run reports all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from endpick.api import DataCollector, DataProducer
from endpick.api.discovery import ModelRewrite, ModelTarget
from endpick.config import LoadedConfig
from endpick.config.model import EVERY_MODEL, ModelSpec
from endpick.diagnostics import Code, Diagnostic, did_you_mean, has_errors, sort_diagnostics
from endpick.host.discovery import HOST_DISTRIBUTION, Candidate, discover_hook_objects
from endpick.host.environment import Lock, LockCheck, check_lock
from endpick.host.hooks import Hooks, load_hooks
from endpick.host.kinds import KINDS, Kind
from endpick.host.loader import PluginCatalog, policy_of
from endpick.host.planning.builder import DraftInstance, PlanBuilder, define_instances, report_same_names, skip_idle
from endpick.host.planning.data import PURE_PRODUCERS, SourceBindings, plan_data, plan_sources
from endpick.host.planning.fleet import plan_fleet
from endpick.host.planning.flow_control import plan_candidate_filters, plan_detector, plan_flow_control, plan_parsers
from endpick.host.planning.plan import Plan, PlannedInstance, PlannedSource, PlanOutcome
from endpick.host.planning.pool import NO_POOL, PoolSettings, plan_discovery
from endpick.host.planning.profiles import plan_handler, plan_profiles, warn_fallbacks
from endpick.host.planning.references import in_order, plan_references
from endpick.host.planning.subscriptions import SubscriptionGraph


def warn_unused(builder: PlanBuilder) -> None:
    """Warn of unused instances, unless a mistake may hide the reference."""
    policy = builder.config.plugin_policy
    if (policy is not None and policy.on_unused == "Ignore") or builder.loaded.faulty:
        return
    unknown = [found.message for found in builder.diagnostics if found.code in (Code.E0501, Code.E0607)]
    for instance in builder.instances.values():
        if instance.spec is None or instance.loaded is None or instance.name in builder.used:
            continue
        rows = [KINDS[kind] for kind in instance.loaded.kinds]
        if not all(row.named_at for row in rows):
            continue  # takes part because it is defined, as in llm-d
        if any(did_you_mean(message.split("'")[1], [instance.name]) for message in unknown):
            continue  # a misspelt reference probably means this instance
        reasons = dict.fromkeys(f"{row.named_at} does not name it" for row in rows)
        message = f"'{instance.name}' is not used: {' and '.join(reasons)}"
        builder.report_instance(instance, Code.W0301, message, "remove it, or name it where it belongs")


def make_plan(
    loaded: LoadedConfig,
    candidates: Sequence[Candidate],
    *,
    hooks: Hooks | None = None,
    hook_objects: Sequence[Candidate] | None = None,
    lock: Lock | None = None,
    endpoints_file: Path | None = None,
    allow_experimental: bool = False,
    pool: PoolSettings = NO_POOL,
    state_url: str = "",
) -> PlanOutcome:
    """Resolve a configuration into a plan, or report every mistake in document order.

    Args:
        loaded: Its diagnostics are included in the outcome.
        candidates: From `discover`; only types that the plan needs are imported.
        hooks: The hook objects of this process; loaded if None.
        hook_objects: From `discover_hook_objects`; looked up if None.
        lock: Distributions that differ are not imported.
        endpoints_file: For `file-discovery`, if the document names no discovery.
        allow_experimental: Do not warn of experimental types.
        pool: Pool flags, if the document names no discovery.
        state_url: Where the state of pickers is, if the document names no store.
    """
    if loaded.config is None:
        return PlanOutcome(None, loaded.diagnostics)
    policy = policy_of(loaded.config)
    hook_objects = discover_hook_objects() if hook_objects is None else hook_objects
    check = LockCheck() if lock is None else check_lock(lock, (*candidates, *hook_objects))
    hooks, faults = load_hooks(hook_objects, policy, check) if hooks is None else (hooks, ())
    catalog = PluginCatalog(candidates, policy, check)
    builder = PlanBuilder(loaded, loaded.config, catalog, diagnostics=[*loaded.diagnostics, *faults], endpoints_file=endpoints_file)
    plan = _plan(builder, hooks, pool, state_url)
    if not has_errors(builder.diagnostics):
        builder.diagnostics.extend(hooks.validate(loaded.source))
    kept = _experimental_at_once(builder.diagnostics, allow_experimental)
    diagnostics = sort_diagnostics(loaded.without_echoes(kept))
    return PlanOutcome(None if has_errors(diagnostics) else plan, diagnostics)


def _experimental_at_once(diagnostics: Sequence[Diagnostic], are_allowed: bool) -> Sequence[Diagnostic]:
    experimental = [found for found in diagnostics if found.code is Code.W0309]
    if are_allowed:
        return [found for found in diagnostics if found not in experimental]
    own = [found for found in experimental if found.plugin is not None and found.plugin.distribution == HOST_DISTRIBUTION]
    if not own:
        return diagnostics
    types = sorted({found.plugin.type for found in own if found.plugin is not None})
    merged = replace(
        own[0],
        message=f"experimental plugins are used: {', '.join(types)}",
        help="expect them to change; --allow-experimental-plugins says that you know",
    )
    return [*(found for found in diagnostics if found not in own), merged]


def check_statically(loaded: LoadedConfig, candidates: Sequence[Candidate]) -> tuple[Diagnostic, ...]:
    """Return the mistakes that are found without importing third-party plugins."""
    if loaded.config is None:
        return loaded.diagnostics
    catalog = PluginCatalog(candidates, policy_of(loaded.config), imports_third_parties=False)
    builder = PlanBuilder(loaded, loaded.config, catalog, diagnostics=[*loaded.diagnostics])
    _plan(builder, Hooks())
    return sort_diagnostics(loaded.without_echoes(builder.diagnostics))


def _plan(builder: PlanBuilder, hooks: Hooks, pool: PoolSettings = NO_POOL, state_url: str = "") -> Plan | None:
    skip_idle(builder)
    define_instances(builder)
    profiles = plan_profiles(builder)
    warn_fallbacks(profiles, builder)
    handler = plan_handler(builder)
    parsers = plan_parsers(builder)
    detector = plan_detector(builder)
    flow_control = plan_flow_control(builder)
    plan_candidate_filters(builder)
    bindings = plan_sources(builder)
    discovery = plan_discovery(builder, pool)
    fleet = plan_fleet(builder, state_url, pool)
    graph = plan_data(builder, bindings)
    references = plan_references(builder)
    report_same_names(builder.config.objectives, "objectives", Code.E0512, builder)
    report_same_names(builder.config.models, "models", Code.E0513, builder)
    warn_unused(builder)
    if has_errors(builder.diagnostics):
        return None
    names = in_order(tuple(builder.instances), references)
    instances = tuple(filter(None, (_planned(builder.instances[name], references.get(name, ())) for name in names)))
    if handler is None or len(instances) < len(builder.instances):
        return None
    return Plan(
        config=builder.loaded,
        instances=instances,
        profiles=tuple(replace(profile, reads=graph.keys_for(profile.instances)) for profile in profiles),
        handler=handler,
        parsers=parsers,
        detector=detector,
        sources=_sources(bindings, builder, graph),
        discovery=discovery,
        fleet=fleet,
        on_request=_on_request(builder, graph),
        graph=graph,
        announcements=tuple(builder.announcements),
        hooks=hooks,
        objectives={objective.name: objective.priority for objective in builder.config.objectives},
        models=tuple(_rewrite_of(model) for model in builder.config.models),
        flow_control=flow_control,
        propagates_priority=builder.config.request_handler is not None and builder.config.request_handler.propagate_priority,
    )


def _rewrite_of(model: ModelSpec) -> ModelRewrite:
    targets = tuple(ModelTarget(target.model, target.weight) for target in model.targets)
    if model.name == EVERY_MODEL:
        return ModelRewrite((), targets)
    return ModelRewrite((model.name,), targets or (ModelTarget(model.name, 1),))


def _planned(instance: DraftInstance, refers_to: tuple[str, ...]) -> PlannedInstance | None:
    if instance.loaded is None or instance.parameters is None or instance.subscriptions is None or instance.on_fault is None:
        return None
    return PlannedInstance(
        instance.name,
        instance.loaded,
        instance.parameters,
        instance.subscriptions,
        instance.on_fault,
        instance.place,
        instance.path,
        instance.reason,
        refers_to,
    )


def _on_request(builder: PlanBuilder, graph: SubscriptionGraph) -> dict[Kind, tuple[str, ...]]:
    orders: dict[Kind, Iterable[str]] = {DataProducer: dict.fromkeys((*graph.order, *builder.instances))}
    return {
        kind: tuple(name for name in orders.get(kind, builder.instances) if builder.instances[name].is_a(kind))
        for kind, row in KINDS.items()
        if row.on_request
    }


def _sources(bindings: SourceBindings, builder: PlanBuilder, graph: SubscriptionGraph) -> tuple[PlannedSource, ...]:
    """Plan the sources. A collector is active if it decides, writes no data, or its data is read."""
    readers = [instance.name for instance in builder.instances.values() if not instance.is_a(DataCollector) or _decides(instance)]
    needed = {*graph.producers_for(readers), *readers}
    return tuple(
        PlannedSource(
            source, tuple(collectors), tuple(name for name in collectors if name in needed or not _produces(builder.instances[name]))
        )
        for source, collectors in bindings.items()
    )


def _decides(instance: DraftInstance) -> bool:
    return instance.loaded is not None and not PURE_PRODUCERS.issuperset(instance.loaded.kinds)


def _produces(instance: DraftInstance) -> bool:
    return instance.subscriptions is not None and bool(instance.subscriptions.produces)
