"""The verb `endpick costs`."""

from __future__ import annotations

import json
from typing import TextIO

import click


@click.command()
@click.argument("endpoints", type=click.File())
@click.option("--label", default="cost", show_default=True, help="Label with the cost of an endpoint.")
def costs(endpoints: TextIO, label: str) -> None:
    """List the endpoints of ENDPOINTS, a JSON file as `file-discovery` reads it, the cheapest first."""
    found = [(float(entry["labels"][label]), entry["name"]) for entry in json.load(endpoints)["endpoints"]]
    for cost, name in sorted(found):
        click.echo(f"{cost:g}  {name}")
