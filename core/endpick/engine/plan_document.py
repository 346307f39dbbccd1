"""JSON documents of plans and data flows."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from endpick.api.data import Scope
from endpick.host.kinds import KINDS, KindName, OnFault, payload_of
from endpick.host.planning.plan import FlowControlSettings, Plan, PlannedInstance

VERSION: Literal[1] = 1


class Document(BaseModel):
    """The base class of the parts of a printed document."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True, from_attributes=True)


class InstanceDocument(Document):
    """A plugin instance of the plan, with its origin and data keys."""

    name: str
    type: str
    kinds: tuple[KindName, ...]
    distribution: str
    version: str
    path: tuple[str | int, ...] | None = Field(description="Of its entry in the configuration; null for an instance that endpick added.")
    reason: str = Field(description="Why endpick added it; empty for a configured instance.")
    on_fault: OnFault
    consumes: tuple[str, ...]
    consumes_optional: tuple[str, ...]
    produces: tuple[str, ...]


class ScorerDocument(Document):
    """A scorer in a scheduling profile."""

    instance: str
    weight: float
    weight_given: bool = Field(description="False when the weight is the default.")


class ProfileDocument(Document):
    """A scheduling profile with its filters, scorers and picker."""

    name: str
    filters: tuple[str, ...]
    scorers: tuple[ScorerDocument, ...]
    picker: str
    reads: tuple[str, ...] = Field(description="Data keys that a run needs, directly or through producers.")


class SourceDocument(Document):
    """A data source and its collectors."""

    instance: str
    collectors: tuple[str, ...]
    active: tuple[str, ...] = Field(description="Collectors that run because an instance reads their data.")


class SubscriptionDocument(Document):
    """A key that one instance reads and another produces."""

    consumer: str
    key: str
    producer: str
    required: bool
    scope: Scope


class AnnouncementDocument(Document):
    """A default that endpick filled in, with its reason."""

    code: str
    subject: str
    message: str


class BandDocument(Document):
    """Limits and policies of one priority, or of unlisted priorities."""

    max_bytes: int
    max_requests: int
    fairness: str = Field(description="Fairness policy instance.")
    ordering: str = Field(description="Ordering policy instance.")
    ttl_seconds: float | None = Field(description="Maximum wait while the pool has endpoints; null as for all bands, 0 for no limit.")


class FlowControlDocument(Document):
    """The settings of flow control, with the limits of every band."""

    max_bytes: int = Field(description="For all bands; 0 means no limit.")
    max_requests: int = Field(description="For all bands; 0 means no limit.")
    ttl_seconds: float = Field(description="Maximum wait while the pool has endpoints; 0 means no limit.")
    no_endpoint_ttl_seconds: float = Field(description="Maximum wait while the pool has no endpoints; 0 means no limit.")
    bands: dict[str, BandDocument] = Field(description="By priority, highest first.")
    template: BandDocument = Field(description="For unlisted priorities of 0 and above.")
    negative_template: BandDocument = Field(description="For unlisted priorities below 0.")
    usage_limit: str = Field(description="Usage limit policy instance.")
    eviction_filter: str | None
    eviction_ordering: str | None


class PlanDocument(Document):
    """A resolved configuration: instances, profiles, defaults with their reasons, and data flow."""

    version: Literal[1] = VERSION
    config: str = Field(description="Name of the configuration file.")
    instances: tuple[InstanceDocument, ...]
    profiles: tuple[ProfileDocument, ...]
    handler: str
    parsers: tuple[str, ...]
    detector: str | None
    flow_control: FlowControlDocument | None = Field(description="Null while the feature gate flowControl is off.")
    discovery: str | None
    sources: tuple[SourceDocument, ...]
    on_request: dict[KindName, tuple[str, ...]] = Field(
        description="Instances that take part in every request, by kind, in execution order."
    )
    subscriptions: tuple[SubscriptionDocument, ...]
    announcements: tuple[AnnouncementDocument, ...]
    hooks: tuple[str, ...] = Field(description="Hook objects that are loaded, in call order.")


def document_of(plan: Plan) -> PlanDocument:
    """Return the JSON document of a plan, as `endpick plan --format json` prints it."""
    return PlanDocument.model_validate(
        {
            "config": plan.config.path,
            "instances": list(map(_instance, plan.instances)),
            "profiles": plan.profiles,
            "handler": plan.handler,
            "parsers": plan.parsers,
            "detector": plan.detector,
            "flowControl": None if plan.flow_control is None else _flow_control(plan.flow_control),
            "discovery": plan.discovery,
            "sources": plan.sources,
            "onRequest": {KINDS[kind].name: names for kind, names in plan.on_request.items()},
            "subscriptions": plan.graph.subscriptions,
            "announcements": [{"code": note.code.name, "subject": note.subject, "message": note.message} for note in plan.announcements],
            "hooks": plan.hooks.names,
        }
    )


def _flow_control(settings: FlowControlSettings) -> dict[str, object]:
    eviction = settings.eviction
    names = ("max_bytes", "max_requests", "ttl_seconds", "no_endpoint_ttl_seconds", "template", "negative_template", "usage_limit")
    return {
        **{name: getattr(settings, name) for name in names},
        "bands": {str(priority): settings.bands[priority] for priority in sorted(settings.bands, reverse=True)},
        "eviction_filter": None if eviction is None else eviction.filter,
        "eviction_ordering": None if eviction is None else eviction.ordering,
    }


def _instance(instance: PlannedInstance) -> dict[str, object]:
    candidate, keys = instance.loaded.candidate, instance.subscriptions
    return {
        **{name: getattr(instance, name) for name in ("name", "type", "path", "reason", "on_fault")},
        "kinds": [kind.kind for kind in instance.kinds],
        "distribution": candidate.distribution,
        "version": candidate.version,
        "consumes": [key.name for key in keys.consumes],
        "consumes_optional": [key.name for key in keys.consumes_optional],
        "produces": [key.name for key in keys.produces],
    }


class Node(Document):
    """An instance that produces or reads data."""

    name: str
    type: str
    kinds: tuple[KindName, ...]
    added: bool = Field(description="True if endpick added it.")


class Arrow(Document):
    """Data that flows from one instance to another."""

    giver: str
    taker: str
    what: tuple[str, ...] = Field(description="Data keys, sorted; for a payload the name of its type.")
    flow: Literal["payload", "data"] = Field(description="payload: from a source to a collector; data: from a producer to a consumer.")
    needed: bool = Field(description="False for optional data and for payloads of an idle collector.")


class Picture(Document):
    """The data flow of a plan."""

    version: Literal[1] = VERSION
    config: str = Field(description="Name of the configuration file.")
    nodes: tuple[Node, ...] = Field(description="In plan order, without instances that neither produce nor read data.")
    arrows: tuple[Arrow, ...] = Field(description="Sorted.")


def picture_of(plan: Plan) -> Picture:
    """Return the data flow of a plan, as `endpick graph` prints it; always in the same order."""
    arrows = sorted((*_payloads(plan), *_data(plan)), key=lambda arrow: (arrow.giver, arrow.taker, arrow.flow, arrow.needed))
    involved = {name for arrow in arrows for name in (arrow.giver, arrow.taker)}
    return Picture(
        config=plan.config.path,
        nodes=tuple(
            Node(name=planned.name, type=planned.type, kinds=tuple(kind.kind for kind in planned.kinds), added=planned.path is None)
            for planned in plan.instances
            if planned.name in involved
        ),
        arrows=tuple(arrows),
    )


def _payloads(plan: Plan) -> list[Arrow]:
    return [
        Arrow(
            giver=source.instance,
            taker=collector,
            what=(_payload(plan, source.instance),),
            flow="payload",
            needed=collector in source.active,
        )
        for source in plan.sources
        for collector in source.collectors
    ]


def _payload(plan: Plan, source: str) -> str:
    payload = payload_of(plan.by_name[source].loaded.plugin)
    return "payload" if payload is None else payload.__name__


def _data(plan: Plan) -> list[Arrow]:
    keys: dict[tuple[str, str, bool], set[str]] = {}
    for edge in plan.graph.subscriptions:
        keys.setdefault((edge.producer, edge.consumer, edge.required), set()).add(edge.key)
    return [
        Arrow(giver=producer, taker=consumer, what=tuple(sorted(names)), flow="data", needed=needed)
        for (producer, consumer, needed), names in keys.items()
    ]
