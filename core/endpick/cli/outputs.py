"""The shape of what `list`, `describe`, `doctor`, `explain`, `lock` and `new` print as JSON, for their published schemas.

These verbs print plain dictionaries, because `list` must start without pydantic; tests hold their output to these models.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from endpick.api import Kind, Scope
from endpick.api.plugin import Category, Stability
from endpick.building import RequestPath


class Output(BaseModel):
    """A part of a printed document; its names are in camelCase there, as in the configuration."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class ListedPlugin(Output):
    """One entry point that offers a plugin type."""

    type: str
    distribution: str
    version: str
    api: int = Field(description="Major version of the plugin API it is written for.")
    status: Literal["ok", "conflict", "shadowed", "invalid-name", "other-api", "broken"]
    builtin: bool
    editable: bool
    source_path: str = Field(description="Of an editable install; empty for any other.")
    target: str
    metadata_path: str
    copies: list[str] = Field(description="Other metadata directories that offer the same.")
    problem: str = Field("", description="With --load, for a broken plugin: why.")
    kinds: list[Kind] = Field([], description="With --load.")
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
    kinds: list[Kind]
    summary: str
    description: str
    distribution: str
    version: str
    target: str
    file: str
    api: str = Field(description="Range of plugin API versions.")
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


class DoctorOutput(Output):
    """What `endpick doctor` prints."""

    endpick: str
    api: str
    request_path: RequestPath
    python: str
    executable: str
    distributions: list[ExaminedDistribution]
    hook_objects: list[HookObject]
    import_seconds: dict[str, float] = Field(description="With --load, by type and distribution.")
    findings: dict[str, Any] = Field(description="See the schema of diagnostics.")


class Explanation(Output):
    """One diagnostic code."""

    code: str
    severity: Literal["error", "warning", "note"]
    title: str
    exit_code: int
    explanation: str = Field(description="Markdown.")


class LockedType(Output):
    """One pinned plugin type, or hook object: then `type` is its name."""

    type: str
    distribution: str
    version: str
    target: str
    digest: str


class LockOutput(Output):
    """A lock file."""

    format: Literal[1]
    plugins: list[LockedType]
    hooks: list[LockedType]


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


class Fault(Output):
    """What a plugin does, and what its author should do about it."""

    message: str
    help: str


class Verdict(Output):
    """What one check found about one plugin."""

    id: str
    rule: str
    status: str
    reason: str = Field(description="Of a check that was skipped, or was expected to fail.")
    findings: list[Fault]


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
    plugin_api: str
    plugins: list[TestedPlugin]


OUTPUTS: dict[str, type[Output]] = {
    "describe": DescribeOutput,
    "doctor": DoctorOutput,
    "list": ListOutput,
    "lock": LockOutput,
    "new": NewOutput,
    "test": TestOutput,
}
