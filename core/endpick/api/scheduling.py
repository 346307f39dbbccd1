"""The kinds of a scheduling profile: filters, scorers, a picker, and the handler that runs profiles.

All run synchronously on the request path: no I/O. If one raises, its `onFault` decides: by default scorers are skipped, while filters and
pickers refuse the request.
"""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from endpick.api.endpoints import BoolArray, EndpointRow, Endpoints, FloatArray, RowArray
from endpick.api.plugin import P, Plugin
from endpick.api.request import Fields, InferenceRequest, check_headers, check_types
from endpick.api.state import CycleState, ScoringState


@dataclass(frozen=True, slots=True)
class ScoredEndpoints:
    """Candidates with their weighted totals, as pickers get them.

    Attributes:
        endpoints: The endpoints that the filters kept.
        scores: Sum of weight times score over the profile's scorers, shape `(len(endpoints),)`, in the same order.
    """

    endpoints: Endpoints
    scores: FloatArray

    def take(self, positions: Sequence[int] | RowArray) -> Endpoints:
        """Return a view of the endpoints at these positions, in the given order.

        Pickers return it. Raises IndexError for a position outside the view.
        """
        return self.endpoints.take(positions)


@dataclass(frozen=True, slots=True)
class ProfileRunResult:
    """The result of one profile run.

    Attributes:
        profile: Name of the profile.
        picked: Best first; the rest are fallbacks. None if the run failed.
        scored: Candidates that passed the filters, with totals; None if none did.
        failure: Why nothing was picked; None on success.
        fault: True if a plugin's fault ended the run.
    """

    profile: str
    picked: Endpoints | None
    scored: ScoredEndpoints | None = None
    failure: str | None = None
    fault: bool = False


_SCHEDULING_RESULT: Fields = (
    ("primary", str),
    ("runs", (dict, Mapping)),
    ("destinations", tuple),
    ("failure", str),
    ("removed_headers", tuple),
)


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The decision: the primary profile's pick, and the picks of other profiles.

    Attributes:
        primary: Name of the profile with the pick for the gateway.
        runs: All runs by profile name; `runs[primary]` succeeded.
        destinations: `host:port`, best first, at least one. Usually the primary's pick.
        headers: Added to the request.
        failure: A sentence for the client if there is no decision. See `failed`.
        removed_headers: Removed from the request; `headers` wins.

    Raises:
        TypeError, ValueError: A field has the wrong type, or a header is not allowed in HTTP.
    """

    primary: str
    runs: Mapping[str, ProfileRunResult]
    destinations: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    removed_headers: tuple[str, ...] = ()

    @classmethod
    def failed(cls, why: str) -> SchedulingResult:
        """Return the result for the case that no run can serve.

        The client gets this sentence with status 429; with status 500 if the fault of a plugin ended a run.
        """
        return cls("", {}, (), failure=why)

    def __post_init__(self) -> None:
        check_types(self, _SCHEDULING_RESULT)
        for name, values in (("destinations", self.destinations), ("removed_headers", self.removed_headers)):
            for value in values:
                if not isinstance(value, str):
                    raise TypeError(f"{name} of a SchedulingResult must hold strings, not {type(value).__name__}")
        if self.headers:
            check_headers(self.headers.items())


class Category(enum.StrEnum):
    """The purpose of a scorer, shown to operators. It has no effect on routing."""

    AFFINITY = "affinity"
    """The scorer prefers endpoints with state of the request, such as a cached prefix."""
    DISTRIBUTION = "distribution"
    """The scorer prefers endpoints with little load."""
    BALANCE = "balance"
    """The scorer weighs affinity against load."""


class Filter(Plugin[P]):
    """Decides which endpoints may serve a request."""

    kind: ClassVar[str] = "filter"

    @abstractmethod
    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        """Keep a subset of the endpoints.

        The scheduler calls it once per profile run, in profile order, with the endpoints that earlier filters kept. After a fault the
        request is refused, unless `onFault` skips the filter.

        Returns:
            Boolean array of shape `(len(endpoints),)`, or a view made with `endpoints.where`, `.only` or `.take`. If none is left, the
            profile run fails and the handler decides.
        """


class Scorer(Plugin[P]):
    """Rates the endpoints that the filters of a profile kept."""

    kind: ClassVar[str] = "scorer"

    category: ClassVar[Category | None] = None
    """The purpose of the scorer, for `endpick describe`; None for none."""

    @abstractmethod
    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint; 1 is best, 0 is worst.

        The scheduler calls it once per profile run, after all filters, never with an empty view. It multiplies the scores by the scorer's
        weight in the profile, and adds them up for the picker. After a fault the profile goes on without the scorer, unless `onFault`
        refuses the request.

        Returns:
            Finite float array of shape `(len(endpoints),)`, clamped to 0..1 by the host. NaN or another shape is a fault.
        """


class PerEndpointScorer(Scorer[P]):
    """A scorer for one endpoint at a time; slow beyond thirty endpoints."""

    @abstractmethod
    def score_endpoint(self, request: InferenceRequest, endpoint: EndpointRow, state: ScoringState) -> float:
        """Rate one endpoint; 1 is best, 0 is worst.

        `score` calls it for each endpoint, in order. Return a finite number; the host clamps it to 0..1.
        """

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint with `score_endpoint`; see `Scorer.score`."""
        return np.fromiter((self.score_endpoint(request, row, state) for row in endpoints.each()), np.float64, len(endpoints))


class Picker(Plugin[P]):
    """Chooses among the rated endpoints of a profile run. A profile has one."""

    kind: ClassVar[str] = "picker"

    uses_scores: ClassVar[bool] = True
    """False if the choice ignores totals; the planner then warns about scorers in the profile."""

    @abstractmethod
    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """Choose at least one endpoint, best first; the rest are fallbacks.

        The scheduler calls it once per profile run, after all scorers, never with an empty view. Draw with `self.context.random`. After a
        fault the request is refused; if `onFault` skips the picker, the endpoint with the highest total is picked.

        Returns:
            A view of candidates, each at most once, such as `scored.take(positions)`.
        """


class ProfileHandler(Plugin[P]):
    """Decides which scheduling profiles run, and combines their results.

    A configuration has one.
    """

    kind: ClassVar[str] = "profile-handler"

    most_profiles: ClassVar[int | None] = None
    """Maximum number of scheduling profiles, checked by the planner; None for any number."""

    @classmethod
    def required_profiles(cls, parameters: P) -> tuple[str, ...]:
        """Return the names of profiles that must exist.

        The planner calls it, and refuses a configuration without one of them. Default: none.
        """
        return ()

    @classmethod
    def optional_profiles(cls, parameters: P) -> tuple[str, ...]:
        """Return the names of profiles that the handler runs if they exist.

        The planner calls it, and warns if one is missing. Default: none.
        """
        return ()

    @abstractmethod
    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Sequence[str],
        results: Mapping[str, ProfileRunResult],
        state: CycleState,
    ) -> Sequence[str]:
        """Return the names of the profiles to run next; none ends the loop.

        The scheduler calls it repeatedly, first with empty `results`, until it names none or every profile has run. `profiles` are all
        profiles, in order; `results` are by profile name. The next profiles can read values that it puts into `state`. Naming a profile
        twice, or an unknown one, is a fault.
        """

    @abstractmethod
    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        """Return the decision, or `SchedulingResult.failed(sentence)`.

        The scheduler calls it once per request, after at least one run. A decision without destinations, or for a profile that picked
        nothing, is a fault.
        """


class DisaggregationDecider(Plugin[P]):
    """Decides if a stage of a disaggregated request (prefill, encode) runs on its own server.

    A profile handler names it in a parameter marked `RefersTo(DisaggregationDecider)`.
    """

    kind: ClassVar[str] = "disaggregation-decider"

    @abstractmethod
    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """Return True to run the stage on its own server.

        The profile handler calls it after the decode stage has picked `endpoint`, a view of length 1. After a fault it counts as False,
        unless `onFault` refuses the request.
        """
