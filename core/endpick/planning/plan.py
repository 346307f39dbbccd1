"""The plan: everything a configuration means, proven to fit together, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from endpick.api.data import Subscriptions
from endpick.api.plugin import Kind, Parameters
from endpick.config import LoadedConfig
from endpick.datalayer.subscriptions import SubscriptionGraph
from endpick.diagnostics import Code, Diagnostic, DocumentPath, has_errors
from endpick.plugins.hooks import HookRegistry
from endpick.plugins.instance import OnFault
from endpick.plugins.loader import LoadedPlugin
from endpick.plugins.parameters import Place


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
    """

    name: str
    loaded: LoadedPlugin
    parameters: Parameters
    subscriptions: Subscriptions
    on_fault: OnFault
    place: Place
    path: DocumentPath | None = None
    reason: str = ""

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
        """Everybody who takes part in a run, each once."""
        return tuple(dict.fromkeys((*self.filters, *(scorer.instance for scorer in self.scorers), self.picker)))


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A data source and the collectors that read it. `active` are those of which somebody reads what they write."""

    instance: str
    collectors: tuple[str, ...]
    active: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A configuration resolved, with all defaults filled in; every name in it is the name of one of `instances`.

    Attributes:
        config: The document it was made from.
        instances: Configured ones in the order of the document, then those the host added.
        profiles: In the order of the document.
        handler: Which profiles run, and what their results mean.
        parsers: In the order in which they are asked.
        detector: None when no saturation detector is installed.
        sources: In the order of the document.
        discovery: None when the configuration names none.
        producers: In the order in which they run for each request.
        screeners: This and the following in the order of the document.
        graph: Who reads what from whom.
        announcements: What the host filled in.
        hooks: The hook objects that the configuration names, loaded.
    """

    config: LoadedConfig
    instances: tuple[PlannedInstance, ...]
    profiles: tuple[PlannedProfile, ...]
    handler: str
    parsers: tuple[str, ...]
    detector: str | None
    sources: tuple[PlannedSource, ...]
    discovery: str | None
    producers: tuple[str, ...]
    screeners: tuple[str, ...]
    admitters: tuple[str, ...]
    pre_request: tuple[str, ...]
    response_observers: tuple[str, ...]
    graph: SubscriptionGraph
    announcements: tuple[Announcement, ...] = ()
    hooks: HookRegistry = field(default_factory=HookRegistry)

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
