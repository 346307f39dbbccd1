"""Models of the JSON output of verbs, for the published schemas. Tests compare the output of each verb with its model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from endpick.api import Category, Scope, Stability
from endpick.host.discovery import RequestPath
from endpick.host.kinds import KindName
from endpick.host.planning.changes import ChangeKind


class Output(BaseModel):
    """A part of a document; names are in camelCase."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class ListedPlugin(Output):
    """An entry point of a plugin type."""

    type: str
    distribution: str
    version: str
    api: int = Field(description="Major version of the plugin API.")
    status: Literal["ok", "conflict", "invalid-name", "other-api", "broken"]
    builtin: bool
    editable: bool
    source_path: str = Field(description="Set for an editable install.")
    target: str
    metadata_path: str
    problem: str = Field("", description="Why the plugin is broken, with --load.")
    kinds: list[KindName] = Field([], description="With --load.")
    summary: str = Field(description="First line of the docstring; empty if the source is not there.")
    stability: Stability = Field(Stability.STABLE, description="With --load.")
    load_seconds: float = Field(0.0, description="Duration of the import, with --load.")


class ListOutput(Output):
    """Output of `endpick list`."""

    plugins: list[ListedPlugin]


class DescribedKey(Output):
    """A data key."""

    name: str
    type: str
    scope: Scope
    doc: str


class DescribeOutput(Output):
    """Output of `endpick describe`."""

    type: str
    kinds: list[KindName]
    summary: str
    description: str
    distribution: str
    version: str
    target: str
    file: str
    requires: str = Field(description="Requirement on endpick; empty for built-in plugins.")
    stability: Stability
    category: Category | None
    replaced_by: str | None
    aliases: list[str]
    parameters: dict[str, Any] = Field(description="JSON Schema of the parameters.")
    consumes: list[DescribedKey]
    consumes_optional: list[DescribedKey]
    produces: list[DescribedKey]
    payload: str | None


class ExaminedDistribution(Output):
    """One metadata directory on the import path."""

    name: str
    version: str
    metadata_path: str
    source_path: str


class HookObject(Output):
    """An installed hook object."""

    name: str
    distribution: str
    target: str


class ServingProcess(Output):
    """The health of a serving endpick."""

    url: str
    ready: bool
    remarks: list[str] = Field(description="Why it is not ready, and which plugins it skips.")


class DoctorOutput(Output):
    """Output of `endpick doctor`."""

    endpick: str
    api: int = Field(description="Major version of the plugin API of this endpick.")
    request_path: RequestPath
    llm_d_router_as_of: str = Field(alias="llmDRouterAsOf", description="The day on which names were compared with llm-d-router.")
    python: str
    executable: str
    distributions: list[ExaminedDistribution]
    hook_objects: list[HookObject]
    import_seconds: dict[str, float] = Field(description="With --load, by type and distribution.")
    serving: ServingProcess | None = Field(description="With --serving.")
    findings: dict[str, Any] = Field(description="See the schema of diagnostics.")


class CodeExplanation(Output):
    """One diagnostic code."""

    code: str
    severity: Literal["error", "warning", "note"]
    title: str
    exit_code: int
    explanation: str = Field(description="Markdown.")


class LockedDistribution(Output):
    """A pinned distribution."""

    distribution: str
    version: str
    digest: str = Field(description="SHA-256 of its RECORD.")


class LockOutput(Output):
    """A lock file."""

    format: Literal[3]
    distributions: list[LockedDistribution]


class NewOutput(Output):
    """Output of `endpick new`."""

    type: str
    types: list[str] = Field(description="All plugin types of the project, the requested one first.")
    kind: str
    distribution: str
    package: str
    folder: str
    files: list[str] = Field(description="Relative to the folder.")
    next: list[str] = Field(description="The next commands to run.")


class FindingOutput(Output):
    """A broken rule, and how to fix it."""

    message: str
    help: str


class Verdict(Output):
    """The result of one check of one plugin."""

    id: str
    rule: str
    status: str
    reason: str = Field(description="Why a check was skipped or expected to fail.")
    findings: list[FindingOutput]


class TestedPlugin(Output):
    """A plugin class tested by the conformance kit."""

    type: str
    distribution: str
    version: str
    class_: str = Field(alias="class")
    conforms: bool
    checks: list[Verdict]


class TestOutput(Output):
    """Output of `endpick test`."""

    endpick: str
    plugin_api: int = Field(description="Major version of the plugin API of this endpick.")
    plugins: list[TestedPlugin]


class ComparedPlan(Output):
    """One side of `endpick diff`."""

    config: str = Field(description="Name of the configuration file.")
    hash: str = Field(description="Equal for plans that do the same.")


class ChangeOutput(Output):
    """One difference between two plans."""

    kind: ChangeKind
    subject: str = Field(description="Instance, profile, role or section.")
    name: str = Field(description="Of a parameter or setting; empty if the subject says it all.")
    profile: str = Field(description="The scheduling profile, if the change is in one.")
    old: str | None = Field(description="Null if the subject was added. Secrets are masked.")
    new: str | None = Field(description="Null if the subject was removed.")
    routes: bool = Field(description="True if requests may go to other endpoints.")
    text: str = Field(description="The change as a sentence.")


class DiffOutput(Output):
    """Output of `endpick diff`."""

    old: ComparedPlan
    new: ComparedPlan
    changes: list[ChangeOutput] = Field(description="Changes of routing first.")


OUTPUTS: dict[str, type[Output]] = {
    "describe": DescribeOutput,
    "diff": DiffOutput,
    "doctor": DoctorOutput,
    "list": ListOutput,
    "lock": LockOutput,
    "new": NewOutput,
    "test": TestOutput,
}


class FilterStep(Output):
    """A filter in a profile run; names of endpoints."""

    instance: str
    type: str
    given: list[str]
    kept: list[str]
    problem: str = Field(description="Why its answer was rejected; empty if it was not.")
    seconds: float = Field(0.0, description="Duration of the call.")


class ScorerStep(Output):
    """A scorer in a profile run; one number per candidate."""

    instance: str
    type: str
    weight: float
    answered: list[float | None] = Field(description="Scores of the plugin, null for NaN and infinity; empty if it failed.")
    weighted: list[float] = Field(description="Weighted scores, as added to the totals.")
    problem: str = Field(description="Why its answer was rejected; empty if it was not.")
    seconds: float = Field(0.0, description="Duration of the call.")


class ProfileRun(Output):
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


class Waiting(Output):
    """How a request waited in flow control."""

    seconds: float = Field(description="Time waited.")
    saturation: float = Field(description="Saturation of the pool when the request arrived; 1 is full.")


class PluginFault(Output):
    """A plugin raised or returned an invalid answer."""

    instance: str
    extension_point: str
    problem: str


class EndpointValues(Output):
    """An endpoint of the pool, and its data at the decision."""

    name: str
    address: str
    labels: dict[str, str]
    values: dict[str, Any] = Field(description="By data key; a key without a value is left out.")
    ages: dict[str, float] = Field(description="Seconds since each value was written; none for values computed for this request.")


class RemovedEndpoints(Output):
    """Endpoints left out before scheduling."""

    instance: str = Field(description="The candidate filter, or `subset` for the gateway's hint.")
    type: str
    endpoints: list[str]
    problem: str


class OutcomeOutput(Output):
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


class RequestOutput(Output):
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


class DecisionOutput(Output):
    """One decision: in `GET /decisions`, the decision log, `endpick why`, and as the argument of the hook `endpick_decision`."""

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


class TryOutput(DecisionOutput):
    """Output of `endpick try`."""

    headers: dict[str, str] = Field(description="Added to the request for the model server.")


class ReplayReason(Output):
    """Why picks moved."""

    reason: str
    requests: int


class PredictedChange(Output):
    """A value of the endpoints at the recorded and the new picks, over the requests that have both."""

    measure: str
    requests: int
    recorded: float = Field(description="Mean.")
    replayed: float = Field(description="Mean.")
    change: float
    low: float = Field(description="Of the 95 % interval of the change.")
    high: float


class ReplayExample(Output):
    """A request whose pick moved."""

    id: str
    time: str
    was: str | None = Field(description="Null if it was refused.")
    now: str | None = Field(description="Null if it is refused.")
    reason: str
    totals: list[float] | None = Field(description="Of both picks; null if the configuration does not rate the recorded one.")


class ReplayOutput(Output):
    """Output of `endpick replay`."""

    version: Literal[1]
    config: str
    decisions: str
    requests: int
    moved: int = Field(description="Requests that go to another endpoint.")
    reasons: list[ReplayReason] = Field(description="The most frequent first.")
    changes: list[PredictedChange]
    examples: list[ReplayExample]
