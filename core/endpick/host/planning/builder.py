"""The draft of a plan."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from endpick.api.data import Subscriptions
from endpick.api.plugin import Parameters, Plugin
from endpick.config import ENDPICK, EndpointPickerConfig, LoadedConfig, PluginSpec, SchedulingProfile, SourceMap
from endpick.config.model import ModelSpec, ObjectiveSpec
from endpick.config.upstream import find_name
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, PluginReference, did_you_mean
from endpick.host.instance import subscriptions_of
from endpick.host.kinds import KINDS, Kind, OnFault, default_on_fault, titles
from endpick.host.loader import LoadedPlugin, Loading, PluginCatalog, alias_clashes
from endpick.host.parameters import ParameterSource, check_parameters, deprecated_parameters, ineffective_parameters
from endpick.host.planning.plan import Announcement
from endpick.host.resolution import Reference


@dataclass(frozen=True, slots=True)
class DraftInstance:
    """An instance of the plan under construction; mistakes leave fields None."""

    name: str
    place: ParameterSource
    loaded: LoadedPlugin | None = None  # None: not loaded, kinds unknown
    parameters: Parameters | None = None
    subscriptions: Subscriptions | None = None
    on_fault: OnFault | None = None
    spec: PluginSpec | None = None  # None: added by the host, for `reason`
    reason: str = ""

    @property
    def type(self) -> str:
        """The current name of the type, or the document's name if it is not loaded."""
        return self.place.reference.type if self.loaded is None else self.loaded.type

    def is_a(self, kind: Kind) -> bool:
        """Return True if the instance is known to be of this kind."""
        return self.loaded is not None and kind in self.loaded.kinds

    def may_be_a(self, kind: Kind) -> bool:
        """Return True if the instance is of this kind or its kinds are unknown."""
        return self.loaded is None or kind in self.loaded.kinds

    @property
    def path(self) -> DocumentPath | None:
        """The path of its entry under `plugins`; None if the host added it."""
        return None if self.spec is None else self.spec.path

    @property
    def plugin(self) -> PluginReference:
        """The reference that diagnostics show."""
        return self.place.reference.plugin(self.loaded.candidate if self.loaded else None)


@dataclass
class PlanBuilder:
    """The state of planning. `used` are the instances that the document refers to."""

    loaded: LoadedConfig
    config: EndpointPickerConfig
    catalog: PluginCatalog
    instances: dict[str, DraftInstance] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    announcements: list[Announcement] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    skipped: set[str] = field(default_factory=set)  # defined, but of a type that is neither installed nor needed
    endpoints_file: Path | None = None

    @property
    def source(self) -> SourceMap:
        """The source map of the document, for spans."""
        return self.loaded.source

    @property
    def is_complete(self) -> bool:
        """True if every instance is known; otherwise an instance must not be reported as missing."""
        return all(instance.loaded is not None for instance in self.instances.values()) and not self.loaded.is_damaged(("plugins",))

    def of_kind(self, kind: Kind) -> tuple[DraftInstance, ...]:
        """Return the instances of a kind, in document order, added ones last."""
        return tuple(instance for instance in self.instances.values() if instance.is_a(kind))

    def configured(self, kind: Kind) -> tuple[DraftInstance, ...]:
        """Return the instances of a kind that the document defines."""
        return tuple(instance for instance in self.of_kind(kind) if instance.spec is not None)

    def report(
        self,
        code: Code,
        message: str,
        path: DocumentPath,
        *,
        at_key: bool = False,
        help: str | None = None,  # noqa: A002 - the field's name
        labels: Iterable[Label] = (),
        notes: tuple[str, ...] = (),
        plugin: PluginReference | None = None,
    ) -> None:
        """Add a diagnostic at a value or its key."""
        span = self.source.key_span(path) if at_key else self.source.value_span(path)
        merged = self.source.labels_for(path)
        self.diagnostics.append(Diagnostic(code, message, span, (*merged, *labels), help, notes, plugin, path))

    def report_instance(self, instance: DraftInstance, code: Code, message: str, advice: str, labels: Iterable[Label] = ()) -> None:
        """Add a diagnostic at the `type:` of an instance that the document defines."""
        assert instance.path is not None
        self.report(code, message, (*instance.path, "type"), help=advice, labels=labels, plugin=instance.plugin)

    def announce(self, subject: str, message: str, code: Code = Code.N0501) -> None:
        """Record a default that planning has filled in."""
        self.announcements.append(Announcement(code, subject, message))

    def label(self, path: DocumentPath, message: str) -> Label:
        """Return a secondary place for a diagnostic."""
        return Label(self.source.value_span(path), message)


def report_same_names(
    parts: Sequence[SchedulingProfile | ObjectiveSpec | ModelSpec], plural: str, code: Code, builder: PlanBuilder
) -> None:
    """Report every part that has the name of an earlier part."""
    first: dict[str, SchedulingProfile | ObjectiveSpec | ModelSpec] = {}
    for part in parts:
        earlier = first.setdefault(part.name, part)
        if earlier is not part:
            builder.report(
                code,
                f"two {plural} are called '{part.name}'",
                (*part.path, "name"),
                labels=[builder.label((*earlier.path, "name"), "first defined here")],
                help="give one of them another name",
            )


def look_up(name: str, path: DocumentPath, builder: PlanBuilder, code: Code = Code.E0501) -> DraftInstance | None:
    """Return the instance with this name. Reports an unknown name, unless a faulty entry may define it."""
    instance = builder.instances.get(name)
    if instance is not None:
        builder.used.add(name)
    elif not builder.loaded.may_define(name):
        defined = [*builder.instances, *builder.skipped]
        listed = f"defined are {', '.join(defined)}" if defined else "no instance is defined under `plugins:`"
        close = did_you_mean(name, defined)
        builder.report(
            code,
            f"'{name}' is not an instance defined under plugins",
            path,
            help=close or f"add it under `plugins:`; {listed}",
            notes=(listed,) if close else (),
        )
    return instance


def look_up_kind(name: str, path: DocumentPath, kind: Kind, builder: PlanBuilder, code: Code = Code.E0501) -> DraftInstance | None:
    """Look up an instance of one kind, like `look_up`; an instance of unknown kind is accepted."""
    instance = look_up(name, path, builder, code)
    if instance is None or instance.loaded is None or kind in instance.loaded.kinds:
        return instance
    fitting = [other.name for other in builder.of_kind(kind)]
    rows = [KINDS[own] for own in instance.loaded.kinds]
    builder.report(
        Code.E0503,
        f"'{instance.name}' is {titles(instance.loaded.kinds)}; {KINDS[kind].title} is needed here",
        path,
        help=f"of that kind are {', '.join(fitting)}" if fitting else f"define {KINDS[kind].title} under `plugins:`",
        notes=tuple(f"{row.title} is named at `{row.named_at}`" for row in rows if row.named_at),
        plugin=instance.plugin,
    )
    return None


STRICT_BAND_SELECTION = "strict-band-selection-policy"  # llm-d's default, and the only selection in endpick


def skip_idle(builder: PlanBuilder) -> None:
    """Skip instances without effect: llm-d's default band selection, and exchanges with other replicas."""
    layer = builder.config.data_layer
    unshared = () if layer is None else tuple(reference[0] for reference in (layer.peers_ref, layer.syncer_ref) if reference)
    for spec in builder.config.plugins:
        is_idle = spec.type == STRICT_BAND_SELECTION or (spec.instance in unshared and find_name("type", spec.type) is not None)
        if is_idle and not builder.catalog.offers(spec.type):
            builder.skipped.add(spec.instance)


def define_instances(builder: PlanBuilder) -> None:
    """Load the types and read the parameters; an entry with a duplicate name is checked and dropped."""
    for spec in builder.config.plugins:
        if spec.instance in builder.skipped:
            continue
        place = _place(spec, builder)
        loading = builder.catalog.get(place.reference)
        builder.diagnostics.extend(loading.diagnostics)
        raw = None if place.path in builder.loaded.faulty else spec.parameters or {}
        instance = _read(DraftInstance(spec.instance, place, spec=spec), loading, raw, builder)
        first = builder.instances.setdefault(instance.name, instance)
        if first is not instance:
            _same_name(spec, first, builder)
    loaded = [(instance.place.reference, instance.loaded) for instance in builder.instances.values() if instance.loaded is not None]
    builder.diagnostics.extend(alias_clashes(loaded))


def add_instance(
    builder: PlanBuilder, plugin_type: str, reason: str, announced_as: str = "", parameters: Mapping[str, object] = MappingProxyType({})
) -> DraftInstance:
    """Add an instance named after its type, and announce it as kind `announced_as` if given."""
    name = plugin_type
    while name in builder.instances:
        name = f"{name}-default"
    if announced_as:
        builder.announce(name, f"added {announced_as} '{name}': {reason}")
    place = ParameterSource(Reference(plugin_type, name, span=builder.source.key_span(())))
    loading = builder.catalog.get(place.reference)
    before = len(builder.diagnostics)
    builder.diagnostics.extend(loading.diagnostics)
    instance = _read(DraftInstance(name, place, reason=reason), loading, parameters, builder)
    note = f"endpick adds this plugin by itself: {reason}"
    builder.diagnostics[before:] = [replace(diagnostic, notes=(*diagnostic.notes, note)) for diagnostic in builder.diagnostics[before:]]
    builder.instances[name] = instance
    builder.used.add(name)
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
    loaded, place = loading.loaded, instance.place
    if loaded is None:
        return instance
    checked: Parameters | tuple[Diagnostic, ...] = ()
    if raw and loaded.plugin.ignores_parameters and builder.config.api_version != ENDPICK:
        _warn_ignored(raw, instance, loaded, builder)
        raw = {}
    if raw is not None:
        checked = check_parameters(loaded, raw, place)
        builder.diagnostics.extend(deprecated_parameters(loaded, raw, place))
        # llm-d ignores such parameters, so files written for it must load.
        code = Code.E0407 if builder.config.api_version == ENDPICK else Code.W0402
        builder.diagnostics.extend(ineffective_parameters(loaded, raw, place, code))
    parameters = checked if isinstance(checked, Parameters) else None
    if not isinstance(checked, Parameters):
        # A missing parameter may be a faulty one, reported already.
        incomplete = instance.spec is not None and builder.loaded.is_damaged(place.path)
        builder.diagnostics.extend(diagnostic for diagnostic in checked if not (incomplete and diagnostic.code is Code.E0406))
    declared: Subscriptions | Diagnostic | None
    if parameters is not None:
        declared = subscriptions_of(loaded, parameters, place)
    else:
        declared = _subscriptions_of_type(loaded) or _subscriptions_despite(checked, loaded, raw or {}, place)
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
        on_fault={"FailOpen": OnFault.SKIP, "FailClose": OnFault.REFUSE}[chosen] if chosen else default_on_fault(loaded.kinds),
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


def _subscriptions_despite(
    mistakes: Parameters | Iterable[Diagnostic], loaded: LoadedPlugin, raw: Mapping[str, object], place: ParameterSource
) -> Subscriptions | None:
    """The data keys of an instance with faulty parameters; None if they depend on those."""
    assert not isinstance(mistakes, Parameters)
    found = [(mistake.path[len(place.path) :][:1], mistake.help or "") for mistake in mistakes]
    faulty = {str(name) for path, _ in found for name in path}
    sound = check_parameters(loaded, {name: value for name, value in raw.items() if name not in faulty}, place) if faulty else ()
    if not isinstance(sound, Parameters):
        return None
    for name, described in type(sound).model_fields.items():
        meant = any(f"'{described.alias or name}'" in advice for _, advice in found)  # by a misspelt name
        if meant or {name, described.alias} & faulty:
            sound.__dict__.pop(name, None)  # reading it fails
    declared = subscriptions_of(loaded, sound, place)
    return None if isinstance(declared, Diagnostic) else declared


def _same_name(spec: PluginSpec, first: DraftInstance, builder: PlanBuilder) -> None:
    assert first.spec is not None
    builder.report(
        Code.E0502,
        f"two instances are called '{spec.instance}'",
        (*spec.path, "name" if spec.name else "type"),
        labels=[builder.label((*first.spec.path, "name" if first.spec.name else "type"), "first defined here")],
        help="give one of them another name with `name:`",
    )
