"""`endpick schema`: prints the JSON Schema of a configuration, of parameters, or of a verb's output."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import click
from pydantic import TypeAdapter

from endpick.cli.console import fail, print_diagnostics
from endpick.cli.verbs import HOST_VERBS, installed_verbs
from endpick.config.schema import editor_schema
from endpick.diagnostics import exit_code_of
from endpick.diagnostics.render import SCHEMA as DIAGNOSTICS
from endpick.host.discovery import Candidate, discover
from endpick.host.loader import LoadedPlugin, PluginCatalog
from endpick.host.parameters import parameters_schema
from endpick.host.resolution import Reference
from endpick.requests.document import DecisionOutput

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def output_schemas() -> dict[str, Mapping[str, object]]:
    """Return output schemas by verb, with those of diagnostics and decisions; imports the modules of all verbs."""
    outputs = {name: output_of(name, place) for name, place in _verbs().items()}
    return _others() | {name: _document(output, f"endpick {name}") for name, output in outputs.items() if output is not None}


def _others() -> dict[str, Mapping[str, object]]:
    return {"diagnostics": DIAGNOSTICS, "decision": _document(DecisionOutput, "endpick decision record")}


def _verbs() -> dict[str, str]:
    installed = {name: verb.place for name, verb in installed_verbs().verbs.items()}
    return installed | {name: place for name, (place, _) in HOST_VERBS.items()}


def output_of(verb: str, place: str) -> type[object] | None:
    """Return the type of a verb's JSON output, from `OUTPUTS` of its module; None if it prints none."""
    output = getattr(import_module(place.partition(":")[0]), "OUTPUTS", {}).get(verb)
    model: type[object] | None = resolve_name(output) if isinstance(output, str) else output
    return model


def parameter_schemas(candidates: Sequence[Candidate]) -> dict[str, dict[str, object]]:
    """Return the parameter schemas by type; imports all plugins."""
    installed = PluginCatalog(candidates)
    loaded = ((plugin_type, installed.peek(plugin_type)) for plugin_type in sorted({candidate.type for candidate in candidates}))
    return {plugin_type: parameter_schema(plugin) for plugin_type, plugin in loaded if plugin is not None}


def parameter_schema(loaded: LoadedPlugin) -> dict[str, object]:
    """Return the schema of `parameters:` of a plugin type."""
    schema = parameters_schema(loaded)
    described = {"description": loaded.summary} if loaded.summary else {}
    return {"$schema": DIALECT, **schema, "title": loaded.candidate.type, **described}


def config_schema(candidates: Sequence[Candidate]) -> dict[str, object]:
    """Return the editor schema of a configuration that may use these plugins."""
    return editor_schema(parameter_schemas(candidates))


def schema_text(schema: Mapping[str, object]) -> str:
    """Format a schema for printing; properties keep their order."""
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def builtin(candidates: Iterable[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates that are part of endpick."""
    return tuple(candidate for candidate in candidates if candidate.is_builtin)


def _document(output: type[object], title: str) -> Mapping[str, object]:
    return {"$schema": DIALECT, **TypeAdapter(output).json_schema(by_alias=True, mode="serialization"), "title": title}


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
            fail(f"{output} cannot be written: {problem.strerror}")


def _schema(name: str, *, installed: bool) -> Mapping[str, object]:
    place = _verbs().get(name)
    output = None if place is None else output_of(name, place)
    if output is not None:
        return _document(output, f"endpick {name}")
    others = _others()
    if name in others:
        return others[name]
    candidates = discover()
    if name == CONFIG:
        return config_schema(candidates if installed else builtin(candidates))
    loading = PluginCatalog(candidates).get(Reference(name))
    if loading.loaded is None:
        print_diagnostics(loading.diagnostics, [])
        sys.exit(exit_code_of(loading.diagnostics))
    return parameter_schema(loading.loaded)
