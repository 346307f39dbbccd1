"""Every JSON Schema that endpick publishes: of the configuration, of plugins' parameters, of what the verbs print."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, TypeAdapter

from endpick.cli.decision_outputs import DecisionOutput, TryOutput
from endpick.cli.outputs import OUTPUTS, Explanation, Output
from endpick.config.schema import editor_schema
from endpick.diagnostics.json import SCHEMA as DIAGNOSTICS
from endpick.planning.document import PlanDocument
from endpick.planning.installed import Installed
from endpick.planning.picture import Picture
from endpick.plugins.discovery import Candidate
from endpick.plugins.loader import LoadedPlugin
from endpick.plugins.parameters import parameters_schema

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def output_schemas() -> dict[str, Mapping[str, object]]:
    """Schemas of the documents that verbs print with `--format json`, by name."""
    return {
        "diagnostics": DIAGNOSTICS,
        "decision": _document(DecisionOutput, "endpick decision record"),
        "graph": _document(Picture, "endpick graph"),
        "try": _document(TryOutput, "endpick try"),
        "plan": _document(PlanDocument, "endpick plan"),
        "explain": {"$schema": DIALECT, "title": "endpick explain", **TypeAdapter(list[Explanation]).json_schema()},
        **{name: _document(output, f"endpick {name}") for name, output in OUTPUTS.items()},
    }


def parameter_schemas(candidates: Sequence[Candidate]) -> dict[str, dict[str, object]]:
    """Schemas of the parameters of every type that loads, by type; imports all of them."""
    installed = Installed(candidates)
    loaded = ((plugin_type, installed.peek(plugin_type)) for plugin_type in sorted({one.type for one in candidates}))
    return {plugin_type: parameter_schema(plugin) for plugin_type, plugin in loaded if plugin is not None}


def parameter_schema(loaded: LoadedPlugin) -> dict[str, object]:
    """The schema of one type's `parameters:` under the type's name."""
    schema = parameters_schema(loaded)
    described = {"description": loaded.summary} if loaded.summary else {}
    return {"$schema": DIALECT, **schema, "title": loaded.candidate.type, **described}


def config_schema(candidates: Sequence[Candidate]) -> dict[str, object]:
    """The editor schema of a configuration in which these plugins may be used."""
    return editor_schema(parameter_schemas(candidates))


def schema_text(schema: Mapping[str, object]) -> str:
    """A schema as it is printed and committed; properties keep the order their authors gave them."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def builtin(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Those that come with endpick."""
    return tuple(candidate for candidate in candidates if candidate.is_builtin)


def _document(document: type[BaseModel], title: str) -> Mapping[str, object]:
    schema = document.model_json_schema(by_alias=True, mode="validation" if issubclass(document, Output) else "serialization")
    return {"$schema": DIALECT, **schema, "title": title}
