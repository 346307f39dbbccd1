"""`endpick doctor`: examines the environment and says what will make trouble."""

from __future__ import annotations

import json
import platform
import sys

import click

from endpick import __version__
from endpick.cli.console import FORMAT_OPTION, json_text, table
from endpick.diagnostics import Diagnostic, ExitCode, render_json, render_text, wants_colour
from endpick.installation import API_MAJOR, request_path
from endpick.plugins.discovery import Candidate
from endpick.plugins.health import Health, examine, import_place


@click.command("doctor")
@click.option("--strict", is_flag=True, help="End with exit status 4 if anything was found.")
@click.option("--load", "loads", is_flag=True, help="Import every plugin, to find broken and slow ones.")
@FORMAT_OPTION
def command(strict: bool, loads: bool, output: str) -> None:
    """Examine the environment: doubled, stale and broken installations, clashes, unmet requirements.

    Imports no plugin unless told to with --load.
    """
    health = examine()
    loaded = _load(health) if loads else {}
    diagnostics = (*health.diagnostics, *(fault for _, faults in loaded.values() for fault in faults))
    seconds = {candidate: taken for candidate, (taken, _) in loaded.items()}
    click.echo(_json(health, diagnostics, seconds) if output == "json" else _text(health, diagnostics, seconds), nl=False)
    if strict and diagnostics:
        raise SystemExit(ExitCode.PLUGIN_UNUSABLE)


def _load(health: Health) -> dict[Candidate, tuple[float, tuple[Diagnostic, ...]]]:
    from endpick.plugins.loader import load  # imports numpy, pydantic and jsonschema
    from endpick.plugins.resolution import Reference

    usable = (one for one in health.candidates if one.is_valid and one.speaks_our_api and not one.shadowed_by)
    loadings = {candidate: load(candidate, Reference(candidate.type)) for candidate in usable}
    return {
        candidate: (loading.loaded.load_seconds if loading.loaded else 0.0, loading.diagnostics) for candidate, loading in loadings.items()
    }


def _text(health: Health, diagnostics: tuple[Diagnostic, ...], seconds: dict[Candidate, float]) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    parts = [f"endpick {__version__}, plugin API {API_MAJOR}, request path {request_path()}\n{python}\n"]
    rows = ((copy.name or "(empty)", copy.version or "-", _installation(copy.source_path), copy.path) for copy in health.copies)
    parts.append(table(("DISTRIBUTION", "VERSION", "INSTALLED", "METADATA"), rows))
    if health.hook_objects:
        parts.append(table(("HOOK OBJECT", "FROM", "TARGET"), ((one.type, one.origin, one.target) for one in health.hook_objects)))
    if seconds:
        slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
        rows_loaded = ((one.type, one.origin, f"{taken * 1000:.1f} ms", import_place(one)) for one, taken in slowest)
        parts.append(table(("TYPE", "FROM", "IMPORT", "MODULE"), rows_loaded))
    if diagnostics:
        parts.append(render_text(diagnostics, colour=wants_colour(sys.stdout)))
    count = len(diagnostics)
    parts.append("nothing wrong was found\n" if not count else f"{count} finding{'s' if count > 1 else ''}\n")
    return "\n".join(parts)


def _installation(source_path: str) -> str:
    return f"editable from {source_path}" if source_path else "wheel"


def _json(health: Health, diagnostics: tuple[Diagnostic, ...], seconds: dict[Candidate, float]) -> str:
    return json_text(
        {
            "endpick": __version__,
            "api": API_MAJOR,
            "requestPath": request_path(),
            "python": platform.python_version(),
            "executable": sys.executable,
            "distributions": [
                {"name": copy.name, "version": copy.version, "metadataPath": copy.path, "sourcePath": copy.source_path}
                for copy in health.copies
            ],
            "hookObjects": [{"name": one.type, "distribution": one.distribution, "target": one.target} for one in health.hook_objects],
            "importSeconds": {f"{one.type} ({one.distribution})": round(taken, 6) for one, taken in seconds.items()},
            "findings": json.loads(render_json(diagnostics)),
        }
    )
