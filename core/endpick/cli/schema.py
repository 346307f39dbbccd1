"""`endpick schema`: prints the JSON Schema of a configuration, of parameters, or of a verb's output."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import click
from pydantic import BaseModel, TypeAdapter

from endpick.cli.console import print_diagnostics
from endpick.cli.outputs import OUTPUTS, CodeExplanation, DecisionOutput, Output, TryOutput
from endpick.cli.verbs import HOST_VERBS, installed_verbs
from endpick.config.schema import editor_schema
from endpick.diagnostics import ExitCode, exit_code_of
from endpick.diagnostics.render import SCHEMA as DIAGNOSTICS
from endpick.host.discovery import Candidate, discover
from endpick.host.loader import LoadedPlugin, PluginCatalog
from endpick.host.parameters import parameters_schema
from endpick.host.planning.document import Picture, PlanDocument
from endpick.host.resolution import Reference

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def output_schemas() -> dict[str, Mapping[str, object]]:
    """Output schemas by verb, and those of diagnostics and decision records; imports the modules of all verbs."""
    places = {name: place for name, (place, _) in HOST_VERBS.items()}
    places |= {name: verb.place for name, verb in installed_verbs().verbs.items()}
    models = {name: model for name, place in places.items() if (model := output_of(name, place)) is not None}
    return {
        **{name: _document(model, f"endpick {name}") for name, model in models.items()},
        "diagnostics": DIAGNOSTICS,
        "decision": _document(DecisionOutput, "endpick decision record"),
        "graph": _document(Picture, "endpick graph"),
        "try": _document(TryOutput, "endpick try"),
        "plan": _document(PlanDocument, "endpick plan"),
        "explain": {"$schema": DIALECT, "title": "endpick explain", **TypeAdapter(list[CodeExplanation]).json_schema()},
        **{name: _document(output, f"endpick {name}") for name, output in OUTPUTS.items()},
    }


def output_of(verb: str, place: str) -> type[BaseModel] | None:
    """The model of a verb's JSON output: the entry of the verb in `OUTPUTS` of its module."""
    module = importlib.import_module(place.partition(":")[0])
    model: type[BaseModel] | None = getattr(module, "OUTPUTS", {}).get(verb)
    return model


def parameter_schemas(candidates: Sequence[Candidate]) -> dict[str, dict[str, object]]:
    """Parameter schemas by type; imports all plugins."""
    installed = PluginCatalog(candidates)
    loaded = ((plugin_type, installed.peek(plugin_type)) for plugin_type in sorted({one.type for one in candidates}))
    return {plugin_type: parameter_schema(plugin) for plugin_type, plugin in loaded if plugin is not None}


def parameter_schema(loaded: LoadedPlugin) -> dict[str, object]:
    """The schema of `parameters:` of one type."""
    schema = parameters_schema(loaded)
    described = {"description": loaded.summary} if loaded.summary else {}
    return {"$schema": DIALECT, **schema, "title": loaded.candidate.type, **described}


def config_schema(candidates: Sequence[Candidate]) -> dict[str, object]:
    """The editor schema of a configuration that may use these plugins."""
    return editor_schema(parameter_schemas(candidates))


def schema_text(schema: Mapping[str, object]) -> str:
    """A schema as printed; properties keep their order."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def builtin(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Endpick's own candidates."""
    return tuple(candidate for candidate in candidates if candidate.is_builtin)


def _document(document: type[BaseModel], title: str) -> Mapping[str, object]:
    schema = document.model_json_schema(by_alias=True, mode="validation" if issubclass(document, Output) else "serialization")
    return {"$schema": DIALECT, **schema, "title": title}


CONFIG = "config"


@click.command("schema", short_help="Print a JSON Schema, for editors and CI.")
@click.argument("name", default=CONFIG)
@click.option("--installed", is_flag=True, help="For 'config': include all installed plugin types, not only built-in ones.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def command(name: str, installed: bool, output: Path | None) -> None:
    """Print the JSON Schema NAME: 'config' for editors (draft-07), a plugin type for its parameters, or a verb for its output.

    The output of `validate` is named 'diagnostics'.

    To use the schema of the configuration in an editor, begin the file with this line:

    # yaml-language-server: $schema=./config.v1.json
    """
    if installed and name != CONFIG:
        raise click.UsageError("--installed is for 'config' only")
    text = schema_text(_schema(name, installed=installed))
    if output is None:
        click.echo(text, nl=False)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as problem:
            click.echo(f"error: {output} cannot be written: {problem.strerror}", err=True)
            sys.exit(ExitCode.FAILED)


def _schema(name: str, *, installed: bool) -> Mapping[str, object]:
    outputs = output_schemas()
    if name in outputs:
        return outputs[name]
    candidates = discover()
    if name == CONFIG:
        return config_schema(candidates if installed else builtin(candidates))
    loading = PluginCatalog(candidates).get(Reference(name))
    if loading.loaded is None:
        print_diagnostics(loading.diagnostics, [])
        sys.exit(exit_code_of(loading.diagnostics))
    return parameter_schema(loading.loaded)
