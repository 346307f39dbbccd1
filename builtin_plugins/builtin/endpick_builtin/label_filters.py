"""Filters by labels, roles and addresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar, Generic, Literal, Self, TypeVar

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from endpick.api import (
    BoolArray,
    Endpoint,
    Endpoints,
    Filter,
    InferenceRequest,
    Parameters,
    PluginContext,
    RowArray,
    ScoringState,
    Stability,
)
from endpick.api.plugin import P
from endpick_builtin.camel_parameters import CamelParameters

T = TypeVar("T")


class PerPool(Generic[T]):
    """Caches a value computed from the pool, until the pool changes."""

    def __init__(self, work: Callable[[tuple[Endpoint, ...]], T]) -> None:
        self._work = work
        self._pool: object = None
        self._found: T | None = None

    def of(self, endpoints: Endpoints) -> T:
        pool = endpoints.pool_members
        if pool is not self._pool:
            self._found = self._work(pool)
            self._pool = pool
        return self._found  # type: ignore[return-value]


class LabelValues:
    """Compares one label across the pool; labels are read once per pool."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._codes = PerPool(self._coded)

    def equal(self, endpoints: Endpoints, value: str) -> BoolArray:
        codes, code_of = self._codes.of(endpoints)
        found: BoolArray = endpoints.gather(codes) == code_of.get(value, _UNKNOWN_VALUE)
        return found

    def _coded(self, pool: tuple[Endpoint, ...]) -> tuple[RowArray, dict[str | None, int]]:
        code_of: dict[str | None, int] = {}
        codes = [code_of.setdefault(endpoint.labels.get(self._label), len(code_of)) for endpoint in pool]
        return np.array(codes, dtype=np.intp), code_of


_UNKNOWN_VALUE = -1


class Requirement(CamelParameters):
    """A condition on one label, as in a Kubernetes selector."""

    key: Annotated[str, Field(min_length=1, description="Label name.")]
    operator: Annotated[
        Literal["In", "NotIn", "Exists", "DoesNotExist"],
        Field(description="`In`, `NotIn` (also true without the label), `Exists` or `DoesNotExist`."),
    ]
    values: Annotated[tuple[str, ...], Field(description="Values for `In` and `NotIn`; none for the others.")] = ()

    @model_validator(mode="after")
    def _values_fit_the_operator(self) -> Self:
        takes_values = self.operator in ("In", "NotIn")
        if takes_values and not self.values:
            raise ValueError(f"operator {self.operator} needs at least one value")
        if not takes_values and self.values:
            raise ValueError(f"operator {self.operator} takes no values")
        return self

    def holds_for(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels


class LabelSelectorParameters(CamelParameters):
    """A Kubernetes label selector; an empty one selects everything."""

    match_labels: Annotated[Mapping[str, str], Field(default_factory=dict, description="Labels an endpoint must have, with these values.")]
    match_expressions: Annotated[tuple[Requirement, ...], Field(description="Further conditions on labels.")] = ()

    def selects(self, labels: Mapping[str, str]) -> bool:
        has_labels = all(labels.get(name) == value for name, value in self.match_labels.items())
        return has_labels and all(requirement.holds_for(labels) for requirement in self.match_expressions)


_TERM = re.compile(r"\s*(?:(!)?\s*([\w./-]+)|([\w./-]+)\s*(==?|!=)\s*([\w.-]*)|([\w./-]+)\s+(in|notin)\s*\(([^()]*)\))\s*", re.ASCII)


def parse_selector(selector: object) -> object:
    """Parse a selector in kubectl's syntax, such as `app=vllm,env in (a, b)`; raises ValueError.

    Returns it as a mapping, and values other than text unchanged.
    """
    if not isinstance(selector, str):
        return selector
    expressions: list[dict[str, object]] = []
    for term in re.split(r",(?![^(]*\))", selector) if selector.strip() else ():
        found = _TERM.fullmatch(term)
        if found is None:
            raise ValueError(f"'{term.strip()}' is no label selector; write for example app=vllm or env in (a, b)")
        absent, label, key, equals, value, listed, among, values = found.groups()
        if label:
            expressions.append({"key": label, "operator": "DoesNotExist" if absent else "Exists"})
            continue
        negative = equals == "!=" or among == "notin"
        chosen = (value,) if equals else tuple(item.strip() for item in values.split(","))
        expressions.append({"key": key or listed, "operator": "NotIn" if negative else "In", "values": chosen})
    return {"matchExpressions": expressions}


class LabelFilter(Filter[P]):
    """Base of filters whose condition on labels is evaluated once per pool."""

    def __init__(self, name: str, parameters: P, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._masks = PerPool(lambda pool: np.array([self._keeps(endpoint.labels) for endpoint in pool], dtype=np.bool_))

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray:
        return endpoints.gather(self._masks.of(endpoints))

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        raise NotImplementedError


class LabelSelectorFilter(LabelFilter[LabelSelectorParameters]):
    """Keeps endpoints that match the selector, possibly none."""

    aliases = ("by-label-selector",)

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        return self.parameters.selects(labels)


class ByLabelParameters(CamelParameters):
    """A label and its valid values."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"label": "llm-d.ai/role", "validValues": ["decode", "both"]}]})

    label: Annotated[str, Field(min_length=1, description="Label name.", examples=["llm-d.ai/role"])]
    valid_values: Annotated[tuple[str, ...], Field(description="Values of the label that are kept.", examples=[["decode", "both"]])] = ()
    allows_no_label: Annotated[bool, Field(description="Keep endpoints without the label, too.")] = False

    @model_validator(mode="after")
    def _keeps_something(self) -> Self:
        if not self.valid_values and not self.allows_no_label:
            raise ValueError("validValues is empty and allowsNoLabel is false, so that no endpoint could be kept")
        return self


class ByLabelFilter(LabelFilter[ByLabelParameters]):
    """Keeps endpoints with a valid label value or, with `allowsNoLabel`, without the label; possibly none."""

    stability = Stability.DEPRECATED
    replaced_by = "label-selector-filter"

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.parameters.label)
        return self.parameters.allows_no_label if value is None else value in self.parameters.valid_values


ROLE_LABEL = "llm-d.ai/role"


class RoleFilter(LabelFilter):
    """Keeps endpoints with one of `roles`."""

    roles: ClassVar[frozenset[str]]
    keeps_unlabelled: ClassVar[bool] = False

    def _keeps(self, labels: Mapping[str, str]) -> bool:
        role = labels.get(ROLE_LABEL)
        return self.keeps_unlabelled if role is None else role in self.roles


class DecodeFilter(RoleFilter):
    """Keeps endpoints that decode: role decode, prefill-decode, both, encode-prefill-decode or none."""

    roles = frozenset({"decode", "prefill-decode", "both", "encode-prefill-decode"})
    keeps_unlabelled = True


class PrefillFilter(RoleFilter):
    """Keeps endpoints that prefill: role prefill, encode-prefill, prefill-decode, both or encode-prefill-decode."""

    roles = frozenset({"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"})


class EncodeFilter(RoleFilter):
    """Keeps endpoints that encode: role encode, encode-prefill or encode-prefill-decode."""

    roles = frozenset({"encode", "encode-prefill", "encode-prefill-decode"})


HEADER = "test-epp-endpoint-selection"


class HeaderBasedTestingFilter(Filter):
    """Keeps the endpoints listed in the header `test-epp-endpoint-selection`, in its order. For tests only.

    The header lists `host` (all its ports) or `host:port`, separated by commas; without a candidate in it, none is kept. Not for
    production: clients could choose their endpoint.
    """

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._named = PerPool(_by_address)

    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> Endpoints:
        named = self._named.of(endpoints)
        places = (place.strip().lower() for place in request.headers.get(HEADER, "").split(","))
        wanted = dict.fromkeys(name for place in places for name in named.get(place, ()))
        positions = (endpoints.position(name) for name in wanted)
        return endpoints.take([position for position in positions if position is not None])


def _by_address(pool: tuple[Endpoint, ...]) -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    for endpoint in pool:
        for place in dict.fromkeys((endpoint.address, endpoint.host, f"[{endpoint.host}]")):
            names.setdefault(place.lower(), []).append(endpoint.name)
    return names
