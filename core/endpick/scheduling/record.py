"""What every plugin said in one decision: for `endpick try`, for tests, and for whoever asks why a request went where it went."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FilterRecord:
    """One filter's say: the names of the endpoints it was given and those it kept; `problem` instead when it failed."""

    instance: str
    type: str
    given: tuple[str, ...]
    kept: tuple[str, ...]
    problem: str = ""

    @property
    def dropped(self) -> tuple[str, ...]:
        """Who went, in the order given."""
        kept = set(self.kept)
        return tuple(name for name in self.given if name not in kept)


@dataclass(frozen=True, slots=True)
class ScorerRecord:
    """One scorer's say about each candidate.

    Attributes:
        instance: Name.
        type: Plugin type.
        weight: Of the scorer in this profile.
        answered: Scores as the plugin gave them, one per candidate; none when it failed.
        weighted: What they added to the totals: cut to 0..1 and multiplied by the weight; all 0 when it failed.
        problem: Why its scores do not count; empty when they do.
    """

    instance: str
    type: str
    weight: float
    answered: tuple[float, ...]
    weighted: tuple[float, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProfileRecord:
    """One run of one scheduling profile; names of endpoints throughout.

    Attributes:
        profile: Name.
        filters: In the order they ran; those after one that kept nobody did not.
        candidates: Who passed all filters.
        scorers: In the order they ran.
        totals: Sum of the weighted scores, one per candidate; none when nothing was rated.
        picker: Instance name.
        picked: Best first; none when the run failed.
        failure: Why nothing was picked; empty on success.
    """

    profile: str
    filters: tuple[FilterRecord, ...]
    candidates: tuple[str, ...]
    scorers: tuple[ScorerRecord, ...]
    totals: tuple[float, ...]
    picker: str
    picked: tuple[str, ...]
    failure: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One request that reached the scheduler, and everything its plugins said about it.

    Attributes:
        id: The request's `x-request-id`.
        model: What the model servers are asked for.
        path: Of the request.
        priority: Of its inference objective.
        fairness_id: Whose request it is.
        endpoints: Names of those that were there to choose from.
        destinations: `host:port`, best first; none when nobody was found.
        status: HTTP status of the refusal; None when somebody was found.
        refusal: Why nobody was found; empty when somebody was.
        runs: The profile runs, in order.
    """

    id: str
    model: str
    path: str
    priority: int
    fairness_id: str
    endpoints: tuple[str, ...]
    destinations: tuple[str, ...]
    status: int | None
    refusal: str
    runs: tuple[ProfileRecord, ...]
