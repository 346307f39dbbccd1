"""`endpick doctor`: checks the environment for problems."""

from __future__ import annotations

import json
import platform
import sys
from dataclasses import dataclass

import click

from endpick import __version__
from endpick.cli.admin_client import AdminClient, AdminError
from endpick.cli.console import FORMAT_OPTION, json_text
from endpick.cli.verbs import installed_verbs
from endpick.config.upstream import AS_OF
from endpick.diagnostics import Code, Diagnostic, ExitCode, render_json, render_text, wants_colour
from endpick.diagnostics.tables import table
from endpick.host.discovery import API_MAJOR, Candidate, import_place, request_path
from endpick.host.environment import Health, examine

_OF_CONFIGURATIONS = frozenset({Code.W0303, Code.W0304, Code.W0309})  # `validate` reports those a configuration uses


@click.command("doctor")
@click.option("--strict", is_flag=True, help="Exit with code 4 if anything is wrong, 5 if the serving endpick reports something.")
@click.option("--load", "loads", is_flag=True, help="Import every plugin to find broken and slow ones.")
@click.option("--serving", "url", help="Also check a serving endpick at its metrics port, such as http://127.0.0.1:9090.")
@FORMAT_OPTION
def command(strict: bool, loads: bool, url: str | None, output: str) -> None:
    """Check the environment: duplicate, stale and broken installations, clashes, unmet requirements.

    Imports plugins only with --load. --serving also shows if that process is ready, and which plugins have an open circuit.
    """
    health = examine()
    answer = None if url is None else ask_serving(url)
    loaded = _load(health) if loads else {}
    diagnostics = (*health.diagnostics, *installed_verbs().mistakes, *(fault for _, faults in loaded.values() for fault in faults))
    seconds = {candidate: taken for candidate, (taken, _) in loaded.items()}
    render = _json if output == "json" else _text
    click.echo(render(health, diagnostics, seconds, answer), nl=False)
    if strict and answer is not None and (not answer.ready or answer.remarks):
        raise SystemExit(ExitCode.FAILED)
    if strict and diagnostics:
        raise SystemExit(ExitCode.PLUGIN_UNUSABLE)


@dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The answer of `/healthz`; `remarks` lists skipped plugins, or why it is not ready."""

    url: str
    ready: bool
    remarks: tuple[str, ...]


def ask_serving(url: str) -> HealthAnswer:
    """Read `/healthz`. Raises UsageError for a `url` that is not HTTP."""
    client = AdminClient(url)
    try:
        lines = client.text("healthz").splitlines()
        return HealthAnswer(url, ready=True, remarks=tuple(line for line in lines if line != "ok" and not line.endswith(": ok")))
    except AdminError as error:
        return HealthAnswer(url, ready=False, remarks=tuple(str(error).splitlines()))


def _load(health: Health) -> dict[Candidate, tuple[float, tuple[Diagnostic, ...]]]:
    from endpick.host.loader import load
    from endpick.host.resolution import Reference

    usable = (one for one in health.candidates if one.is_usable)
    loadings = {candidate: load(candidate, Reference(candidate.type)) for candidate in usable}
    return {
        candidate: (
            loading.loaded.load_seconds if loading.loaded else 0.0,
            tuple(fault for fault in loading.diagnostics if fault.code not in _OF_CONFIGURATIONS),
        )
        for candidate, loading in loadings.items()
    }


def _text(health: Health, diagnostics: tuple[Diagnostic, ...], seconds: dict[Candidate, float], answer: HealthAnswer | None) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    parts = [f"endpick {__version__}, plugin API {API_MAJOR}, request path {request_path()}\n{python}\n"]
    parts[0] += f"compatible with llm-d-router as of {AS_OF}\n"
    rows = ((copy.name, copy.version or "-", _installation(copy.source_path), copy.path) for copy in health.copies)
    parts.append(table(("DISTRIBUTION", "VERSION", "INSTALLED", "METADATA"), rows))
    if health.hook_objects:
        parts.append(table(("HOOK OBJECT", "FROM", "TARGET"), ((one.type, one.origin, one.target) for one in health.hook_objects)))
    if seconds:
        slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
        rows_loaded = ((one.type, one.origin, f"{taken * 1000:.1f} ms", import_place(one.module)) for one, taken in slowest)
        parts.append(table(("TYPE", "FROM", "IMPORT", "MODULE"), rows_loaded))
    if answer is not None:
        lines = (f"{answer.url} is {'ready' if answer.ready else 'not ready'}", *answer.remarks)
        parts.append("".join(f"{line}\n" for line in lines))
    if diagnostics:
        parts.append(render_text(diagnostics, colour=wants_colour(sys.stdout)))
    count = len(diagnostics) + (0 if answer is None else len(answer.remarks))
    parts.append("no problems found\n" if not count else f"{count} finding{'s' if count > 1 else ''}\n")
    return "\n".join(parts)


def _installation(source_path: str) -> str:
    return f"editable from {source_path}" if source_path else "wheel"


def _json(health: Health, diagnostics: tuple[Diagnostic, ...], seconds: dict[Candidate, float], answer: HealthAnswer | None) -> str:
    return json_text(
        {
            "endpick": __version__,
            "api": API_MAJOR,
            "requestPath": request_path(),
            "llmDRouterAsOf": AS_OF,
            "python": platform.python_version(),
            "executable": sys.executable,
            "distributions": [
                {"name": copy.name, "version": copy.version, "metadataPath": copy.path, "sourcePath": copy.source_path}
                for copy in health.copies
            ],
            "hookObjects": [{"name": one.type, "distribution": one.distribution, "target": one.target} for one in health.hook_objects],
            "importSeconds": {f"{one.type} ({one.distribution})": round(taken, 6) for one, taken in seconds.items()},
            "serving": None if answer is None else {"url": answer.url, "ready": answer.ready, "remarks": list(answer.remarks)},
            "findings": json.loads(render_json(diagnostics)),
        }
    )
