"""`endpick schema`: the JSON Schema of a configuration, of a plugin's parameters, or of what a verb prints."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from endpick.cli.reading import print_diagnostics
from endpick.cli.schemas import builtin, config_schema, output_schemas, parameter_schema, schema_text
from endpick.diagnostics import exit_code_of
from endpick.planning.installed import Installed
from endpick.plugins.discovery import discover
from endpick.plugins.reference import Reference

CONFIG = "config"


@click.command("schema", short_help="Print a JSON Schema, for editors and checks.")
@click.argument("name", default=CONFIG)
@click.option("--installed", is_flag=True, help="For 'config': know every installed plugin type, not only the built-in ones.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file.")
def command(name: str, installed: bool, output: Path | None) -> None:
    """Print the JSON Schema called NAME: 'config' for editors (draft-07), a plugin type for its parameters, or an output of endpick.

    The outputs are called like the verbs that print them; that of `validate` is 'diagnostics'.

    To use the schema of the configuration in an editor, begin the file with this line:

    # yaml-language-server: $schema=./config.v1.json
    """
    if installed and name != CONFIG:
        raise click.UsageError("--installed is for 'config' only")
    text = schema_text(_schema(name, installed=installed))
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, encoding="utf-8")


def _schema(name: str, *, installed: bool) -> Mapping[str, object]:
    outputs = output_schemas()
    if name in outputs:
        return outputs[name]
    candidates = discover()
    if name == CONFIG:
        return config_schema(candidates if installed else builtin(candidates))
    loading = Installed(candidates).get(Reference(name))
    if loading.loaded is None:
        print_diagnostics(loading.diagnostics, [])
        sys.exit(exit_code_of(loading.diagnostics))
    return parameter_schema(loading.loaded)
