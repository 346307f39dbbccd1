"""The configuration document, `EndpointPickerConfig`: every field with its type and default."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, Strict, StringConstraints, model_validator
from pydantic.alias_generators import to_camel
from pydantic.json_schema import WithJsonSchema
from pydantic_core import PydanticCustomError

from endpick.api.plugin import parse_duration
from endpick.diagnostics import DocumentPath

LLM_D = "llm-d.ai/v1alpha1"
LLM_D_DEPRECATED = "inference.networking.x-k8s.io/v1alpha1"
ENDPICK = "endpick/v1alpha1"
API_VERSIONS = (LLM_D, LLM_D_DEPRECATED, ENDPICK)
KIND = "EndpointPickerConfig"
EVERY_MODEL = "*"  # the entry of `models` for models without one


class EndpickOnly:
    """Marks a field that llm-d does not have, so it needs apiVersion `endpick/v1alpha1`."""


class Deprecated:
    """Marks a field with a successor."""

    def __init__(self, successor: str) -> None:
        self.successor = successor


class Part(BaseModel):
    """A mapping of the document. A field without a value is absent, as in llm-d."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=to_camel, defer_build=True)

    _path: DocumentPath = PrivateAttr(default=())

    @property
    def path(self) -> DocumentPath:
        """Its path in the document; empty if made by hand."""
        return self._path

    @model_validator(mode="before")
    @classmethod
    def _drop_empty_fields(cls, data: object) -> object:
        if not isinstance(data, Mapping):
            return data
        known = {field.alias for field in cls.model_fields.values()}
        return {key: value for key, value in data.items() if value is not None or key not in known}


def _duration(value: object) -> object:
    if not isinstance(value, str):
        raise PydanticCustomError("duration_type", "must be a duration")
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise PydanticCustomError("duration", "is not a duration") from None
    if seconds < 0:
        raise PydanticCustomError("negative", "must not be negative")
    return seconds


def _quantity(value: object) -> object:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise PydanticCustomError("quantity_type", "must be a quantity")
    try:
        quantity = parse_quantity(str(value))
    except ValueError:
        raise PydanticCustomError("quantity", "is not a quantity") from None
    if quantity < 0:
        raise PydanticCustomError("negative", "must not be negative")
    return quantity


def _whole(value: object) -> object:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_DURATION_SCHEMA = {"type": "string", "pattern": r"^\+?(0|(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"}
_QUANTITY_SCHEMA = {
    "anyOf": [
        {"type": "number", "minimum": 0},
        {"type": "string", "pattern": r"^\+?([0-9]+\.?[0-9]*|\.[0-9]+)([numkMGTPE]?|[KMGTPE]i|[eE][-+]?[0-9]{1,3})$"},
    ]
}

Item = TypeVar("Item")

# Lax about the container only: YAML has lists, frozen models tuples.
Several = Annotated[tuple[Item, ...], Strict(strict=False)]
Name = Annotated[str, StringConstraints(min_length=1)]
WholeNumber = Annotated[int, BeforeValidator(_whole)]
Duration = Annotated[float, BeforeValidator(_duration), WithJsonSchema(_DURATION_SCHEMA)]  # seconds, as a Go duration such as `1m30s`

Quantity = Annotated[int, BeforeValidator(_quantity), WithJsonSchema(_QUANTITY_SCHEMA)]  # a Kubernetes quantity such as `1Gi`

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
        """The name for references."""
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
        """From `collectors` or `extractors`."""
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
    objectives: Annotated[Several[ObjectiveSpec], EndpickOnly()] = Field(
        (), description="Inference objectives and their priorities; a request without one, or with one that is not listed, has priority 0."
    )
    models: Annotated[Several[ModelSpec], EndpickOnly()] = Field(
        (),
        description="Models that clients know under other names than model servers; those of a discovery count where none is given here.",
    )

    @property
    def gates(self) -> dict[str, bool]:
        """Every feature gate; its last entry wins, unknown ones are ignored."""
        parsed = (parse_gate(entry) for entry in self.feature_gates)
        return {**DEFAULT_GATES, **{name: value for name, value in filter(None, parsed) if name in DEFAULT_GATES}}

    @property
    def parser_refs(self) -> tuple[PluginRef, ...]:
        """In order, from `requestHandler.parsers`, else from `parser`."""
        if self.request_handler is not None and self.request_handler.parsers:
            return self.request_handler.parsers
        return () if self.parser is None else (self.parser,)

    @property
    def saturation_detector_ref(self) -> PluginRef | None:
        """From `flowControl`, else from the deprecated field; None for the default."""
        current = self.flow_control.saturation_detector if self.flow_control is not None else None
        return current or self.saturation_detector


DEFAULT_GATES: Mapping[str, bool] = MappingProxyType({"flowControl": False, "haPopulateNonLeaderDatastore": True})
RETIRED_GATES: Mapping[str, str] = MappingProxyType(
    {
        "dataLayer": "the data layer is always on; remove this gate",
        "enableLegacyMetrics": "the legacy metrics poller no longer exists; remove this gate",
    }
)

_BOOLEANS = {**dict.fromkeys(("1", "t", "true"), True), **dict.fromkeys(("0", "f", "false"), False)}


def parse_gate(entry: str) -> tuple[str, bool] | None:
    """Parse `flowControl=false`, in any letter case; None if the setting is not a boolean."""
    name, given, setting = (part.strip() for part in entry.partition("="))
    registered = {gate.casefold(): gate for gate in DEFAULT_GATES}
    value = _BOOLEANS.get(setting.casefold()) if given else True
    return None if value is None else (registered.get(name.casefold(), name), value)


MAX_QUANTITY = 2**63 - 1

_FACTOR_PER_SUFFIX = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{suffix: Fraction(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)},
}
_QUANTITY = re.compile(r"([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([numkMGTPE]?|[KMGTPE]i)|[eE]([-+]?[0-9]{1,3}))", re.ASCII)


def parse_quantity(text: str) -> int:
    """Parse a Kubernetes quantity such as `1Gi` or `2e3`; rounds up. Raises ValueError for others and beyond 64 bits."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a quantity")
    factor = Fraction(10) ** int(match[3]) if match[3] else _FACTOR_PER_SUFFIX[match[2] or ""]
    value = math.ceil(Fraction(match[1].rstrip(".")) * factor)
    if abs(value) > MAX_QUANTITY:
        raise ValueError(f"'{text}' is not a quantity")
    return value


def part_in(annotation: object) -> type[Part] | None:
    """The model in an annotation, also if optional or repeated."""
    if isinstance(annotation, type) and issubclass(annotation, Part):
        return annotation
    if get_origin(annotation) in (Annotated, Union, UnionType, tuple):
        return next(filter(None, map(part_in, get_args(annotation))), None)
    return None
