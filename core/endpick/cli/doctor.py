"""`endpick doctor`: checks the environment for problems."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import click
from pydantic import Field

from endpick import __version__
from endpick.cli.admin_client import AdminClient, AdminError
from endpick.cli.console import FORMAT_OPTION, json_text
from endpick.cli.doctor_checks import Environment, examine
from endpick.cli.output import Output
from endpick.cli.verbs import installed_verbs
from endpick.config.upstream import AS_OF
from endpick.diagnostics import Code, Diagnostic, ExitCode, render_json, render_text, wants_colour
from endpick.diagnostics.tables import table
from endpick.host.discovery import API_MAJOR, Candidate, RequestPath, import_place, request_path

_Seconds = dict[Candidate, float]  # of imports
_OF_CONFIGURATIONS = frozenset({Code.W0303, Code.W0304, Code.W0309})  # `validate` reports those a configuration uses


class ExaminedDistribution(Output):
    """One metadata directory on the import path."""

    name: str
    version: str
    metadata_path: str
    source_path: str


class HookObject(Output):
    """A hook object that an installed distribution offers."""

    name: str
    distribution: str
    target: str


class ServingProcess(Output):
    """The health of a serving endpick."""

    url: str
    ready: bool
    remarks: list[str] = Field(description="Why it is not ready, and which plugins it skips.")


class DoctorOutput(Output):
    """The document that `endpick doctor --format json` prints."""

    endpick: str
    api: int = Field(description="Major version of the plugin API of this endpick.")
    request_path: RequestPath
    llm_d_router_as_of: str = Field(alias="llmDRouterAsOf", description="The day on which names were compared with llm-d-router.")
    python: str
    executable: str
    distributions: list[ExaminedDistribution]
    hook_objects: list[HookObject]
    import_seconds: dict[str, float] = Field(description="With --load, by type and distribution.")
    serving: ServingProcess | None = Field(description="With --serving.")
    findings: dict[str, Any] = Field(description="See the schema of diagnostics.")


OUTPUTS = {"doctor": DoctorOutput}


@click.command("doctor")
@click.option("--strict", is_flag=True, help="Exit with code 4 if anything is wrong, 5 if the serving endpick reports something.")
@click.option("--load", "loads", is_flag=True, help="Import every plugin to find broken and slow ones.")
@click.option("--serving", "url", help="Also check a serving endpick at its metrics port, such as http://127.0.0.1:9090.")
@FORMAT_OPTION
def command(strict: bool, loads: bool, url: str | None, output: str) -> None:
    """Check the environment: duplicate, stale and broken installations, clashes, unmet requirements.

    Runs the checks of installed hook objects, too. Imports plugins only with --load. --serving also shows if that process is ready, and
    which plugins have an open circuit.
    """
    environment = Environment.at()
    answer = None if url is None else ask_serving(url)
    loaded = _load(environment) if loads else {}
    diagnostics = (*examine(environment), *installed_verbs().mistakes, *(fault for _, faults in loaded.values() for fault in faults))
    seconds = {candidate: taken for candidate, (taken, _) in loaded.items()}
    render = _json if output == "json" else _text
    click.echo(render(environment, diagnostics, seconds, answer), nl=False)
    if strict and answer is not None and (not answer.ready or answer.remarks):
        raise SystemExit(ExitCode.FAILED)
    if strict and diagnostics:
        raise SystemExit(ExitCode.PLUGIN_UNUSABLE)


def ask_serving(url: str) -> ServingProcess:
    """Return the readiness from `/healthz`. Raises UsageError if `url` is not HTTP."""
    client = AdminClient(url)
    try:
        lines = client.text("healthz").splitlines()
        return ServingProcess(url=url, ready=True, remarks=[line for line in lines if line != "ok" and not line.endswith(": ok")])
    except AdminError as error:
        return ServingProcess(url=url, ready=False, remarks=str(error).splitlines())


def _load(environment: Environment) -> dict[Candidate, tuple[float, tuple[Diagnostic, ...]]]:
    from endpick.host.loader import load
    from endpick.host.resolution import Reference

    usable = (candidate for candidate in environment.candidates if candidate.is_usable)
    loadings = {candidate: load(candidate, Reference(candidate.type)) for candidate in usable}
    return {
        candidate: (
            loading.loaded.load_seconds if loading.loaded else 0.0,
            tuple(fault for fault in loading.diagnostics if fault.code not in _OF_CONFIGURATIONS),
        )
        for candidate, loading in loadings.items()
    }


def _text(environment: Environment, diagnostics: tuple[Diagnostic, ...], seconds: _Seconds, answer: ServingProcess | None) -> str:
    python = f"{platform.python_implementation()} {platform.python_version()} at {sys.executable}"
    parts = [f"endpick {__version__}, plugin API {API_MAJOR}, request path {request_path()}\n{python}\n"]
    parts[0] += f"compatible with llm-d-router as of {AS_OF}\n"
    rows = (
        (copy.name, copy.version or "-", f"editable from {copy.source_path}" if copy.source_path else "wheel", copy.path)
        for copy in environment.copies
    )
    parts.append(table(("DISTRIBUTION", "VERSION", "INSTALLED", "METADATA"), rows))
    if environment.hook_objects:
        parts.append(table(("HOOK OBJECT", "FROM", "TARGET"), ((hook.type, hook.origin, hook.target) for hook in environment.hook_objects)))
    if seconds:
        slowest = sorted(seconds.items(), key=lambda item: (-item[1], item[0]))
        rows_loaded = ((plugin.type, plugin.origin, f"{taken * 1000:.1f} ms", import_place(plugin.module)) for plugin, taken in slowest)
        parts.append(table(("TYPE", "FROM", "IMPORT", "MODULE"), rows_loaded))
    if answer is not None:
        lines = (f"{answer.url} is {'ready' if answer.ready else 'not ready'}", *answer.remarks)
        parts.append("".join(f"{line}\n" for line in lines))
    if diagnostics:
        parts.append(render_text(diagnostics, colour=wants_colour(sys.stdout)))
    count = len(diagnostics) + (0 if answer is None else len(answer.remarks))
    parts.append("no problems found\n" if not count else f"{count} finding{'s' if count > 1 else ''}\n")
    return "\n".join(parts)


def _json(environment: Environment, diagnostics: tuple[Diagnostic, ...], seconds: _Seconds, answer: ServingProcess | None) -> str:
    shown = DoctorOutput(
        endpick=__version__,
        api=API_MAJOR,
        request_path=request_path(),
        llm_d_router_as_of=AS_OF,
        python=platform.python_version(),
        executable=sys.executable,
        distributions=[
            ExaminedDistribution(name=copy.name, version=copy.version, metadata_path=copy.path, source_path=copy.source_path)
            for copy in environment.copies
        ],
        hook_objects=[HookObject(name=hook.type, distribution=hook.distribution, target=hook.target) for hook in environment.hook_objects],
        import_seconds={f"{plugin.type} ({plugin.distribution})": round(taken, 6) for plugin, taken in seconds.items()},
        serving=answer,
        findings=json.loads(render_json(diagnostics)),
    )
    return json_text(shown)
