"""The kinds of a scheduling profile: filters, scorers, a picker, and the handler that runs profiles.

All of them run on the request path, synchronously, in one thread: no I/O, no waiting, no locks. Whatever they raise is a fault of theirs;
`onFault` on the plugin entry says what happens then (scorers are skipped by default, filters and pickers refuse the request).
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
from endpick.api.request import InferenceRequest, Kinds, check_fields, check_headers, check_strings
from endpick.api.state import CycleState, ScoringState


@dataclass(frozen=True, slots=True)
class ScoredEndpoints:
    """Candidates with their weighted totals, in the same order. Shape of `scores`: `(len(endpoints),)`."""

    endpoints: Endpoints
    scores: FloatArray

    def take(self, positions: Sequence[int] | RowArray) -> Endpoints:
        """The endpoints at these positions, in the order given. Raises IndexError outside the candidates."""
        return self.endpoints.take(positions)


@dataclass(frozen=True, slots=True)
class ProfileRunResult:
    """What one run of one scheduling profile came to.

    Attributes:
        profile: Name of the scheduling profile.
        picked: Best first; the rest are fallbacks. None when the run failed.
        scored: All candidates that passed the filters, with their totals; None when none did.
        failure: Why nothing was picked, for people; None on success.
        fault: True when a plugin's fault ended the run, not a lack of endpoints.
    """

    profile: str
    picked: Endpoints | None
    scored: ScoredEndpoints | None = None
    failure: str | None = None
    fault: bool = False


_SCHEDULING_RESULT: Kinds = (
    ("primary", str),
    ("runs", (dict, Mapping)),  # `dict` first: to ask an abstract class takes three calls
    ("destinations", tuple),
    ("headers", (dict, Mapping)),
    ("failure", str),
    ("removed_headers", tuple),
)


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The decision: which profile's pick serves the request, and what the other profiles picked.

    Attributes:
        primary: Name of the profile whose pick the gateway is told.
        runs: Every run, by profile name; `runs[primary]` succeeded.
        destinations: `host:port`, best first, at least one. The primary's pick unless the handler says otherwise.
        headers: Headers the handler adds to the request on its way to the model server.
        failure: Why there is no decision, as a sentence for the client; empty for a decision. See `failed`.
        removed_headers: Names of headers that the request loses on its way, whatever the client put there. One that is in `headers`, too,
            is set.

    Raises:
        TypeError: a field is not what it has to be; raised where the profile handler makes the result.
    """

    primary: str
    runs: Mapping[str, ProfileRunResult]
    destinations: tuple[str, ...]
    headers: Mapping[str, str] = field(default_factory=dict)
    failure: str = ""
    removed_headers: tuple[str, ...] = ()

    @classmethod
    def failed(cls, why: str) -> SchedulingResult:
        """What a handler returns when no run serves the request; the client gets 429 with this sentence and the failures of the runs."""
        return cls("", {}, (), failure=why)

    def __post_init__(self) -> None:
        check_fields(self, _SCHEDULING_RESULT)
        check_strings(self, "destinations", self.destinations)
        check_strings(self, "removed_headers", self.removed_headers)
        check_headers(self.headers.items())


class Category(enum.StrEnum):
    """What a scorer is after; shown to operators, without effect on routing."""

    AFFINITY = "affinity"
    DISTRIBUTION = "distribution"
    BALANCE = "balance"


class Filter(Plugin[P]):
    """Says which endpoints may serve a request."""

    kind: ClassVar[str] = "filter"

    @abstractmethod
    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray | Endpoints:
        """Keep some of the endpoints.

        Called once per profile run, in the order of the profile, with what earlier filters kept.

        Returns:
            Boolean array of shape `(len(endpoints),)`, True keeps the endpoint; or a view made with `endpoints.where`, `.only` or `.take`.
            Keeping none is a valid answer: the profile run then fails and the handler decides.
        """


class Scorer(Plugin[P]):
    """Rates endpoints."""

    kind: ClassVar[str] = "scorer"

    category: ClassVar[Category | None] = None
    """See `Category`; None when the author does not say."""

    @abstractmethod
    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint; 1 is best, 0 is worst.

        Called once per profile run, after all filters, never with an empty view.

        Returns:
            Float array of shape `(len(endpoints),)`, finite. The host clamps it to 0..1 (and counts what it clamped), multiplies it by the
            weight from the profile and adds it up. NaN or another shape is a fault.
        """


class PerEndpointScorer(Scorer[P]):
    """A scorer that thinks one endpoint at a time. Slower than columns from about thirty endpoints on."""

    @abstractmethod
    def score_endpoint(self, request: InferenceRequest, endpoint: EndpointRow, state: ScoringState) -> float:
        """Rate one endpoint; 1 is best, 0 is worst. Called for each candidate in turn."""

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        """Rate every endpoint with `score_endpoint`."""
        return np.fromiter((self.score_endpoint(request, row, state) for row in endpoints.each()), np.float64, len(endpoints))


class Picker(Plugin[P]):
    """Chooses among rated endpoints."""

    kind: ClassVar[str] = "picker"

    uses_scores: ClassVar[bool] = True
    """Whether totals matter to its choice; the host warns where scorers work for a picker to which they do not."""

    @abstractmethod
    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        """Choose at least one endpoint, best first; further ones are fallbacks the gateway may try.

        Called once per profile run, after all scorers, never with an empty view. Use `self.context.random` for any draw.

        Returns:
            A view made with `scored.take(positions)`.
        """


class ProfileHandler(Plugin[P]):
    """Decides which scheduling profiles run, and what their results mean."""

    kind: ClassVar[str] = "profile-handler"

    most_profiles: ClassVar[int | None] = None
    """How many scheduling profiles the handler can choose among; None for any number. The host refuses a configuration with more."""

    @classmethod
    def required_profiles(cls, parameters: P) -> tuple[str, ...]:
        """Names of scheduling profiles that a handler with these parameters cannot do without.

        Called at start, before any instance exists; the host refuses a configuration that lacks one of them.
        """
        return ()

    @classmethod
    def optional_profiles(cls, parameters: P) -> tuple[str, ...]:
        """Names of scheduling profiles that a handler with these parameters would run, and does without where they are not defined.

        Called at start, before any instance exists; the host warns about a configuration that lacks one of them.
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
        """Name the profiles to run next; none ends the loop.

        Called repeatedly, first with empty `results`, until it names none or every profile has run. A profile that failed has a result
        with `failure` set. To name a profile twice, or one that does not exist, is a fault.

        Args:
            request: The request.
            profiles: Names of all configured profiles, in configuration order.
            results: Runs so far, by profile name.
            state: The request's state. What the handler puts there under a key that it produces, the profiles that run next can read.
        """

    @abstractmethod
    def process_results(self, request: InferenceRequest, results: Mapping[str, ProfileRunResult], state: CycleState) -> SchedulingResult:
        """Turn the runs into the decision.

        Called once, after the loop, with at least one run.

        Returns:
            The decision, or `SchedulingResult.failed(sentence)`.
        """


class DisaggregationDecider(Plugin[P]):
    """Says whether a stage of a disaggregated request (prefill, encode) is worth a server of its own.

    A profile handler names it in its parameters, marked `RefersTo(DisaggregationDecider)`, and calls it with a stage in mind: an instance
    does not learn which.
    """

    kind: ClassVar[str] = "disaggregation-decider"

    @abstractmethod
    def disaggregate(self, request: InferenceRequest, endpoint: Endpoints, state: ScoringState) -> bool:
        """Whether to run the stage elsewhere.

        Called at most once per request and stage, after the decode stage has picked. A handler gets False for a decider that fails or
        whose circuit is open: the decode server then does all the work.

        Args:
            request: The request.
            endpoint: The endpoint picked to decode, a view of length 1: `state.column(KEY, endpoint)[0]` is its number.
            state: What producers left.
        """
