"""`endpick bundle`: packs the data for a bug report into an archive."""

from __future__ import annotations

import json
import time
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import click

from endpick.cli.admin_client import TOKEN_OPTION, URL_OPTION, AdminClient, AdminError
from endpick.cli.console import fail

_PARTS = {
    "config.json": ("config",),
    "plan.json": ("plan",),
    "endpoints.json": ("endpoints",),
    "decisions.json": ("decisions",),
    "plugins.json": ("plugins",),
    "reloads.json": ("reloads",),
    "state.json": ("debug", "plugins", "state"),
    "log.json": ("log",),
    "metrics.txt": ("metrics",),
    "healthz.txt": ("healthz",),
}
_MOST_DECISIONS = "200"


@click.command("bundle", short_help="Pack configuration, state and decisions of a running endpick for a bug report.")
@click.option("-o", "--output", "file", type=click.Path(dir_okay=False, path_type=Path), help="Default: endpick-bundle-TIME.zip.")
@URL_OPTION
@TOKEN_OPTION
def command(file: Path | None, url: str, token_file: Path | None) -> None:
    """Write an archive with the configuration, plan, pool, decisions, versions, reloads, metrics and log of a running endpick.

    Secrets in the configuration are masked, and requests are named by id, model and path only. Look through it before you publish it:
    endpoints have their addresses and labels.
    """
    picker = AdminClient(url, token_file)
    archive = file or Path(time.strftime("endpick-bundle-%Y%m%d-%H%M%S.zip"))
    unfinished = archive.with_name(f"{archive.name}.part")
    try:
        with ZipFile(unfinished, "w", ZIP_DEFLATED) as bundle:
            for name, path in _PARTS.items():
                bundle.writestr(name, _part(picker, name, path))
        unfinished.replace(archive)
    except OSError as error:
        fail(f"{archive} cannot be written: {error.strerror}")
    except AdminError as error:
        unfinished.unlink(missing_ok=True)
        fail(str(error)[:1000])
    click.echo(f"{archive} ({archive.stat().st_size // 1024 + 1} KiB): {', '.join(_PARTS)}")


def _part(picker: AdminClient, name: str, path: tuple[str, ...]) -> str:
    """Returns the reason in place of a part that the picker refuses."""
    try:
        return picker.text(*path, **({"limit": _MOST_DECISIONS, "values": "1"} if name == "decisions.json" else {}))
    except AdminError as error:
        if name == "config.json":
            raise
        return json.dumps({"error": str(error)})
