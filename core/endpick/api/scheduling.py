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
    """Candidates with their weighted totals: `scores` has shape `(len(endpoints),)`, in the same order."""

    endpoints: Endpoints
    scores: FloatArray

    def take(self, positions: Sequence[int] | RowArray) -> Endpoints:
        """See `Endpoints.take`."""
        return self.endpoints.take(positions)


@dataclass(frozen=True, slots=True)
class ProfileRunResult:
    """The result of one profile run.

    Attributes:
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
        TypeError, ValueError: a field has the wrong type, or a header is not allowed in HTTP.
    """

    primary: str
    runs: Mapping[str, ProfileRunResult]
    destinations: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    removed_headers: tuple[str, ...] = ()

    @classmethod
    def failed(cls, why: str) -> SchedulingResult:
        """The result when no run can serve. The client gets 429 with this sentence."""
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
    """The purpose of a scorer, shown to operators. No effect on routing."""

    AFFINITY = "affinity"
    DISTRIBUTION = "distribution"
    BALANCE = "balance"


class Filter(Plugin[P]):
    """Decides which endpoints may serve a request."""

    kind: ClassVar[str] = "filter"

    @abstractmethod
    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        """Keep a subset of the endpoints.

        Called once per profile run, in profile order, with the endpoints earlier filters kept.

        Returns:
            Boolean array of shape `(len(endpoints),)`, or a view made with `endpoints.where`, `.only` or `.take`. If none is left, the
            profile run fails and the handler decides.
        """


class Scorer(Plugin[P]):
    """Rates endpoints."""

    kind: ClassVar[str] = "scorer"

    category: ClassVar[Category | None] = None

    @abstractmethod
    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint; 1 is best, 0 is worst.

        Called once per profile run, after all filters, never with an empty view.

        Returns:
            Finite float array of shape `(len(endpoints),)`, which the host clamps to 0..1. NaN or another shape is a fault.
        """


class PerEndpointScorer(Scorer[P]):
    """A scorer for one endpoint at a time; slow beyond thirty endpoints."""

    @abstractmethod
    def score_endpoint(self, request: InferenceRequest, endpoint: EndpointRow, state: ScoringState) -> float:
        """Rate one endpoint; 1 is best, 0 is worst."""

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint with `score_endpoint`."""
        return np.fromiter((self.score_endpoint(request, row, state) for row in endpoints.each()), np.float64, len(endpoints))


class Picker(Plugin[P]):
    """Chooses among rated endpoints."""

    kind: ClassVar[str] = "picker"

    uses_scores: ClassVar[bool] = True
    """False if the choice ignores totals; the host then warns about scorers."""

    @abstractmethod
    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """Choose at least one endpoint, best first; the rest are fallbacks.

        Called once per profile run, never with an empty view. Draw with `self.context.random`; return `scored.take(positions)`.
        """


class ProfileHandler(Plugin[P]):
    """Decides which scheduling profiles run, and combines their results."""

    kind: ClassVar[str] = "profile-handler"

    most_profiles: ClassVar[int | None] = None
    """Maximum number of scheduling profiles; None for any number."""

    @classmethod
    def required_profiles(cls, parameters: P) -> tuple[str, ...]:
        """Required profiles, checked at start."""
        return ()

    @classmethod
    def optional_profiles(cls, parameters: P) -> tuple[str, ...]:
        """Optional profiles; the host warns at start if one is missing."""
        return ()

    @abstractmethod
    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Sequence[str],
        results: Mapping[str, ProfileRunResult],
        state: CycleState,
    ) -> Sequence[str]:
        """Name the profiles to run next; none ends the loop.

        Called repeatedly, first with empty `results`, until it names none or every profile has run. Naming a profile twice, or an unknown
        one, is a fault. `profiles` are all profiles, in order; `results` are by profile name; the next profiles can read `state`.
        """

    @abstractmethod
    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        """The decision, or `SchedulingResult.failed(sentence)`. Called after at least one run."""


class DisaggregationDecider(Plugin[P]):
    """Decides if a stage of a disaggregated request (prefill, encode) runs on its own server.

    A profile handler names it in a parameter marked `RefersTo(DisaggregationDecider)`.
    """

    kind: ClassVar[str] = "disaggregation-decider"

    @abstractmethod
    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """True to run the stage on its own server.

        Called after the decode stage has picked `endpoint`, a view of length 1. A decider that fails counts as False.
        """
