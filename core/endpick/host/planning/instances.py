"""Defines the instances of a plan: loads their types and reads their parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from endpick.api.data import Subscriptions
from endpick.api.plugin import Parameters, Plugin
from endpick.config import ENDPICK, PluginSpec
from endpick.diagnostics import Code, Diagnostic
from endpick.host.catalog import PluginCatalog
from endpick.host.instance import subscriptions_of
from endpick.host.kinds import OnFault, default_on_fault
from endpick.host.loader import LoadedPlugin, Loading, alias_clashes
from endpick.host.parameters import ParameterSource, check_parameters, deprecated_parameters, ineffective_parameters
from endpick.host.planning.builder import DraftInstance, PlanBuilder
from endpick.host.resolution import Reference

_ON_FAULT = {"FailOpen": OnFault.SKIP, "FailClose": OnFault.REFUSE}


def define_instances(builder: PlanBuilder, installed: PluginCatalog) -> None:
    """Load every type in the document and read every instance's parameters. A second entry of the same name is checked and left out."""
    for spec in builder.config.plugins:
        place = _place(spec, builder)
        loading = installed.get(place.reference)
        builder.diagnostics.extend(loading.diagnostics)
        raw = None if place.path in builder.loaded.faulty else spec.parameters or {}
        instance = _read(DraftInstance(spec.instance, place, spec=spec), loading, raw, builder)
        first = builder.instances.setdefault(instance.name, instance)
        if first is not instance:
            _same_name(spec, first, builder)
    loaded = [(instance.place.reference, instance.loaded) for instance in builder.instances.values() if instance.loaded is not None]
    builder.diagnostics.extend(alias_clashes(loaded))


def add_instance(
    builder: PlanBuilder, installed: PluginCatalog, plugin_type: str, reason: str, parameters: Mapping[str, object] = MappingProxyType({})
) -> DraftInstance:
    """Add an instance that the document does not define, named after its type."""
    name = plugin_type
    while name in builder.instances:
        name = f"{name}-default"
    place = ParameterSource(Reference(plugin_type, name, span=builder.source.key_span(())))
    loading = installed.get(place.reference)
    before = len(builder.diagnostics)
    builder.diagnostics.extend(loading.diagnostics)
    instance = _read(DraftInstance(name, place, reason=reason), loading, parameters, builder)
    builder.diagnostics[before:] = _with_reason(builder.diagnostics[before:], reason)
    builder.instances[instance.name] = instance
    builder.used.add(instance.name)
    return instance


def _place(spec: PluginSpec, builder: PlanBuilder) -> ParameterSource:
    source, path = builder.source, (*spec.path, "type")
    reference = Reference(
        type=spec.type,
        instance=spec.instance,
        distribution=spec.from_,
        span=source.value_span(path),
        distribution_span=source.value_span((*spec.path, "from")) if spec.from_ else None,
        path=path,
        labels=source.labels_for(path),
    )
    return ParameterSource(reference, (*spec.path, "parameters"), source)


def _read(instance: DraftInstance, loading: Loading, raw: Mapping[str, object] | None, builder: PlanBuilder) -> DraftInstance:
    """The instance with class, parameters and subscriptions; `raw` is None if the block could not be read."""
    loaded, place = loading.loaded, instance.place
    if loaded is None:
        return instance
    checked: Parameters | tuple[Diagnostic, ...] = ()
    if raw and loaded.plugin.ignores_parameters and builder.config.api_version != ENDPICK:
        _warn_ignored(raw, instance, loaded, builder)
        raw = {}
    if raw is not None:
        checked = check_parameters(loaded, raw, place.source, place.path, place.reference)
        builder.diagnostics.extend(deprecated_parameters(loaded, raw, place.source, place.path, place.reference))
        # llm-d ignores such parameters, so a file written for llm-d must load; a file written for endpick must not have them.
        code = Code.E0407 if builder.config.api_version == ENDPICK else Code.W0402
        builder.diagnostics.extend(ineffective_parameters(loaded, raw, place.source, place.path, place.reference, code=code))
    parameters = checked if isinstance(checked, Parameters) else None
    if not isinstance(checked, Parameters):
        # A parameter that seems to be missing may have been faulty, which is reported already.
        incomplete = instance.spec is not None and builder.loaded.is_damaged(place.path)
        builder.diagnostics.extend(one for one in checked if not (incomplete and one.code is Code.E0406))
    declared = _subscriptions_of_type(loaded) if parameters is None else subscriptions_of(loaded, parameters, place)
    if isinstance(declared, Diagnostic):
        builder.diagnostics.append(declared)
    elif declared is not None and instance.spec is not None and instance.spec.max_age:
        declared = declared.no_older_than(instance.spec.max_age)
    chosen = instance.spec and instance.spec.on_fault
    return replace(
        instance,
        loaded=loaded,
        parameters=parameters,
        subscriptions=None if isinstance(declared, Diagnostic) else declared,
        on_fault=_ON_FAULT[chosen] if chosen else default_on_fault(loaded.kinds),
    )


def _warn_ignored(raw: Mapping[str, object], instance: DraftInstance, loaded: LoadedPlugin, builder: PlanBuilder) -> None:
    for name in raw:
        builder.report(
            Code.W0402,
            f"parameter '{name}' has no effect: a {loaded.type} has no parameters",
            (*instance.place.path, name),
            at_key=True,
            help="remove it, or give it to the instance that it is for",
            plugin=instance.place.reference.plugin(loaded.candidate),
        )


def _subscriptions_of_type(loaded: LoadedPlugin) -> Subscriptions | None:
    overrides = any("subscriptions" in vars(base) for base in loaded.plugin.__mro__ if issubclass(base, Plugin) and base is not Plugin)
    return None if overrides else Subscriptions(loaded.plugin.consumes, loaded.plugin.consumes_optional, loaded.plugin.produces)


def _same_name(spec: PluginSpec, first: DraftInstance, builder: PlanBuilder) -> None:
    assert first.spec is not None
    builder.report(
        Code.E0502,
        f"two instances are called '{spec.instance}'",
        (*spec.path, "name" if spec.name else "type"),
        labels=[builder.label((*first.spec.path, "name" if first.spec.name else "type"), "first defined here")],
        help="give one of them another name with `name:`",
    )


def _with_reason(diagnostics: Iterable[Diagnostic], reason: str) -> list[Diagnostic]:
    """Add a note that explains why a plugin the operator did not name is used."""
    return [replace(diagnostic, notes=(*diagnostic.notes, f"endpick adds this plugin by itself: {reason}")) for diagnostic in diagnostics]
