"""The JSON output of `endpick list` and `endpick explain`; the verbs run without it, because pydantic takes longer to import."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from endpick.api import Stability
from endpick.host.kinds import KindName

Status = Literal["ok", "conflict", "invalid-name", "other-api", "broken"]
_CLOSED = ConfigDict(extra="forbid")


@with_config(_CLOSED)
class ListedPlugin(TypedDict):
    """An entry point of a plugin type."""

    type: str
    distribution: str
    version: str
    api: Annotated[int, Field(description="Major version of the plugin API.")]
    status: Status
    builtin: bool
    editable: bool
    sourcePath: Annotated[str, Field(description="Set for an editable install.")]
    target: str
    metadataPath: str
    problem: NotRequired[Annotated[str, Field(description="Why the plugin is broken, with --load.", json_schema_extra={"default": ""})]]
    kinds: NotRequired[Annotated[list[KindName], Field(description="With --load.", json_schema_extra={"default": []})]]
    summary: Annotated[str, Field(description="First line of the docstring; empty if the source is not there.")]
    stability: NotRequired[Annotated[Stability, Field(description="With --load.", json_schema_extra={"default": "stable"})]]
    loadSeconds: NotRequired[
        Annotated[float, Field(description="Duration of the import, with --load.", json_schema_extra={"default": 0.0})]
    ]


@with_config(_CLOSED)
class ListOutput(TypedDict):
    """Output of `endpick list`."""

    plugins: list[ListedPlugin]


@with_config(_CLOSED)
class CodeExplanation(TypedDict):
    """One diagnostic code."""

    code: str
    severity: Literal["error", "warning", "note"]
    title: str
    exitCode: int
    explanation: Annotated[str, Field(description="Markdown.")]


ExplainOutput = list[CodeExplanation]
