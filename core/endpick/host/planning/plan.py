"""A resolved and checked configuration, before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from endpick.api.data import Subscriptions
from endpick.api.discovery import ModelRewrite
from endpick.api.plugin import Parameters
from endpick.config import LoadedConfig
from endpick.diagnostics import Code, Diagnostic, DocumentPath
from endpick.host.hooks import Hooks
from endpick.host.kinds import Kind, OnFault
from endpick.host.loader import LoadedPlugin
from endpick.host.parameters import ParameterSource
from endpick.host.planning.subscriptions import SubscriptionGraph

DEFAULT_TTL_SECONDS = 60.0
DEFAULT_BAND_BYTES = 1_000_000_000
DEFAULT_BAND_REQUESTS = 5000


@dataclass(frozen=True, slots=True)
class BandSettings:
    """The policies of one priority, and the limits of its waiting requests."""

    max_bytes: int  # 1 or more
    max_requests: int  # 1 or more
    fairness: str
    ordering: str
    ttl_seconds: float | None = None  # while the pool has endpoints; None: as for all bands, 0: no limit


@dataclass(frozen=True, slots=True)
class EvictionSettings:
    """The instances that choose the requests in flight to evict, and their order."""

    filter: str
    ordering: str


@dataclass(frozen=True, slots=True)
class FlowControlSettings:
    """The `flowControl` section with defaults. A limit of 0 means no limit."""

    max_bytes: int  # waiting in all bands
    max_requests: int  # waiting in all bands
    ttl_seconds: float  # while the pool has endpoints; bands may have their own
    no_endpoint_ttl_seconds: float  # while the pool has none
    bands: Mapping[int, BandSettings]
    template: BandSettings  # for unlisted priorities from 0
    negative_template: BandSettings
    usage_limit: str
    eviction: EvictionSettings | None = None

    def band(self, priority: int) -> BandSettings:
        """Return the settings for a priority: the listed band, or the template for its sign."""
        listed = self.bands.get(priority)
        if listed is not None:
            return listed
        return self.negative_template if priority < 0 else self.template

    def ttl_of(self, band: BandSettings) -> float:
        """Return the time limit of a band in seconds, while the pool has endpoints."""
        return self.ttl_seconds if band.ttl_seconds is None else band.ttl_seconds

    @property
    def all_bands(self) -> tuple[BandSettings, ...]:
        """The bands of listed priorities, then both templates."""
        return (*self.bands.values(), self.template, self.negative_template)


@dataclass(frozen=True, slots=True)
class Announcement:
    """A default that the host filled in."""

    code: Code  # N0501 for a missing part, N0601 for a producer
    subject: str  # instance or profile
    message: str


@dataclass(frozen=True, slots=True)
class PlannedInstance:
    """A checked instance that is not built yet, with its class, parameters and data keys."""

    name: str
    loaded: LoadedPlugin
    parameters: Parameters
    subscriptions: Subscriptions
    on_fault: OnFault
    place: ParameterSource
    path: DocumentPath | None = None  # of its `plugins` entry
    reason: str = ""  # why the host added it
    refers_to: tuple[str, ...] = ()  # instances named in its parameters

    @property
    def type(self) -> str:
        """The current name of the plugin type, if the document uses an alias."""
        return self.loaded.type

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of the plugin class, such as `Scorer`."""
        return self.loaded.kinds

    @property
    def label(self) -> str:
        """`name (type)`, or one of them if they are equal."""
        return self.name if self.name == self.type else f"{self.name} ({self.type})"


@dataclass(frozen=True, slots=True)
class WeightedScorer:
    """A scorer in a profile; `weight_given` is False for the default weight."""

    instance: str
    weight: float
    weight_given: bool = True


@dataclass(frozen=True, slots=True)
class PlannedProfile:
    """A scheduling profile; filters and scorers in execution order."""

    name: str
    filters: tuple[str, ...]
    scorers: tuple[WeightedScorer, ...]
    picker: str
    reads: tuple[str, ...] = ()  # data keys needed directly or through producers; sorted

    @property
    def instances(self) -> tuple[str, ...]:
        """All instances of the profile, each once."""
        return tuple(dict.fromkeys((*self.filters, *(scorer.instance for scorer in self.scorers), self.picker)))


@dataclass(frozen=True, slots=True)
class PlannedSource:
    """A source and its collectors; data of the `active` ones is read."""

    instance: str
    collectors: tuple[str, ...]
    active: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """The store through which pickers share learnt state; None means the default interval."""

    store: str
    sync_seconds: float | None = None
    publish_seconds: float | None = None


@dataclass(frozen=True)
class Plan:
    """A resolved configuration with defaults; plugins are instance names in document order."""

    config: LoadedConfig
    instances: tuple[PlannedInstance, ...]  # each after those its parameters name
    profiles: tuple[PlannedProfile, ...]
    handler: str
    parsers: tuple[str, ...]  # in the order tried
    detector: str | None  # None if none is installed
    sources: tuple[PlannedSource, ...]
    discovery: str | None
    on_request: Mapping[Kind, tuple[str, ...]]  # producers in execution order
    graph: SubscriptionGraph
    announcements: tuple[Announcement, ...] = ()
    hooks: Hooks = field(default_factory=Hooks)
    objectives: Mapping[str, int] = field(default_factory=dict)  # priorities
    models: tuple[ModelRewrite, ...] = ()
    flow_control: FlowControlSettings | None = None  # None if the feature gate is off
    propagates_priority: bool = False  # into request bodies
    fleet: FleetPlan | None = None

    @cached_property
    def by_name(self) -> dict[str, PlannedInstance]:
        """The planned instances by name, in document order."""
        return {instance.name: instance for instance in self.instances}


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """A plan or errors; warnings may come with either."""

    plan: Plan | None
    diagnostics: tuple[Diagnostic, ...] = ()
