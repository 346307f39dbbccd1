"""`disaggregatedset-rollout-screener`: keeps each request within one revision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Literal, Self, TypeAlias

import numpy as np
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from endpick.api import (
    BoolArray,
    CandidateFilter,
    CycleState,
    Endpoint,
    Endpoints,
    InferenceRequest,
    LabelLimit,
    PluginContext,
    ResponseHead,
    ResponseObserver,
    RowArray,
    Stability,
)
from endpick.api.fast_metrics import Counts
from endpick_builtin.bindings import Bindings, LearntBindings
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.label_filters import LabelSelectorParameters, parse_selector

DECISION_ID = "x-llm-d-revision-decision-id"
_REQUEST_ID = "x-request-id"
_REMEMBERED_SECONDS = 180.0
_SWEEP_SECONDS = 10.0
_MOST_REMEMBERED = 100_000


GatingMode: TypeAlias = Literal["sum", "max-role", "disabled"]
"""The basis of a revision's share of the requests."""


class RevisionGating(CamelParameters):
    """How to choose a revision for requests that do not name one."""

    mode: Annotated[
        GatingMode,
        Field(description="Shares by the endpoints of all required roles (`sum`) or of the largest one (`max-role`), or no gating."),
    ]
    required_roles: Annotated[
        tuple[str, ...], Field(description="A revision needs an endpoint of each; `max-role` takes the first of equally large ones.")
    ] = ()
    revision_header_name: Annotated[
        str, Field(min_length=1, description="Header of requests and responses that names the revision."), AfterValidator(str.lower)
    ] = "x-llm-d-disagg-revision"
    revision_label_key: Annotated[str, Field(min_length=1, description="Label that names the revision.")] = (
        "disaggregatedset.x-k8s.io/revision"
    )
    role_label_key: Annotated[str, Field(min_length=1, description="Label that names the role.")] = "disaggregatedset.x-k8s.io/role"
    disable_coordination: Annotated[bool, Field(description="Draw a revision for each request, even if requests belong together.")] = False

    @model_validator(mode="after")
    def _names_roles(self) -> Self:
        if self.mode != "disabled" and not self.required_roles:
            raise ValueError(f"mode {self.mode} needs requiredRoles, the roles without which a revision gets no requests")
        return self


class RolloutScope(CamelParameters):
    """Selects the endpoints that belong to the deployment."""

    label_selector: Annotated[
        LabelSelectorParameters,
        BeforeValidator(parse_selector),
        WithJsonSchema({"type": ["string", "object"]}),
        Field(description="Labels of the deployment's endpoints, in kubectl syntax."),
    ]


class RolloutParameters(CamelParameters):
    """Selects the deployment's endpoints, and sets how revisions share the requests."""

    scope: Annotated[
        RolloutScope,
        Field(
            description="Which endpoints belong to the deployment.", examples=[{"labelSelector": "disaggregatedset.x-k8s.io/name=llama"}]
        ),
    ]
    revision_gating: Annotated[
        RevisionGating,
        Field(description="How a revision is chosen.", examples=[{"mode": "max-role", "requiredRoles": ["prefill", "decode"]}]),
    ]


@dataclass(frozen=True, slots=True)
class Revisions:
    """The revisions in a pool.

    `weights` are 0 for incomplete revisions; `number_of` holds each endpoint's index into `names`, or -1.
    """

    names: tuple[str, ...]
    weights: tuple[int, ...]
    number_of: RowArray

    @property
    def can_serve(self) -> bool:
        """Whether at least one revision is complete."""
        return any(self.weights)

    def servable(self, revision: str | None) -> int | None:
        """Return the revision's index into `names`, or None if it is unknown or incomplete."""
        number = self.names.index(revision) if revision in self.names else None
        return number if number is not None and self.weights[number] else None


def revisions_of(pool: Sequence[Endpoint], parameters: RolloutParameters) -> Revisions:
    """Group the pool by revision, and weigh the revisions; without gating all are complete."""
    gating, selector = parameters.revision_gating, parameters.scope.label_selector
    found = [endpoint.labels.get(gating.revision_label_key, "") if selector.selects(endpoint.labels) else "" for endpoint in pool]
    counts: dict[str, Counter[str]] = {revision: Counter() for revision in sorted(set(found)) if revision}
    for endpoint, revision in zip(pool, found, strict=True):
        if revision:
            counts[revision][endpoint.labels.get(gating.role_label_key, "")] += 1
    number = {revision: position for position, revision in enumerate(counts)}
    numbers = np.array([number.get(revision, -1) for revision in found], dtype=np.intp)
    return Revisions(tuple(counts), tuple(_weights(list(counts.values()), gating)), numbers)


def _weights(counts: Sequence[Counter[str]], gating: RevisionGating) -> Iterator[int]:
    if gating.mode == "disabled":
        yield from (by_role.total() for by_role in counts)
        return
    roles = gating.required_roles
    complete = [all(by_role[role] for role in roles) for by_role in counts]
    totals = {role: sum(by_role[role] for by_role, is_complete in zip(counts, complete, strict=True) if is_complete) for role in roles}
    weighed = (max(totals, key=totals.__getitem__),) if gating.mode == "max-role" else tuple(totals)
    for by_role, is_complete in zip(counts, complete, strict=True):
        yield sum(by_role[role] for role in weighed) if is_complete else 0


class _RevisionShares(Collector):
    def __init__(self, revisions: Callable[[], Revisions], mode: GatingMode) -> None:
        self._revisions = revisions
        self._mode = mode
        self._label = LabelLimit()

    def describe(self) -> tuple[GaugeMetricFamily]:
        text = "Share of the requests without a revision header that a revision gets."
        return (GaugeMetricFamily("llm_d_epp_disaggregatedset_revision_gating_share", text, labels=("mode", "revision")),)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        revisions = self._revisions()
        total = sum(revisions.weights) or 1
        shares: dict[str, float] = {}
        for name, weight in zip(revisions.names, revisions.weights, strict=True):
            label = self._label(name)
            shares[label] = shares.get(label, 0.0) + weight / total
        (family,) = self.describe()
        for label, share in shares.items():
            family.add_metric((self._mode, label), share)
        yield family


class RolloutScreener(CandidateFilter[RolloutParameters], ResponseObserver[RolloutParameters], LearntBindings):
    """Sends each request to one revision of a deployment with several roles, so that revisions do not mix.

    Revisions within `scope` that lack a required role are excluded. The revision header chooses one; without it a revision is drawn,
    weighted by the endpoints of its required roles (`sum`), or of the role with the most endpoints in all complete revisions (`max-role`).
    Without endpoints the request gets 503. While there are several revisions, requests with the same `x-llm-d-revision-decision-id`, or
    else `x-request-id`, get the same one for three minutes, also from other pickers. Responses carry
    the serving endpoint's revision.
    """

    stability = Stability.EXPERIMENTAL

    def __init__(self, name: str, parameters: RolloutParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        gating = self._gating = parameters.revision_gating
        self._gated = gating.mode != "disabled"
        self._pool: object = None
        self._revisions = Revisions((), (), np.empty(0, dtype=np.intp))
        self._bindings = Bindings(_REMEMBERED_SECONDS, _SWEEP_SECONDS, _MOST_REMEMBERED, context)
        self._unmatched = Counts(
            "llm_d_epp_disaggregatedset_strict_revision_no_match_total",
            "Requests whose header names a revision that no candidate has.",
            (),
            context.registry,
        ).labels()
        if context.registry is not None and self._gated:
            context.registry.register(_RevisionShares(lambda: self._revisions, gating.mode))

    def filter_candidates(self, request: InferenceRequest, endpoints: Endpoints) -> BoolArray:
        if endpoints.pool_members is not self._pool:
            self._pool = endpoints.pool_members
            self._revisions = revisions_of(endpoints.pool_members, self.parameters)
        named = request.headers.get(self._gating.revision_header_name)
        if not named and not self._gated:
            return np.ones(len(endpoints), dtype=np.bool_)
        number = self._revisions.servable(named) if named else self._chosen(request)
        keep: BoolArray = endpoints.gather(self._revisions.number_of) == number
        if number is None:
            keep = np.zeros(len(endpoints), dtype=np.bool_)
        if named and not keep.any():
            self._unmatched.inc()
        return keep

    def response_started(self, request: InferenceRequest, head: ResponseHead, state: CycleState) -> Mapping[str, str]:
        revision = None if head.endpoint is None else head.endpoint.labels.get(self._gating.revision_label_key)
        return {self._gating.revision_header_name: revision} if revision else {}

    def _chosen(self, request: InferenceRequest) -> int | None:
        revisions = self._revisions
        if not revisions.can_serve:
            return None
        decision = ""
        if len(revisions.names) > 1 and not self._gating.disable_coordination:
            decision = request.headers.get(DECISION_ID) or request.headers.get(_REQUEST_ID) or ""
        made = revisions.servable(self._bindings.name_of(decision)) if decision else None
        if made is not None:
            return made
        draws = Random(decision) if decision else self.context.random  # noqa: S311 - all pickers must draw the same
        [drawn] = draws.choices(range(len(revisions.names)), revisions.weights)
        if decision:
            self._bindings.bind(decision, revisions.names[drawn])
        return drawn
