"""The shape of decisions as programs get them: what `endpick try` prints and what `endpick_decision` is given, for their schemas."""

from __future__ import annotations

from pydantic import Field

from endpick.cli.outputs import Output


class FilterSay(Output):
    """One filter in one profile run; names of endpoints."""

    instance: str
    type: str
    given: list[str]
    kept: list[str]
    problem: str = Field(description="Why its answer does not count; empty when it does.")


class ScorerSay(Output):
    """One scorer in one profile run; one number per candidate."""

    instance: str
    type: str
    weight: float
    answered: list[float | None] = Field(description="As the plugin gave them, null for NaN and infinity; empty when it failed.")
    weighted: list[float] = Field(description="What they added to the totals.")
    problem: str = Field(description="Why its answer does not count; empty when it does.")


class ProfileRun(Output):
    """One run of one scheduling profile; names of endpoints."""

    profile: str
    filters: list[FilterSay]
    candidates: list[str] = Field(description="Who passed all filters.")
    scorers: list[ScorerSay]
    totals: list[float] = Field(description="One per candidate.")
    picker: str
    picked: list[str] = Field(description="Best first; empty when the run failed.")
    failure: str


class DecisionOutput(Output):
    """What hook objects that implement `endpick_decision` are given."""

    id: str = Field(description="The request's `x-request-id`.")
    model: str
    path: str
    priority: int
    fairness_id: str
    endpoints: list[str] = Field(description="Names of those there were to choose from.")
    destinations: list[str] = Field(description="`host:port`, best first; empty when nobody was found.")
    status: int | None = Field(description="HTTP status of the refusal; null when somebody was found.")
    refusal: str
    runs: list[ProfileRun]


class Misbehaviour(Output):
    """A plugin raised, or answered nonsense."""

    instance: str
    extension_point: str
    problem: str


class TryOutput(Output):
    """What `endpick try` prints."""

    destinations: list[str] = Field(description="`host:port`, best first; empty when the request was refused.")
    status: int | None = Field(description="HTTP status of the refusal; null when the request was routed.")
    refusal: str
    headers: dict[str, str] = Field(description="Added to the request for the model server.")
    pool: list[str] = Field(description="Names of all endpoints.")
    runs: list[ProfileRun]
    faults: list[Misbehaviour]
