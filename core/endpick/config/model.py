"""The configuration document, `EndpointPickerConfig`: every field with its type and default."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, Strict, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from endpick.config.gates import gates_of
from endpick.config.units import Duration, Quantity, WholeNumber
from endpick.diagnostics import DocumentPath

LLM_D = "llm-d.ai/v1"
LLM_D_ALPHA = "llm-d.ai/v1alpha1"
FORMER_GROUP = "inference.networking.x-k8s.io/v1alpha1"  # llm-d no longer reads it
ENDPICK = "endpick/v1alpha1"
ALPHA_VERSIONS = (LLM_D_ALPHA, FORMER_GROUP)
API_VERSIONS = (LLM_D, *ALPHA_VERSIONS, ENDPICK)
KIND = "EndpointPickerConfig"
EVERY_MODEL = "*"  # the entry of `models` for models without one


class EndpickOnly:
    """Marks a field that llm-d does not have, so it needs apiVersion `endpick/v1alpha1`."""


class Deprecated:
    """Marks a field with a successor, which apiVersion `llm-d.ai/v1` does not have."""

    def __init__(self, successor: str) -> None:
        self.successor = successor


class Moved(Deprecated):
    """Marks a field that is current in `v1alpha1`."""


class SinceV1:
    """Marks a field that `v1alpha1` does not have."""


class Part(BaseModel):
    """A mapping of the document. A field without a value is absent, as in llm-d."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, defer_build=True)

    _path: DocumentPath = PrivateAttr(default=())

    @property
    def path(self) -> DocumentPath:
        """The path in the document; empty if the part was not read from one."""
        return self._path

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_fields(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


Item = TypeVar("Item")

# Lax about the container only: YAML has lists, frozen models tuples.
Several = Annotated[tuple[Item, ...], Strict(strict=False)]
Name = Annotated[str, StringConstraints(min_length=1)]


OnFault = Literal["FailOpen", "FailClose"]


class PluginSpec(Part):
    """One instance of a plugin type."""

    type: Name = Field(description="The plugin type; `endpick list` shows those that are installed.")
    name: str | None = Field(None, description="The name of the instance, for references; the type if omitted.")
    parameters: dict[str, Any] | None = Field(None, description="Parameters of the plugin; `endpick describe TYPE` shows them.")
    from_: Annotated[Name | None, EndpickOnly()] = Field(
        None, alias="from", description="The distribution to take the type from, where several offer it."
    )
    on_fault: Annotated[OnFault | None, EndpickOnly()] = Field(
        None,
        description="What to do when the instance raises or returns something invalid: FailOpen continues without it, "
        "FailClose fails the profile run. Scorers fail open by default, filters, pickers and parsers fail closed. "
        "A request whose parser fails open goes on with a body that no parser has read.",
    )
    max_age: Annotated[Duration | None, EndpickOnly()] = Field(
        None,
        description="Data of endpoints and of the pool that was written longer ago is missing for this instance; any age if 0 or omitted.",
    )

    @property
    def instance(self) -> str:
        """The name by which references find the instance: `name`, or `type` without one."""
        return self.name or self.type


class PluginRef(Part):
    """A reference to an instance defined under `plugins`."""

    plugin_ref: Name = Field(description="The name of an instance defined under `plugins`.")


class ProfilePlugin(PluginRef):
    """The place of an instance in a scheduling profile."""

    weight: float | None = Field(None, description="How much the scores of this scorer count; 1 if omitted.")


class SchedulingProfile(Part):
    """Filters, scorers and a picker that together choose an endpoint. Filters run in the order given."""

    name: Name = Field(description="The name by which the profile handler knows the profile.")
    plugins: Several[ProfilePlugin] = Field((), description="The instances that make up the profile.")


class RequestHandler(Part):
    """How requests are read."""

    parsers: Several[PluginRef] = Field((), description="Parsers, in the order in which they are asked.")
    propagate_priority: bool = Field(
        default=False, description="Whether to write the request's priority into the top-level `priority` of its body."
    )


class DataSourceSpec(Part):
    """A data source and the collectors that read what it delivers."""

    plugin_ref: Name = Field(description="The name of a data source defined under `plugins`.")
    extractors: Several[PluginRef] | None = Field(None, description="llm-d's name for the collectors.")
    collectors: Annotated[Several[PluginRef] | None, EndpickOnly()] = Field(
        None, description="The instances that read what the source delivers."
    )

    @property
    def collector_refs(self) -> tuple[PluginRef, ...]:
        """References to the collectors, from `collectors` or llm-d's `extractors`."""
        return self.collectors or self.extractors or ()


Place = tuple[str, DocumentPath]  # of a reference: the name, and where it is written


class Discovery(Part):
    """What finds endpoints and other endpoint pickers."""

    endpoints: PluginRef | None = Field(None, description="The instance that finds endpoints.")
    peers: PluginRef | None = Field(None, description="The instance that finds other endpoint pickers.")
    plugin_ref: Annotated[Name | None, Moved("dataLayer.discovery.endpoints.pluginRef")] = Field(
        None, description="The instance that finds endpoints."
    )


class CrossReplica(Part):
    """How state is exchanged with other endpoint pickers."""

    syncer_plugin_ref: Name | None = Field(None, description="The instance that exchanges state.")
    sync_interval: Duration | None = Field(None, description="How often state is exchanged, 10ms to 1s; 50ms if omitted (llm-d: 200ms).")
    publish_timeout: Duration | None = Field(None, gt=0, description="How long a call of the store may take; 1s if omitted.")


class DataLayer(Part):
    """Where data about endpoints comes from."""

    inject_defaults: bool = Field(
        default=True, description="Whether to add the metrics source and its collector when no source has their name."
    )
    sources: Several[DataSourceSpec] = Field((), description="Data sources and their collectors.")
    discovery: Discovery | None = Field(None, description="What finds endpoints and other endpoint pickers.")
    cross_replica: Annotated[CrossReplica | None, SinceV1()] = Field(None, description="State exchanged with other endpoint pickers.")
    peer_discovery: Annotated[PluginRef | None, Moved("dataLayer.discovery.peers")] = Field(
        None, description="The instance that finds other endpoint pickers."
    )
    cross_replica_syncer_plugin_ref: Annotated[Name | None, Moved("dataLayer.crossReplica.syncerPluginRef")] = Field(
        None, description="The instance that exchanges state."
    )
    cross_replica_sync_interval: Annotated[Duration | None, Moved("dataLayer.crossReplica.syncInterval")] = Field(
        None, description="How often state is exchanged; 50ms if omitted (llm-d: 200ms)."
    )
    cross_replica_publish_timeout: Annotated[Duration | None, Moved("dataLayer.crossReplica.publishTimeout")] = Field(
        None, gt=0, description="How long a call of the store may take; 1s if omitted."
    )

    @property
    def discovery_ref(self) -> Place | None:
        """The reference to the endpoint discovery: its name and path."""
        section = self.discovery
        if section is None:
            return None
        former = (section.plugin_ref, (*section.path, "pluginRef")) if section.plugin_ref else None
        return _place_of(section.endpoints) or former

    @property
    def peers_ref(self) -> Place | None:
        """The reference to the discovery of other endpoint pickers: its name and path."""
        peers = None if self.discovery is None else self.discovery.peers
        return _place_of(peers or self.peer_discovery)

    @property
    def syncer_ref(self) -> Place | None:
        """The reference to the instance that exchanges state: its name and path."""
        section, former = self.cross_replica, self.cross_replica_syncer_plugin_ref
        if section is not None and section.syncer_plugin_ref:
            return section.syncer_plugin_ref, (*section.path, "syncerPluginRef")
        return (former, (*self.path, "crossReplicaSyncerPluginRef")) if former else None

    @property
    def sync_interval(self) -> float | None:
        """Seconds between exchanges of state; None if 0 or omitted."""
        section = self.cross_replica
        return (self.cross_replica_sync_interval if section is None else section.sync_interval) or None

    @property
    def publish_timeout(self) -> float | None:
        """Seconds that a call of the store may take; None if omitted."""
        section = self.cross_replica
        return self.cross_replica_publish_timeout if section is None else section.publish_timeout


def _place_of(reference: PluginRef | None) -> Place | None:
    return None if reference is None else (reference.plugin_ref, (*reference.path, "pluginRef"))


class PriorityBand(Part):
    """Limits and policies for requests of one priority, or a template for them."""

    priority: WholeNumber = Field(0, ge=-(2**63), lt=2**63, description="The priority; higher is served first.")
    max_bytes: Quantity | None = Field(None, description="How many bytes may wait; 1000000000 if 0 or omitted.")
    max_requests: Quantity | None = Field(None, description="How many requests may wait; 5000 if 0 or omitted.")
    fairness_policy_ref: Name | None = Field(None, description="How flows of one priority share.")
    ordering_policy_ref: Name | None = Field(None, description="In which order requests of one flow are served.")
    default_request_ttl: Duration | None = Field(
        None,
        alias="defaultRequestTTL",
        description="How long a request of this priority may wait while there are endpoints; as flowControl.defaultRequestTTL if omitted, "
        "0s for no limit.",
    )


class FlowControl(Part):
    """Queues before scheduling; used while the feature gate `flowControl` is on."""

    max_bytes: Quantity | None = Field(None, description="How many bytes may wait in all; unlimited if 0 or omitted.")
    max_requests: Quantity | None = Field(None, description="How many requests may wait in all; unlimited if 0 or omitted.")
    default_request_ttl: Duration | None = Field(
        None, alias="defaultRequestTTL", description="How long a request may wait; 60s if omitted, 0s for no limit."
    )
    no_endpoint_request_ttl: Duration | None = Field(
        None,
        alias="noEndpointRequestTTL",
        description="How long a request may wait while there are no endpoints; as defaultRequestTTL if omitted.",
    )
    default_priority_band: PriorityBand | None = Field(None, description="Template for priorities that are not listed.")
    default_negative_priority_band: PriorityBand | None = Field(None, description="Template for priorities below 0 that are not listed.")
    priority_bands: Several[PriorityBand] = Field((), description="Priorities with limits or policies of their own.")
    usage_limit_policy_plugin_ref: Name | None = Field(None, description="The policy that limits dispatching.")
    band_selection_policy_plugin_ref: Name | None = Field(
        None, description="The policy that orders the priorities; from the highest to the lowest if omitted."
    )
    saturation_detector: PluginRef | None = Field(
        None, description="What decides whether endpoints are saturated; used even while the gate is off."
    )
    enable_eviction: bool = Field(default=False, description="Whether sheddable requests in flight may be evicted.")


class PluginPolicy(Part):
    """Which plugins may be imported at all; checked before any import."""

    allow_distributions: Several[Name] | None = Field(
        None, description="Distributions that may be loaded; all if omitted. endpick itself is always allowed."
    )
    deny_types: Several[Name] = Field((), description="Plugin types that may not be used, and hook objects to leave out.")
    on_unused: Literal["Ignore", "Warn"] = Field("Warn", description="What to do about instances that nothing uses.")


class ObjectiveSpec(Part):
    """An inference objective: what requests that name it in the header `x-llm-d-inference-objective` are worth."""

    name: Name = Field(description="What requests call it.")
    priority: WholeNumber = Field(description="Higher is more important; requests of negative priority are shed while the pool is full.")


class ModelTargetSpec(Part):
    """A model that requests may be for instead."""

    model: Name = Field(description="What the model servers call it.")
    weight: WholeNumber = Field(1, ge=0, lt=2**31, description="Its share of the requests, in proportion to the weights of the others.")


class ModelSpec(Part):
    """A model under the name that clients use, and the models that serve it."""

    name: Name = Field(description="What clients call it; `*` stands for every model without an entry, and for requests that name none.")
    targets: Several[ModelTargetSpec] = Field(
        (), description="The models its requests are for instead; itself if omitted. Where all weights are 0, shares are equal."
    )


class EndpointPickerConfig(Part):
    """The configuration of an endpoint picker."""

    api_version: Literal["llm-d.ai/v1", "llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1", "endpick/v1alpha1"] = Field(
        description="llm-d.ai/v1 for what llm-d also reads, endpick/v1alpha1 for everything."
    )
    kind: Literal["EndpointPickerConfig"] = Field(description="Always EndpointPickerConfig.")
    feature_gates: Several[str] = Field((), description="Feature gates to switch: `name` or `name=false`.")
    plugins: Several[PluginSpec] = Field((), description="The instances; one per entry.")
    scheduling_profiles: Several[SchedulingProfile] = Field(
        (), description="Scheduling profiles; one named `default` with every filter, scorer and picker if omitted."
    )
    request_handler: RequestHandler | None = Field(None, description="How requests are read.")
    data_layer: DataLayer | None = Field(None, description="Where data about endpoints comes from.")
    flow_control: FlowControl | None = Field(None, description="Queues before scheduling.")
    parser: Annotated[PluginRef | None, Deprecated("requestHandler.parsers")] = Field(
        None, description="The parser of requests. Deprecated: use requestHandler.parsers."
    )
    saturation_detector: Annotated[PluginRef | None, Deprecated("flowControl.saturationDetector")] = Field(
        None, description="What decides whether endpoints are saturated. Deprecated: use flowControl.saturationDetector."
    )
    plugin_policy: Annotated[PluginPolicy | None, EndpickOnly()] = Field(None, description="Which plugins may be loaded.")
    objectives: Annotated[Several[ObjectiveSpec], EndpickOnly()] = Field(
        (), description="Inference objectives and their priorities; a request without one, or with one that is not listed, has priority 0."
    )
    models: Annotated[Several[ModelSpec], EndpickOnly()] = Field(
        (),
        description="Models that clients know under other names than model servers; those of a discovery count where none is given here.",
    )

    @property
    def gates(self) -> dict[str, bool]:
        """The setting of every feature gate by name, with defaults for those not listed."""
        return gates_of(self.feature_gates)

    @property
    def parser_refs(self) -> tuple[PluginRef, ...]:
        """References to the parsers in order, from `requestHandler.parsers`, else from `parser`."""
        if self.request_handler is not None and self.request_handler.parsers:
            return self.request_handler.parsers
        return () if self.parser is None else (self.parser,)

    @property
    def saturation_detector_ref(self) -> PluginRef | None:
        """The reference to the saturation detector, in its current or deprecated field; None if omitted."""
        current = self.flow_control.saturation_detector if self.flow_control is not None else None
        return current or self.saturation_detector


def part_in(annotation: object) -> type[Part] | None:
    """Return the model in an annotation, even if optional or repeated; None if there is none."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        return next(filter(None, map(part_in, get_args(annotation))), None)
    return None
