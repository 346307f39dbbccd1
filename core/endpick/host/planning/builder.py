"""The draft of a plan: instances, diagnostics and announcements gathered so far, and lookup of instances by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from endpick.api.data import Subscriptions
from endpick.api.plugin import Parameters
from endpick.config import EndpointPickerConfig, LoadedConfig, PluginRef, PluginSpec, SchedulingProfile, SourceMap
from endpick.config.model import ModelSpec, ObjectiveSpec
from endpick.diagnostics import Code, Diagnostic, DocumentPath, Label, PluginReference, did_you_mean
from endpick.host.kinds import KINDS, Kind, OnFault, titles
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import ParameterSource
from endpick.host.planning.plan import Announcement


@dataclass(frozen=True, slots=True)
class DraftInstance:
    """An instance, complete as far as its mistakes allow.

    Attributes:
        place: Its entry in the document.
        loaded: None if the type could not be loaded; its kinds are unknown then and not checked.
        spec: Its entry under `plugins`; None for an instance that the host added.
        reason: Why the host added it.
    """

    name: str
    place: ParameterSource
    loaded: LoadedPlugin | None = None
    parameters: Parameters | None = None
    subscriptions: Subscriptions | None = None
    on_fault: OnFault | None = None
    spec: PluginSpec | None = None
    reason: str = ""

    @property
    def type(self) -> str:
        """The current name of the plugin type, or the name in the document if it could not be loaded."""
        return self.place.reference.type if self.loaded is None else self.loaded.type

    def is_a(self, kind: Kind) -> bool:
        """True if it is known to be of this kind."""
        return self.loaded is not None and kind in self.loaded.kinds

    def may_be_a(self, kind: Kind) -> bool:
        """True if it is of this kind, or if its kinds are unknown."""
        return self.loaded is None or kind in self.loaded.kinds

    @property
    def path(self) -> DocumentPath | None:
        """Of its entry under `plugins`."""
        return None if self.spec is None else self.spec.path

    @property
    def plugin(self) -> PluginReference:
        """Its name in diagnostics."""
        return self.place.reference.plugin(self.loaded.candidate if self.loaded else None)


@dataclass
class PlanBuilder:
    """Everything gathered while a plan is made.

    Attributes:
        used: Instances that some part of the document names.
        endpoints_file: Read by the default discovery.
    """

    loaded: LoadedConfig
    config: EndpointPickerConfig
    instances: dict[str, DraftInstance] = field(default_factory=dict)
    diagnostics: list[Diagnostic] = field(default_factory=list)
    announcements: list[Announcement] = field(default_factory=list)
    used: set[str] = field(default_factory=set)
    endpoints_file: Path | None = None

    @property
    def source(self) -> SourceMap:
        """Positions in the document."""
        return self.loaded.source

    @property
    def is_complete(self) -> bool:
        """True if every instance is known; only then can something be reported as missing."""
        return all(instance.loaded is not None for instance in self.instances.values()) and not self.loaded.is_damaged(("plugins",))

    def of_kind(self, kind: Kind) -> tuple[DraftInstance, ...]:
        """Instances of a kind in document order, added ones last."""
        return tuple(instance for instance in self.instances.values() if instance.is_a(kind))

    def configured(self, kind: Kind) -> tuple[DraftInstance, ...]:
        """Instances of a kind that the document defines."""
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
        annotation: str | None = None,
        plugin: PluginReference | None = None,
    ) -> None:
        """Add a diagnostic at a value of the document, or at its key."""
        span = self.source.key_span(path) if at_key else self.source.value_span(path)
        merged = self.source.labels_for(path)
        self.diagnostics.append(Diagnostic(code, message, span, (*merged, *labels), help, notes, plugin, path, annotation))

    def announce(self, code: Code, subject: str, message: str) -> None:
        """Add an announcement that something was filled in."""
        self.announcements.append(Announcement(code, subject, message))

    def label(self, path: DocumentPath, message: str) -> Label:
        """A secondary place for a diagnostic."""
        return Label(self.source.value_span(path), message)


def report_same_names(
    parts: Sequence[SchedulingProfile | ObjectiveSpec | ModelSpec], plural: str, code: Code, builder: PlanBuilder
) -> None:
    """Report every part whose name an earlier part has; `plural` is for the message."""
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
    """The instance with this name. An unknown name is reported, unless a faulty entry may have defined it."""
    instance = builder.instances.get(name)
    if instance is None:
        if not builder.loaded.may_define(name):
            report_unknown(name, path, builder, code)
        return None
    builder.used.add(name)
    return instance


def look_up_kind(reference: PluginRef, kind: Kind, builder: PlanBuilder) -> DraftInstance | None:
    """Look up a reference at a place that takes one kind only; an instance of unknown kind passes."""
    return look_up_kind_at(reference.plugin_ref, (*reference.path, "pluginRef"), kind, builder)


def look_up_kind_at(name: str, path: DocumentPath, kind: Kind, builder: PlanBuilder) -> DraftInstance | None:
    """As `look_up_kind`, for a name at `path`."""
    instance = look_up(name, path, builder)
    if instance is not None and not instance.may_be_a(kind):
        report_wrong_kind(instance, kind, path, builder)
        return None
    return instance


def report_unknown(name: str, path: DocumentPath, builder: PlanBuilder, code: Code = Code.E0501) -> None:
    """Report a name that no instance has."""
    defined = list(builder.instances)
    listed = f"defined are {', '.join(defined)}" if defined else "no instance is defined under `plugins:`"
    builder.report(
        code,
        f"'{name}' is not an instance defined under plugins",
        path,
        help=did_you_mean(name, defined) or f"add it under `plugins:`; {listed}",
        notes=(listed,) if did_you_mean(name, defined) else (),
    )


def report_wrong_kind(instance: DraftInstance, kind: Kind, path: DocumentPath, builder: PlanBuilder) -> None:
    """Report an instance of the wrong kind."""
    assert instance.loaded is not None
    fitting = [other.name for other in builder.of_kind(kind)]
    builder.report(
        Code.E0503,
        f"'{instance.name}' is {titles(instance.loaded.kinds)}; {KINDS[kind].title} is needed here",
        path,
        help=f"of that kind are {', '.join(fitting)}" if fitting else f"define {KINDS[kind].title} under `plugins:`",
        notes=tuple(f"{KINDS[own].title} is named at `{KINDS[own].named_at}`" for own in instance.loaded.kinds if KINDS[own].named_at),
        plugin=instance.plugin,
    )
