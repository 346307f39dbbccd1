"""The shape of what `list`, `describe`, `doctor`, `explain`, `lock` and `new` print as JSON, for their published schemas.

These verbs print plain dictionaries, because `list` must start without pydantic; tests hold their output to these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from endpick.api import Category, Scope, Stability
from endpick.host.health import LockState
from endpick.host.kinds import KindName
from endpick.installation import RequestPath


class Output(BaseModel):
    """A part of a printed document; its names are in camelCase there, as in the configuration."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class ListedPlugin(Output):
    """One entry point that offers a plugin type."""

    type: str
    distribution: str
    version: str
    api: int = Field(description="Major version of the plugin API it is written for.")
    status: Literal["ok", "conflict", "invalid-name", "other-api", "broken"]
    builtin: bool
    editable: bool
    source_path: str = Field(description="Of an editable install; empty for any other.")
    target: str
    metadata_path: str
    problem: str = Field("", description="With --load, for a broken plugin: why.")
    kinds: list[KindName] = Field([], description="With --load.")
    summary: str = Field("", description="With --load.")
    stability: Stability = Field(Stability.STABLE, description="With --load.")
    load_seconds: float = Field(0.0, description="With --load: how long the import took.")


class ListOutput(Output):
    """What `endpick list` prints."""

    plugins: list[ListedPlugin]


class DescribedKey(Output):
    """A data key."""

    name: str
    type: str
    scope: Scope
    doc: str


class DescribeOutput(Output):
    """What `endpick describe` prints."""

    type: str
    kinds: list[KindName]
    summary: str
    description: str
    distribution: str
    version: str
    target: str
    file: str
    requires: str = Field(description="What its distribution requires of endpick; empty for endpick's own plugins.")
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
    """What a serving endpick says of itself."""

    url: str
    ready: bool
    remarks: list[str] = Field(description="Why it is not ready, and which plugins it leaves out.")


class TrustOutput(Output):
    """What decides which code runs."""

    safe_path: bool = Field(description="Whether Python was told to keep the working directory off the import path.")
    python_path: list[str] = Field(description="What PYTHONPATH puts first.")
    user_site: str = Field(description="The user's own directory of packages; empty when Python does not look there.")
    lock: LockState = Field(description="Of the lock file in the working directory.")


class DoctorOutput(Output):
    """What `endpick doctor` prints."""

    endpick: str
    api: int = Field(description="Major version of the plugin API that this endpick speaks.")
    request_path: RequestPath
    python: str
    executable: str
    trust: TrustOutput
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
    """What `endpick new` prints."""

    type: str
    types: list[str] = Field(description="Every plugin type of the project, the one asked for first.")
    kind: str
    distribution: str
    package: str
    folder: str
    files: list[str] = Field(description="Relative to the folder.")
    next: list[str] = Field(description="Commands to go on with.")


class FindingOutput(Output):
    """What a plugin does, and what its author should do about it."""

    message: str
    help: str


class Verdict(Output):
    """What one check found about one plugin."""

    id: str
    rule: str
    status: str
    reason: str = Field(description="Of a check that was skipped, or was expected to fail.")
    findings: list[FindingOutput]


class TestedPlugin(Output):
    """One plugin class, held to the conformance kit."""

    type: str
    distribution: str
    version: str
    class_: str = Field(alias="class")
    conforms: bool
    checks: list[Verdict]


class TestOutput(Output):
    """What `endpick test` prints."""

    endpick: str
    plugin_api: int = Field(description="Major version of the plugin API that this endpick speaks.")
    plugins: list[TestedPlugin]


OUTPUTS: dict[str, type[Output]] = {
    "describe": DescribeOutput,
    "doctor": DoctorOutput,
    "list": ListOutput,
    "lock": LockOutput,
    "new": NewOutput,
    "test": TestOutput,
}


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


class Waiting(Output):
    """How a request waited for its turn."""

    seconds: float = Field(description="For how long.")
    saturation: float = Field(description="How full the pool was when the request came; 1 for full.")


class DecisionOutput(Output):
    """What hook objects that implement `endpick_decision` are given."""

    id: str = Field(description="The request's `x-request-id`.")
    model: str
    path: str
    priority: int
    fairness_id: str
    endpoints: list[str] = Field(description="Names of those there were to choose from.")
    destinations: list[str] = Field(description="`host:port`, best first; empty when no endpoint was found.")
    status: int | None = Field(description="HTTP status of the refusal; null when an endpoint was found.")
    refusal: str
    runs: list[ProfileRun]
    waited: Waiting | None = Field(description="Null for a request that did not wait in endpick.")
    unread: str = Field(description="Why the parser failed to read the body, without which the request went on; empty where none did.")


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
