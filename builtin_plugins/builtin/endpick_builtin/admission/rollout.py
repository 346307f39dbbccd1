"""`disaggregatedset-rollout-screener`: keeps each request within one revision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Self

import numpy as np
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from endpick.api import (
    BoolArray,
    CandidateFilter,
    CycleState,
    Endpoint,
    Endpoints,
    InferenceRequest,
    LabelLimit,
    Parameters,
    PluginContext,
    ResponseHead,
    ResponseObserver,
    RowArray,
    Stability,
)
from endpick.api.fast_metrics import Counts
from endpick_builtin.label_filters import LabelSelectorParameters


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class SelectorMode(StrEnum):
    """The effect of a header selector."""

    STRICT = "strict"
    PREFER = "prefer"


class GatingMode(StrEnum):
    """The basis of a revision's share of the requests."""

    SUM = "sum"
    MAX_ROLE = "max-role"
    DISABLED = "disabled"


class HeaderSelector(_Part):
    """A header that names the value of a label."""

    name: Annotated[str, Field(min_length=1, description="Name in messages and metrics.")]
    header_name: Annotated[str, Field(alias="headerName", min_length=1, description="The header; letter case does not matter.")]
    label_key: Annotated[str, Field(alias="labelKey", min_length=1, description="Label to compare with the header.")]
    mode: Annotated[
        SelectorMode,
        Field(description="`strict`: only endpoints with this value; `prefer`: left to `header-label-affinity-scorer`."),
    ]

    @field_validator("header_name")
    @classmethod
    def _in_lower_case(cls, name: str) -> str:
        return name.lower()


class RequiredRoles(_Part):
    """Roles that every revision needs."""

    values: Annotated[tuple[str, ...], Field(description="Values of the role label; a revision needs an endpoint of each.")] = ()


class RevisionGating(_Part):
    """How to choose a revision for requests that do not name one."""

    revision_label_key: Annotated[str, Field(alias="revisionLabelKey", min_length=1, description="Label that names the revision.")] = (
        "disaggregatedset.x-k8s.io/revision"
    )
    role_label_key: Annotated[str, Field(alias="roleLabelKey", min_length=1, description="Label that names the role.")] = (
        "disaggregatedset.x-k8s.io/role"
    )
    mode: Annotated[
        GatingMode,
        Field(description="Shares by all endpoints of a revision (`sum`), by those of its largest role (`max-role`), or no gating."),
    ] = GatingMode.SUM
    require_roles: Annotated[RequiredRoles, Field(alias="requireRoles", description="Roles without which a revision gets no requests.")] = (
        RequiredRoles()
    )


class RolloutScope(_Part):
    """The endpoints of the deployment."""

    label_selector: Annotated[LabelSelectorParameters, Field(alias="labelSelector", description="Labels of the deployment's endpoints.")]


class RolloutParameters(Parameters):
    """Scope, headers and gating."""

    scope: Annotated[
        RolloutScope,
        Field(description="Which endpoints belong to the deployment.", examples=[{"labelSelector": {"matchLabels": {"app": "llama"}}}]),
    ]
    header_selectors: Annotated[
        tuple[HeaderSelector, ...], Field(alias="headerSelectors", description="Headers with which clients choose by label.")
    ] = ()
    revision_gating: Annotated[
        RevisionGating,
        Field(alias="revisionGating", description="How a revision is chosen for other requests.", examples=[{"mode": "sum"}]),
    ]

    @model_validator(mode="after")
    def _selectors_differ(self) -> Self:
        for field in ("name", "header_name"):
            [(value, times)] = Counter(getattr(each, field) for each in self.header_selectors).most_common(1) or [("", 0)]
            if times > 1:
                raise ValueError(f"two headerSelectors have the {field.replace('_', ' ')} '{value}'")
        return self


@dataclass(frozen=True, slots=True)
class Revisions:
    """Servable revisions and their weights, incomplete ones, and per endpoint the index into `names` or -1."""

    names: tuple[str, ...]
    incomplete: tuple[str, ...]
    weights: tuple[int, ...]
    number_of: RowArray


def revisions_of(pool: Sequence[Endpoint], parameters: RolloutParameters) -> Revisions:
    """The revisions."""
    gating, selector = parameters.revision_gating, parameters.scope.label_selector
    found = [endpoint.labels.get(gating.revision_label_key, "") if selector.selects(endpoint.labels) else "" for endpoint in pool]
    roles: dict[str, Counter[str]] = {}
    for endpoint, revision in zip(pool, found, strict=True):
        if revision:
            roles.setdefault(revision, Counter())[endpoint.labels.get(gating.role_label_key, "")] += 1
    whole = {revision: counts for revision, counts in sorted(roles.items()) if counts.keys() >= set(gating.require_roles.values)}
    weigh = max if gating.mode is GatingMode.MAX_ROLE else sum
    number = {revision: position for position, revision in enumerate(whole)}
    numbers = np.array([number.get(revision, -1) for revision in found], dtype=np.intp)
    incomplete = tuple(sorted(roles.keys() - whole.keys()))
    return Revisions(tuple(whole), incomplete, tuple(weigh(counts.values()) for counts in whole.values()), numbers)


class _RevisionShares(Collector):
    def __init__(self, revisions: Callable[[], Revisions], mode: GatingMode) -> None:
        self._revisions = revisions
        self._mode = mode
        self._label = LabelLimit()

    def describe(self) -> tuple[GaugeMetricFamily]:
        text = "Share of the requests without a strict header that a revision gets."
        return (GaugeMetricFamily("llm_d_epp_disaggregatedset_revision_gating_share", text, labels=("mode", "revision")),)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        revisions, total = self._revisions(), sum(self._revisions().weights)
        shares = {self._label(name): 0.0 for name in (*revisions.incomplete, *revisions.names)}
        for name, weight in zip(revisions.names, revisions.weights, strict=True):
            shares[self._label(name)] += weight / total
        (family,) = self.describe()
        for label, share in shares.items():
            family.add_metric((self._mode.value, label), share)
        yield family


class RolloutScreener(CandidateFilter[RolloutParameters], ResponseObserver[RolloutParameters]):
    """Sends each request to one revision of a deployment with several roles, so that revisions do not mix.

    Revisions within `scope` that lack a required role are excluded. Headers of strict selectors choose endpoints with equal labels; without
    them a revision is drawn, weighted by its endpoints (`sum`) or those of its largest role (`max-role`). Without endpoints the request
    gets 503. Responses carry the serving endpoint's labels in the selectors' headers.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: RolloutParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._gated = parameters.revision_gating.mode is not GatingMode.DISABLED
        self._strict = tuple(each for each in parameters.header_selectors if each.mode is SelectorMode.STRICT)
        self._pool: object = None
        self._revisions = Revisions((), (), (), np.empty(0, dtype=np.intp))
        self._unmatched = Counts(
            "llm_d_epp_disaggregatedset_strict_header_no_match_total",
            "Requests whose strict header names a label value that no candidate has.",
            ("selector",),
            context.registry,
        )
        if context.registry is not None and self._gated:
            context.registry.register(_RevisionShares(lambda: self._revisions, parameters.revision_gating.mode))

    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray:
        chosen = [(each, request.headers[each.header_name]) for each in self._strict if request.headers.get(each.header_name)]
        keep = self._gate(endpoints, draws=not chosen) if self._gated else np.ones(len(endpoints), dtype=np.bool_)
        for selector, value in chosen:
            keep &= np.array([endpoint.labels.get(selector.label_key) == value for endpoint in endpoints], dtype=np.bool_)
            if not keep.any():
                self._unmatched.labels(selector.name).inc()
                break
        return keep

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str]:
        if head.endpoint is None:
            return {}
        labels = head.endpoint.labels
        return {each.header_name: labels[each.label_key] for each in self.parameters.header_selectors if each.label_key in labels}

    def _gate(self, endpoints: Endpoints, *, draws: bool) -> BoolArray:
        if endpoints.pool_members is not self._pool:
            self._pool = endpoints.pool_members
            self._revisions = revisions_of(endpoints.pool_members, self.parameters)
        revisions = self._revisions
        numbers = endpoints.gather(revisions.number_of)
        if not draws or not revisions.names:
            whole: BoolArray = numbers >= 0
            return whole
        [drawn] = self.context.random.choices(range(len(revisions.names)), revisions.weights)
        of_one: BoolArray = numbers == drawn
        return of_one
