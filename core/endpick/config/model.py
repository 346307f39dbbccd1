"""The configuration document, `EndpointPickerConfig`: every field, its type, its default."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from endpick.config.gates import resolve_gates
from endpick.config.part import Deprecated, Duration, EndpickOnly, Name, Part, Quantity, Several, WholeNumber

LLM_D = "llm-d.ai/v1alpha1"
LLM_D_DEPRECATED = "inference.networking.x-k8s.io/v1alpha1"
ENDPICK = "endpick/v1alpha1"
API_VERSIONS = (LLM_D, LLM_D_DEPRECATED, ENDPICK)
KIND = "EndpointPickerConfig"

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
        description="What becomes of a request when the instance raises or answers nonsense: FailOpen goes on without it, "
        "FailClose fails the profile run. Scorers fail open by default, filters and pickers fail closed.",
    )

    @property
    def instance(self) -> str:
        """The name other parts of the document refer to."""
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


class DataSourceSpec(Part):
    """A data source and the collectors that read what it delivers."""

    plugin_ref: Name = Field(description="The name of a data source defined under `plugins`.")
    extractors: Several[PluginRef] | None = Field(None, description="llm-d's name for the collectors.")
    collectors: Annotated[Several[PluginRef] | None, EndpickOnly()] = Field(
        None, description="The instances that read what the source delivers."
    )

    @property
    def collector_refs(self) -> tuple[PluginRef, ...]:
        """The collectors, under whichever name they were given."""
        return self.collectors or self.extractors or ()


class DataLayer(Part):
    """Where data about endpoints comes from."""

    inject_defaults: bool = Field(
        default=True, description="Whether to add the metrics source and its collector when no source has their name."
    )
    sources: Several[DataSourceSpec] = Field((), description="Data sources and their collectors.")
    discovery: PluginRef | None = Field(None, description="The instance that finds endpoints.")
    peer_discovery: PluginRef | None = Field(None, description="The instance that finds other endpoint pickers.")
    cross_replica_syncer_plugin_ref: Name | None = Field(None, description="The instance that exchanges state with other endpoint pickers.")
    cross_replica_sync_interval: Duration | None = Field(None, description="How often state is exchanged; 200ms if omitted.")


class PriorityBand(Part):
    """Limits and policies for requests of one priority, or a template for them."""

    priority: WholeNumber = Field(0, ge=-(2**63), lt=2**63, description="The priority; higher is served first.")
    max_bytes: Quantity | None = Field(None, description="How many bytes may wait; 1000000000 if 0 or omitted.")
    max_requests: Quantity | None = Field(None, description="How many requests may wait; 5000 if 0 or omitted.")
    fairness_policy_ref: Name | None = Field(None, description="How flows of one priority share.")
    ordering_policy_ref: Name | None = Field(None, description="In which order requests of one flow are served.")


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
    saturation_detector: PluginRef | None = Field(
        None, description="What decides whether endpoints are saturated; used even while the gate is off."
    )
    enable_eviction: bool = Field(default=False, description="Whether sheddable requests in flight may be evicted.")


class PluginPolicy(Part):
    """Which plugins may be imported at all; checked before any import."""

    allow_distributions: Several[Name] | None = Field(
        None, description="Distributions that may be loaded; all if omitted. endpick itself is always allowed."
    )
    deny_types: Several[Name] = Field((), description="Plugin types that may not be used.")
    on_unused: Literal["Ignore", "Warn"] = Field("Warn", description="What to do about instances that nothing uses.")


class HookSpec(Part):
    """A hook object to load: host extensions are never loaded unless they are named here."""

    name: Name = Field(description="The name of an entry point in the group `endpick.hooks.v1`.")
    from_: Name | None = Field(None, alias="from", description="The distribution to take it from, where several offer it.")


class EndpointPickerConfig(Part):
    """The configuration of an endpoint picker."""

    api_version: Literal["llm-d.ai/v1alpha1", "inference.networking.x-k8s.io/v1alpha1", "endpick/v1alpha1"] = Field(
        description="llm-d.ai/v1alpha1 for what llm-d also reads, endpick/v1alpha1 for everything."
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
    hooks: Annotated[Several[HookSpec], EndpickOnly()] = Field((), description="Host extensions to load.")

    @property
    def gates(self) -> dict[str, bool]:
        """Every feature gate and whether it is on."""
        return resolve_gates(self.feature_gates)

    @property
    def parser_refs(self) -> tuple[PluginRef, ...]:
        """The parsers in order, from whichever field gives them; empty if none does."""
        if self.request_handler is not None and self.request_handler.parsers:
            return self.request_handler.parsers
        return () if self.parser is None else (self.parser,)

    @property
    def saturation_detector_ref(self) -> PluginRef | None:
        """The saturation detector, from whichever field gives it; None for the default."""
        current = self.flow_control.saturation_detector if self.flow_control is not None else None
        return current or self.saturation_detector
