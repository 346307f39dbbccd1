"""The plan: everything a configuration means, proven to fit together, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from endpick.api.data import Subscriptions
from endpick.api.datalayer import ModelRewrite
from endpick.api.plugin import Parameters
from endpick.config import LoadedConfig
from endpick.diagnostics import Code, Diagnostic, DocumentPath, has_errors
from endpick.host.hooks import HookRegistry
from endpick.host.kinds import Kind, OnFault
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import ParameterSource
from endpick.host.planning.flow_control_settings import FlowControlSettings
from endpick.host.planning.subscriptions import SubscriptionGraph


@dataclass(frozen=True, slots=True)
class Announcement:
    """Something the host filled in, and why: the operator did not write it and should know."""

    code: Code
    """N0501 for a missing part, N0601 for a default producer."""

    subject: str
    """The instance or profile it is about."""

    message: str


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """One instance to build.

    Attributes:
        name: Unique in the plan.
        loaded: The class and where it comes from.
        parameters: Validated.
        subscriptions: The data keys of an instance with these parameters.
        on_fault: What the host does when the instance fails.
        place: Where the document asks for it, for diagnostics.
        path: Of its entry under `plugins`; None for an instance that the host added.
        reason: Why the host added it; empty for a configured one.
        refers_to: The instances that its parameters name.
    """

    name: str
    loaded: LoadedPlugin
    parameters: Parameters
    subscriptions: Subscriptions
    on_fault: OnFault
    place: ParameterSource
    path: DocumentPath | None = None
    reason: str = ""
    refers_to: tuple[str, ...] = ()

    @property
    def type(self) -> str:
        """The plugin type, by its own name for itself."""
        return self.loaded.type

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """What it can do."""
        return self.loaded.kinds


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer's place in a scheduling profile. `weight_given` is False when the weight is the default, 1."""

    instance: str
    weight: float
    weight_given: bool = True


@dataclass(frozen=True, slots=True)
class PlannedProfile:
    """A scheduling profile: instance names, filters and scorers in the order they run.

    `reads` are the data keys that a run of this profile needs, directly or through producers; sorted.
    """

    name: str
    filters: tuple[str, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: str
    reads: tuple[str, ...] = ()

    @property
    def instances(self) -> tuple[str, ...]:
        """The instances that take part in a run, each once."""
        return tuple(dict.fromkeys((*self.filters, *(scorer.instance for scorer in self.scorers), self.picker)))


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A data source and the collectors that read it. `active` are those that write data which an instance reads."""

    instance: str
    collectors: tuple[str, ...]
    active: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A configuration resolved, with all defaults filled in; every name in it is the name of one of `instances`.

    Attributes:
        config: The document it was made from.
        instances: Configured ones in the order of the document, then those the host added; but each after those its parameters name.
        profiles: In the order of the document.
        handler: Which profiles run, and what their results mean.
        parsers: In the order in which they are asked.
        detector: None when no saturation detector is installed.
        sources: In the order of the document.
        discovery: None when the configuration names none.
        on_request: Who takes part in every request, by kind: data producers in the order in which they run, all others in the order of
            the document. Every kind whose row says `on_request` is there.
        graph: Who reads what from whom.
        announcements: What the host filled in.
        hooks: The hook objects that the configuration names, loaded.
        objectives: Priority of each inference objective, by name.
        models: By which rules requests are for other models.
        flow_control: How requests wait; None while the feature gate `flowControl` is off.
    """

    config: LoadedConfig
    instances: tuple[PlannedInstance, ...]
    profiles: tuple[PlannedProfile, ...]
    handler: str
    parsers: tuple[str, ...]
    detector: str | None
    sources: tuple[PlannedSource, ...]
    discovery: str | None
    on_request: Mapping[Kind, tuple[str, ...]]
    graph: SubscriptionGraph
    announcements: tuple[Announcement, ...] = ()
    hooks: HookRegistry = field(default_factory=HookRegistry)
    objectives: Mapping[str, int] = field(default_factory=dict)
    models: tuple[ModelRewrite, ...] = ()
    flow_control: FlowControlSettings | None = None

    @cached_property
    def by_name(self) -> dict[str, PlannedInstance]:
        """The instances by their names."""
        return {instance.name: instance for instance in self.instances}


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """What came of planning: a plan exactly when there is no error; warnings may come with either."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...] = ()

    def __post_init__(self) -> None:
        if (self.plan is None) != has_errors(self.diagnostics):
            raise ValueError("a plan comes exactly when there is no error")
