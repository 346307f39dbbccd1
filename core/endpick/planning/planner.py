"""Makes the plan: each step judges what the steps before it left standing, so that one run finds every mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from endpick.api.plugin import Kind
from endpick.config import LoadedConfig
from endpick.datalayer.subscriptions import SubscriptionGraph
from endpick.diagnostics import Diagnostic, has_errors, sort_diagnostics
from endpick.planning.data import plan_data
from endpick.planning.definitions import define_instances
from endpick.planning.draft import Draft, DraftInstance
from endpick.planning.handler import plan_handler
from endpick.planning.hooks import load_named_hooks
from endpick.planning.ignored import warn_ignored
from endpick.planning.installed import Installed, policy_of
from endpick.planning.plan import Plan, PlannedInstance, PlannedSource, PlanOutcome
from endpick.planning.profiles import plan_profiles
from endpick.planning.requests import plan_detector, plan_discovery, plan_parsers, plan_screeners
from endpick.planning.sources import Feeding, plan_sources
from endpick.planning.unused import warn_unused
from endpick.plugins.discovery import Candidate
from endpick.plugins.hooks import HookRegistry
from endpick.plugins.lock import Lock


def make_plan(
    loaded: LoadedConfig,
    candidates: Sequence[Candidate],
    *,
    hook_objects: Sequence[Candidate] | None = None,
    lock: Lock | None = None,
) -> PlanOutcome:
    """Resolve a configuration into a plan, or say everything that is wrong with it, in the order of the document.

    Args:
        loaded: What `endpick.config` read; its own diagnostics come out again, among those found here.
        candidates: What is installed, from `endpick.plugins.discovery.discover`. Only types that the plan needs are imported.
        hook_objects: Installed hook objects; looked up when they are needed unless given.
        lock: What the operator pinned; a type that differs from it is an error and is not imported.
    """
    if loaded.config is None:
        return PlanOutcome(None, loaded.diagnostics)
    policy = policy_of(loaded.config)
    hooks, faults = load_named_hooks(loaded.config, loaded.source, policy, hook_objects, lock)
    offered, failures = hooks.offered()
    draft = Draft(loaded, loaded.config, diagnostics=[*loaded.diagnostics, *faults, *failures])
    plan = _plan(draft, Installed((*candidates, *offered), policy, lock), hooks)
    for instance in draft.instances.values():
        if instance.loaded is not None:
            hooks.plugin_loaded(instance.loaded)
    if not has_errors(draft.diagnostics):
        draft.diagnostics.extend(hooks.validate(loaded.source))
    diagnostics = sort_diagnostics(loaded.without_echoes(draft.diagnostics))
    return PlanOutcome(None if has_errors(diagnostics) else plan, diagnostics)


def check_statically(loaded: LoadedConfig, candidates: Sequence[Candidate]) -> tuple[Diagnostic, ...]:
    """Every mistake that can be found without running third-party code: what their plugins are and take stays unjudged."""
    if loaded.config is None:
        return loaded.diagnostics
    draft = Draft(loaded, loaded.config, diagnostics=[*loaded.diagnostics])
    _plan(draft, Installed(candidates, policy_of(loaded.config), imports_third_parties=False), HookRegistry())
    return sort_diagnostics(loaded.without_echoes(draft.diagnostics))


def _plan(draft: Draft, installed: Installed, hooks: HookRegistry) -> Plan | None:
    """Fill the draft, step by step; the plan is there when every instance is known, and good when the draft has no errors."""
    define_instances(draft, installed)
    profiles = plan_profiles(draft, installed)
    handler = plan_handler(draft, installed)
    parsers = plan_parsers(draft, installed)
    detector = plan_detector(draft, installed)
    plan_screeners(draft, installed)
    feeding = plan_sources(draft, installed)
    discovery = plan_discovery(draft)
    graph = plan_data(draft, feeding, installed)
    warn_ignored(draft)
    warn_unused(draft)
    instances = tuple(filter(None, map(_planned, draft.instances.values())))
    if handler is None or len(instances) < len(draft.instances):
        return None
    return Plan(
        config=draft.loaded,
        instances=instances,
        profiles=tuple(replace(profile, reads=graph.keys_for(profile.instances)) for profile in profiles),
        handler=handler,
        parsers=parsers,
        detector=detector,
        sources=_sources(feeding, draft, graph),
        discovery=discovery,
        producers=_producers(draft, graph),
        screeners=_names(draft, Kind.SCREENER),
        admitters=_names(draft, Kind.ADMITTER),
        pre_request=_names(draft, Kind.PRE_REQUEST),
        response_observers=_names(draft, Kind.RESPONSE_OBSERVER),
        graph=graph,
        announcements=tuple(draft.announcements),
        hooks=hooks,
    )


def _planned(instance: DraftInstance) -> PlannedInstance | None:
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
    )


def _producers(draft: Draft, graph: SubscriptionGraph) -> tuple[str, ...]:
    """In the order of the graph; those that declare no keys come last, in the order of the document."""
    ordered = dict.fromkeys((*graph.order, *draft.instances))
    return tuple(name for name in ordered if draft.instances[name].is_a(Kind.DATA_PRODUCER))


def _sources(feeding: Feeding, draft: Draft, graph: SubscriptionGraph) -> tuple[PlannedSource, ...]:
    """Collectors that write what somebody reads are active, and so are those that write nothing: they act by themselves."""
    readers = [instance.name for instance in draft.instances.values() if not instance.is_a(Kind.DATA_COLLECTOR)]
    needed = set(graph.producers_for(readers))
    return tuple(
        PlannedSource(
            source,
            tuple(collectors),
            tuple(name for name in collectors if name in needed or not _produces(draft.instances[name])),
        )
        for source, collectors in feeding.items()
    )


def _produces(instance: DraftInstance) -> bool:
    return instance.subscriptions is not None and bool(instance.subscriptions.produces)


def _names(draft: Draft, kind: Kind) -> tuple[str, ...]:
    return tuple(instance.name for instance in draft.of_kind(kind))
