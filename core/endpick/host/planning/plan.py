"""The plan: a resolved and checked configuration, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from endpick.api.data import Subscriptions
from endpick.api.discovery import ModelRewrite
from endpick.api.plugin import Parameters
from endpick.config import LoadedConfig
from endpick.diagnostics import Code, Diagnostic, DocumentPath
from endpick.host.hooks import HookRegistry
from endpick.host.kinds import Kind, OnFault
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import ParameterSource
from endpick.host.planning.subscriptions import SubscriptionGraph

DEFAULT_TTL_SECONDS = 60.0
DEFAULT_BAND_BYTES = 1_000_000_000
DEFAULT_BAND_REQUESTS = 5000


@dataclass(frozen=True, slots=True)
class BandSettings:
    """Limits and policies of one priority.

    Attributes:
        max_bytes: Bytes that may wait, 1 or more.
        max_requests: Requests that may wait, 1 or more.
        fairness: Fairness policy.
        ordering: Ordering policy.
    """

    max_bytes: int
    max_requests: int
    fairness: str
    ordering: str


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """The eviction filter and the eviction ordering policy."""

    filter: str
    ordering: str


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    """The `flowControl` section without the saturation detector, which is used without queues too.

    Attributes:
        max_bytes: Bytes that may wait in all bands; 0 means no limit.
        max_requests: Requests that may wait in all bands; 0 means no limit.
        ttl_seconds: Maximum wait of a request while the pool has endpoints; 0 means no limit.
        no_endpoint_ttl_seconds: Maximum wait while the pool has no endpoints; 0 means no limit.
        bands: The listed priorities.
        template: For unlisted priorities of 0 and above.
        negative_template: For unlisted priorities below 0.
        usage_limit: Usage limit policy.
        eviction: None if requests in flight are not evicted.
    """

    max_bytes: int
    max_requests: int
    ttl_seconds: float
    no_endpoint_ttl_seconds: float
    bands: Mapping[int, BandSettings]
    template: BandSettings
    negative_template: BandSettings
    usage_limit: str
    eviction: EvictionSettings | None = None

    def band(self, priority: int) -> BandSettings:
        """Settings for a priority."""
        listed = self.bands.get(priority)
        if listed is not None:
            return listed
        return self.negative_template if priority < 0 else self.template

    @property
    def all_bands(self) -> tuple[BandSettings, ...]:
        """Settings of the listed priorities and both templates."""
        return (*self.bands.values(), self.template, self.negative_template)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A part of the configuration that the host filled in, with the reason."""

    code: Code  # N0501 for a missing part, N0601 for a default producer
    subject: str  # instance or profile
    message: str


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """One instance to build.

    Attributes:
        name: Unique in the plan.
        parameters: Validated.
        place: Its entry in the document.
        path: Of its entry under `plugins`; None for an instance that the host added.
        reason: Why the host added it.
        refers_to: Instances that its parameters name.
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
        """The current name of the plugin type."""
        return self.loaded.type

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Its kinds."""
        return self.loaded.kinds


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer in a scheduling profile. `weight_given` is False for the default weight, 1."""

    instance: str
    weight: float
    weight_given: bool = True


@dataclass(frozen=True, slots=True)
class PlannedProfile:
    """A scheduling profile; filters and scorers are instance names in execution order.

    `reads` are the data keys that a run needs, directly or through producers; sorted.
    """

    name: str
    filters: tuple[str, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: str
    reads: tuple[str, ...] = ()

    @property
    def instances(self) -> tuple[str, ...]:
        """All instances of the profile, each once."""
        return tuple(dict.fromkeys((*self.filters, *(scorer.instance for scorer in self.scorers), self.picker)))


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A data source and its collectors. `active` collectors write data that an instance reads."""

    instance: str
    collectors: tuple[str, ...]
    active: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """A resolved configuration with all defaults; every name in it is the name of one of `instances`.

    Attributes:
        config: The document.
        instances: In document order, then added ones; each comes after the instances its parameters name.
        profiles: In document order.
        handler: The profile handler.
        parsers: In the order in which they are tried.
        detector: None if no saturation detector is installed.
        sources: In document order.
        discovery: None if the configuration names none.
        on_request: Instances that take part in every request, for every kind whose row has `on_request`: data producers in execution
            order, others in document order.
        graph: The data flow.
        announcements: Parts that the host filled in.
        hooks: The loaded hook objects.
        objectives: Priority of each inference objective.
        models: Model rewrite rules.
        flow_control: None if the feature gate `flowControl` is off.
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
        """Instances by name."""
        return {instance.name: instance for instance in self.instances}


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """A plan, or at least one error; warnings may come with either."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...] = ()
