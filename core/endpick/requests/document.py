"""Pydantic models of a decision record: one for each class of `endpick.requests.record`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class FilterStep(_Part):
    """A filter in a profile run; names of endpoints."""

    instance: str
    type: str
    given: list[str]
    kept: list[str]
    problem: str = Field(description="Why its answer was rejected; empty if it was not.")
    seconds: float = Field(0.0, description="Duration of the call.")


class ScorerStep(_Part):
    """A scorer in a profile run; one number per candidate."""

    instance: str
    type: str
    weight: float
    answered: list[float | None] = Field(description="Scores of the plugin, null for NaN and infinity; empty if it failed.")
    weighted: list[float] = Field(description="Weighted scores, as added to the totals.")
    problem: str = Field(description="Why its answer was rejected; empty if it was not.")
    seconds: float = Field(0.0, description="Duration of the call.")


class ProfileRun(_Part):
    """A run of a scheduling profile; names of endpoints."""

    profile: str
    filters: list[FilterStep]
    candidates: list[str] = Field(description="Endpoints that passed all filters.")
    scorers: list[ScorerStep]
    totals: list[float] = Field(description="One per candidate.")
    picker: str
    picked: list[str] = Field(description="Best first; empty if the run failed.")
    failure: str
    pick_seconds: float = Field(0.0, description="Duration of the picker's call.")


class Waiting(_Part):
    """How a request waited in flow control."""

    seconds: float = Field(description="Time waited.")
    saturation: float = Field(description="Saturation of the pool when the request arrived; 1 is full.")


class PluginFault(_Part):
    """A plugin raised or returned an invalid answer."""

    instance: str
    extension_point: str
    problem: str


class EndpointValues(_Part):
    """An endpoint of the pool, and its data at the decision."""

    name: str
    address: str
    labels: dict[str, str]
    values: dict[str, Any] = Field(description="By data key; a key without a value is left out.")
    ages: dict[str, float] = Field(description="Seconds since each value was written; none for values computed for this request.")


class RemovedEndpoints(_Part):
    """Endpoints left out before scheduling."""

    instance: str = Field(description="The candidate filter, or `subset` for the gateway's hint.")
    type: str
    endpoints: list[str]
    problem: str


class OutcomeOutput(_Part):
    """How a routed request ended."""

    cause: Literal["natural", "client-disconnect", "error", "drained"]
    status: int = Field(description="HTTP status of the response; 0 without response headers.")
    served_by: str = Field(description="The endpoint that the gateway reported, else the first pick.")
    gateway_error: str = Field(description="Why the gateway answered in place of the model server.")
    duration_seconds: float
    ttft_seconds: float | None
    response_bytes: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None


class RequestOutput(_Part):
    """What a request was. Never its text."""

    prompt_tokens: int = Field(description="From a `token-producer`, else bytes / 4.")
    block_tokens: int = Field(description="Tokens per block; 0 without a prefix producer.")
    blocks: str = Field(
        description="Base64 of 8 bytes for each block of the prompt. Prompts are equal up to a block if all bytes up to there are; with"
        " `approx-prefix-cache-producer` only among records of one process."
    )
    streaming: bool
    max_output_tokens: int | None = Field(description="The client's limit.")
    objective: str = Field(description="The inference objective that the client named.")


class DecisionOutput(_Part):
    """One decision: in `GET /decisions`, the decision log, `endpick why`, and as the argument of the hook `endpick_decided`."""

    version: Literal[2]
    why: Literal["sampled", "asked", "traced", "error"] = Field(
        description="Why it was recorded. A record with `error` has no endpoints, candidates and runs."
    )
    plan: str = Field(description="Hash of the plan that decided.")
    id: str = Field(description="The request's `x-request-id`.")
    model: str
    path: str
    priority: int
    fairness_id: str
    time: str = Field(description="ISO 8601.")
    request: RequestOutput | None = Field(description="Null for a request that was refused before scheduling.")
    endpoints: list[EndpointValues] = Field(description="The pool; empty in a list that was asked for without `values`.")
    removed: list[RemovedEndpoints]
    candidates: list[str] = Field(description="Endpoints that scheduling started with.")
    runs: list[ProfileRun]
    faults: list[PluginFault]
    destinations: list[str] = Field(description="`host:port`, best first; empty if no endpoint was found.")
    status: int | None = Field(description="HTTP status of the refusal, or of a plugin's direct response; null if the request was routed.")
    refusal: str
    waited: Waiting | None = Field(description="Null for a request that did not wait.")
    unread: str = Field(description="Why the parser failed to read the body; empty if it did not.")
    schedule_seconds: float = Field(description="Time in the scheduler.")
    decide_seconds: float = Field(description="Time from the request headers to the decision.")
    outcome: OutcomeOutput | None = Field(description="Null for a refused or directly answered request.")
    notes: dict[str, dict[str, str | float | bool]] = Field({}, description="What plugins annotated, by instance.")
    trace_id: str = Field("", description="Of its OpenTelemetry trace; empty unless it is sampled.")
