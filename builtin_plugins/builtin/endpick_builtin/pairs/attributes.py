"""`endpoint-attribute-*`: rate endpoints by any reported number, or by text such as a label."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from pydantic import Field, model_validator

from endpick.api import (
    BoolArray,
    Category,
    ColumnWriter,
    DataCollector,
    DataKey,
    EndpointChange,
    EndpointEvent,
    Endpoints,
    Filter,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    Scorer,
    ScoringState,
    Stability,
    Subscriptions,
)
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.scorers.load import smaller_is_better
from endpick_builtin.threshold_filters import kept_or_all

AttributeName: TypeAlias = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9]+([._-][A-Za-z0-9]+)*(/[A-Za-z0-9]+([._-][A-Za-z0-9]+)*)?$",
        description="Data key of the number: for example an `attributeKey` of `customMetrics` of core-metrics-extractor.",
        examples=["GPUUtilization"],
    ),
]
ProducerName: TypeAlias = Annotated[str | None, Field(description="Instance that writes the number; empty for the only one.")]


def attribute_key(name: str, producer: str | None) -> DataKey[float]:
    """Return the data key of a number, by default of its only producer."""
    return DataKey(name, float, doc="A number that endpoints report, chosen in the configuration.").from_producer(producer or "")


Comparison: TypeAlias = Literal["LessThan", "LessThanOrEqual", "GreaterThan", "GreaterThanOrEqual", "Equal", "NotEqual"]
"""How a number is compared with the threshold."""


_HOLDS: dict[Comparison, Callable[[FloatArray, float], BoolArray]] = {
    "LessThan": operator.lt,
    "LessThanOrEqual": operator.le,
    "GreaterThan": operator.gt,
    "GreaterThanOrEqual": operator.ge,
    "Equal": operator.eq,
    "NotEqual": operator.ne,
}


class Threshold(CamelParameters):
    """Compares a number with a fixed value."""

    comparison: Annotated[
        Comparison,
        Field(
            alias="operator",
            description="`LessThan`, `LessThanOrEqual`, `GreaterThan`, `GreaterThanOrEqual`, `Equal` or `NotEqual`.",
        ),
    ]
    value: Annotated[float, Field(allow_inf_nan=False, description="Value to compare the number with.")]


class FilterAlgorithmType(StrEnum):
    """The kinds of filter algorithm."""

    THRESHOLD = "threshold"


class FilterAlgorithm(CamelParameters):
    """Sets the condition that an endpoint must meet to be kept."""

    type: Annotated[FilterAlgorithmType, Field(description="`threshold` is the only one.")] = FilterAlgorithmType.THRESHOLD
    threshold: Annotated[Threshold, Field(description="Condition that the number must meet.")]


class EndpointAttributeFilterParameters(CamelParameters):
    """Names the number, and sets the condition that it must meet."""

    attribute: AttributeName
    producer: ProducerName = None
    on_missing: Annotated[Literal["Pass", "Fail"], Field(description="`Pass` keeps an endpoint without the number, `Fail` drops it.")] = (
        "Pass"
    )
    fallback_on_empty: Annotated[bool, Field(description="Keep all endpoints when the threshold would leave none.")] = False
    algorithm: Annotated[
        FilterAlgorithm,
        Field(
            description="Condition for endpoints.",
            examples=[{"type": "threshold", "threshold": {"operator": "LessThanOrEqual", "value": 0.9}}],
        ),
    ]


class EndpointAttributeFilter(Filter[EndpointAttributeFilterParameters]):
    """Keeps endpoints by comparing a number with `value`.

    `onMissing` decides about endpoints without the number.
    """

    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: EndpointAttributeFilterParameters) -> Subscriptions:
        return Subscriptions((), (attribute_key(parameters.attribute, parameters.producer),))

    def __init__(self, name: str, parameters: EndpointAttributeFilterParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._key = attribute_key(parameters.attribute, parameters.producer)
        self._holds = _HOLDS[parameters.algorithm.threshold.comparison]
        self._value = parameters.algorithm.threshold.value

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        return kept_or_all(endpoints.derived(self._key, self._kept), endpoints, fall_back=self.parameters.fallback_on_empty)

    def _kept(self, values: FloatArray) -> BoolArray:
        holds = self._holds(values, self._value)
        missing = np.isnan(values)
        return holds & ~missing if self.parameters.on_missing == "Fail" else holds | missing


class FixedRange(CamelParameters):
    """Sets the numbers that score 0 and 1."""

    min: Annotated[float, Field(allow_inf_nan=False, description="Smallest number expected; smaller ones count as this.")]
    max: Annotated[float, Field(allow_inf_nan=False, description="Largest number expected; larger ones count as this.")]

    @model_validator(mode="after")
    def _has_a_width(self) -> Self:
        if self.min >= self.max:
            raise ValueError(f"min must be less than max, and {self.min:g} is not less than {self.max:g}")
        return self


class AdaptiveRange(Parameters):
    """Uses the candidates' smallest and largest number as range."""


class Normalization(CamelParameters):
    """Sets the range of numbers that maps to scores from 0 to 1."""

    fixed_range: Annotated[FixedRange | None, Field(description="The numbers that score 0 and 1.")] = None
    adaptive_range: Annotated[AdaptiveRange | None, Field(description="`{}` for those of the candidates, which is the default.")] = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if self.fixed_range is not None and self.adaptive_range is not None:
            raise ValueError("fixedRange and adaptiveRange exclude each other; give one of them")
        return self


class ScorerAlgorithm(CamelParameters):
    """Sets the range of the numbers, and its better end."""

    type: Annotated[
        Literal["linear_lower_is_better", "linear_higher_is_better"],
        Field(description="`linear_lower_is_better` or `linear_higher_is_better`."),
    ]
    normalization: Annotated[Normalization, Field(description="Scale of the numbers.", default_factory=Normalization)]


class EndpointAttributeScorerParameters(CamelParameters):
    """Names the number, and sets its conversion to a score."""

    attribute_key: Annotated[AttributeName, Field()]
    producer: ProducerName = None
    algorithm: Annotated[
        ScorerAlgorithm,
        Field(
            description="How a number becomes a score.",
            examples=[{"type": "linear_lower_is_better", "normalization": {"fixedRange": {"min": 0, "max": 1}}}],
        ),
    ]


class EndpointAttributeScorer(Scorer[EndpointAttributeScorerParameters]):
    """Rates endpoints by a number they report.

    score = (number - min) / (max - min), clipped to [0, 1], for `linear_higher_is_better`; 1 - that for `linear_lower_is_better`. Range:
    `fixedRange` or the candidates' (all equal: 1). Without the number the score is 0.
    """

    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: EndpointAttributeScorerParameters) -> Subscriptions:
        return Subscriptions((), (attribute_key(parameters.attribute_key, parameters.producer),))

    def __init__(self, name: str, parameters: EndpointAttributeScorerParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._key = attribute_key(parameters.attribute_key, parameters.producer)
        self._lower_is_better = parameters.algorithm.type == "linear_lower_is_better"
        self._range = parameters.algorithm.normalization.fixed_range

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.derived(self._key, self._rated)

    def _rated(self, values: FloatArray) -> FloatArray:
        costs = values if self._lower_is_better else -values
        if self._range is None:
            return smaller_is_better(costs)
        best, worst = (self._range.min, self._range.max) if self._lower_is_better else (-self._range.max, -self._range.min)
        return np.fmin(np.fmax((worst - costs) / (worst - best), 0.0), 1.0)


class PublishedLabel(CamelParameters):
    """Maps a label to the data key under which it is published."""

    label: Annotated[str, Field(min_length=1, description="Label of the endpoint.")]
    attribute_key: Annotated[AttributeName, Field(description="Data key for its value.", examples=["region"])]


class LabelProducerParameters(CamelParameters):
    """Lists the labels to publish under data keys."""

    labels: Annotated[
        tuple[PublishedLabel, ...],
        Field(
            min_length=1,
            description="Labels and their data keys.",
            examples=[[{"label": "topology.kubernetes.io/region", "attributeKey": "region"}]],
        ),
    ]

    @model_validator(mode="after")
    def _keys_differ(self) -> Self:
        keys = [published.attribute_key for published in self.labels]
        twice = next((key for key in keys if keys.count(key) > 1), "")
        if twice:
            raise ValueError(f"two labels have the attributeKey '{twice}'")
        return self


class LabelProducer(DataCollector[LabelProducerParameters, EndpointEvent]):
    """Publishes labels of endpoints as text, for `endpoint-attribute-weight-scorer`. Follows label changes.

    A missing label is empty text.
    """

    default_source = "endpoint-notification-source"
    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: LabelProducerParameters) -> Subscriptions:
        return Subscriptions((), (), tuple(label_key(published.attribute_key) for published in parameters.labels))

    def collect(self, payload: EndpointEvent, writer: ColumnWriter) -> None:
        if payload.change is not EndpointChange.REMOVED:
            for published in self.parameters.labels:
                writer.set(label_key(published.attribute_key), payload.endpoint.labels.get(published.label, ""))


def label_key(name: str) -> DataKey[str]:
    """Return the data key under which a label is published."""
    return DataKey(name, str, doc="Value of a label of the endpoint.")


Weight: TypeAlias = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]


class AttributeWeightParameters(CamelParameters):
    """Names the text, and sets the weights of its values."""

    attribute_key: Annotated[AttributeName, Field(description="Data key of the text.", examples=["region"])]
    producer: Annotated[str, Field(description="Instance that writes the text, such as a label-producer; or empty.", examples=[""])]
    weights: Annotated[
        Mapping[str, Weight], Field(min_length=1, description="Positive weights by value.", examples=[{"region-1": 2, "region-2": 1}])
    ]

    @model_validator(mode="after")
    def _do_not_vanish(self) -> Self:
        largest = max(self.weights.values())
        vanishing = next((value for value, weight in self.weights.items() if weight / largest == 0.0), None)
        if vanishing is not None:
            raise ValueError(f"the weight of '{vanishing}' is too small beside {largest:g}: its score would be 0")
        return self


class EndpointAttributeWeightScorer(Scorer[AttributeWeightParameters]):
    """Rates endpoints by weights for a text, such as a region or GPU model.

    score = weight / largest weight; a missing or unknown value scores as the smallest weight.
    """

    category = Category.DISTRIBUTION
    stability = Stability.EXPERIMENTAL

    @classmethod
    def subscriptions(cls, parameters: AttributeWeightParameters) -> Subscriptions:
        return Subscriptions((), (label_key(parameters.attribute_key).from_producer(parameters.producer),))

    def __init__(self, name: str, parameters: AttributeWeightParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._key = label_key(parameters.attribute_key).from_producer(parameters.producer)
        largest = max(parameters.weights.values())
        self._scores = {value: weight / largest for value, weight in parameters.weights.items()}
        self._least = min(self._scores.values())

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        return endpoints.gather(endpoints.derived_from_objects(self._key, self._rated)).copy()

    def _rated(self, values: Sequence[str | None]) -> FloatArray:
        return np.array([self._scores.get(value or "", self._least) for value in values], dtype=np.float64)
