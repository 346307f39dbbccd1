"""Filters: which endpoints may serve a request, by their labels and roles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from endpick.api import BoolArray, Endpoints, Filter, InferenceRequest, Parameters, PluginContext, ScoringState


class LabelMask:
    """Remembers the answer for every endpoint of the pool until the pool changes."""

    def __init__(self, holds: Callable[[Mapping[str, str]], bool]) -> None:
        """`holds` says whether an endpoint with these labels is kept."""
        self._holds = holds
        self._pool: object = None
        self._mask: BoolArray = np.empty(0, dtype=np.bool_)

    def of(self, endpoints: Endpoints) -> BoolArray:
        """True for each endpoint whose labels satisfy the condition. Shape `(len(endpoints),)`."""
        pool = endpoints.pool_members
        if pool is not self._pool:
            self._mask = np.array([self._holds(endpoint.labels) for endpoint in pool], dtype=np.bool_)
            self._pool = pool
        return endpoints.gather(self._mask)


class Operator(StrEnum):
    """How a label is compared."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"


class Requirement(BaseModel):
    """One condition on one label."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Annotated[str, Field(min_length=1, description="Label name.")]
    operator: Annotated[Operator, Field(description="`In`, `NotIn` (also true without the label), `Exists` or `DoesNotExist`.")]
    values: Annotated[tuple[str, ...], Field(description="Values for `In` and `NotIn`; none for the others.")] = ()

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> Self:
        takes_values = self.operator in (Operator.IN, Operator.NOT_IN)
        if takes_values and not self.values:
            raise ValueError(f"operator {self.operator} needs at least one value")
        if not takes_values and self.values:
            raise ValueError(f"operator {self.operator} takes no values")
        return self

    def holds_for(self, labels: Mapping[str, str]) -> bool:
        """Whether an endpoint with these labels meets the condition."""
        match self.operator:
            case Operator.IN:
                return labels.get(self.key) in self.values
            case Operator.NOT_IN:
                return labels.get(self.key) not in self.values
            case Operator.EXISTS:
                return self.key in labels
            case Operator.DOES_NOT_EXIST:
                return self.key not in labels


class LabelSelectorParameters(Parameters):
    """A Kubernetes label selector; all conditions must hold, and none at all selects everything."""

    match_labels: Annotated[
        Mapping[str, str], Field(alias="matchLabels", default_factory=dict, description="Labels an endpoint must have, with these values.")
    ]
    match_expressions: Annotated[tuple[Requirement, ...], Field(alias="matchExpressions", description="Further conditions on labels.")] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether an endpoint with these labels meets all conditions."""
        has_labels = all(labels.get(name) == value for name, value in self.match_labels.items())
        return has_labels and all(requirement.holds_for(labels) for requirement in self.match_expressions)


class LabelSelectorFilter(Filter[LabelSelectorParameters]):
    """Keep endpoints whose labels match the selector. Keeps none when none matches."""

    aliases = ("by-label-selector",)

    def __init__(self, name: str, parameters: LabelSelectorParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._mask = LabelMask(parameters.selects)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        """See the class."""
        return self._mask.of(endpoints)


ROLE_LABEL = "llm-d.ai/role"


class RoleFilter(Filter):
    """Keeps endpoints whose role is one of `roles`."""

    roles: ClassVar[frozenset[str]]
    keeps_unlabelled: ClassVar[bool] = False

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._mask = LabelMask(self._keeps)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        """See the class."""
        return self._mask.of(endpoints)

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        role = labels.get(ROLE_LABEL)
        return self.keeps_unlabelled if role is None else role in self.roles


class DecodeFilter(RoleFilter):
    """Keep endpoints that decode: role decode, prefill-decode, both or encode-prefill-decode, and those without a role label."""

    roles = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
    keeps_unlabelled = True


class PrefillFilter(RoleFilter):
    """Keep endpoints that prefill: role prefill, encode-prefill, prefill-decode, both or encode-prefill-decode."""

    roles = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})


class EncodeFilter(RoleFilter):
    """Keep endpoints that encode: role encode, encode-prefill or encode-prefill-decode."""

    roles = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})
