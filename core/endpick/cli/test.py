"""`endpick test`: the conformance kit over installed plugins, for authors who have not written a test yet, and for CI."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

import click

from endpick import __version__
from endpick.cli.tables import FORMAT_OPTION, json_text
from endpick.diagnostics import Code, Diagnostic, ExitCode, did_you_mean, exit_code_of, render_json, render_text, wants_colour
from endpick.plugins.discovery import Candidate, discover
from endpick.plugins.loader import LoadedPlugin, load
from endpick.plugins.metadata import Metadata, effective, normalise, read_all
from endpick.plugins.reference import Reference
from endpick.plugins.resolution import resolve
from endpick.testing.kit import Report, Status, conformance, told
from endpick.versions import API_MAJOR, API_VERSION, ENTRY_POINT_GROUP_PREFIX


@click.command("test", short_help="Find what is wrong with a plugin.")
@click.argument("plugin_type", metavar="[TYPE]", required=False)
@click.option("--dist", "distribution", help="Every type of this distribution; with TYPE, whose, where several offer the type.")
@FORMAT_OPTION
def command(plugin_type: str | None, distribution: str | None, output: str) -> None:
    """Run the conformance kit over one plugin type, over all types of a distribution, or over everything that is not endpick's own.

    Exit code 0: nothing is wrong; 4: a plugin is missing, cannot be loaded, or breaks a rule.
    """
    candidates = discover()
    plugins, problems = _load_all(_references(plugin_type, distribution, candidates), candidates)
    if not plugins and not problems:
        click.echo("no plugins other than endpick's own are installed", err=True)
    reports = [conformance(plugin.plugin, candidates=candidates) for plugin in plugins]
    if problems and output == "json":
        click.echo(render_json(problems), nl=False)
    elif problems:
        click.echo(render_text(problems, colour=wants_colour(sys.stderr)), err=True, nl=False)
    if output == "json" and not problems:
        click.echo(json_text(_document(zip(plugins, reports, strict=True))), nl=False)
    elif output == "text":
        click.echo("\n".join(_text(plugin, report) for plugin, report in zip(plugins, reports, strict=True)), nl=bool(reports))
    conforms = all(report.conforms for report in reports)
    sys.exit(exit_code_of(problems) or (ExitCode.OK if conforms else ExitCode.PLUGIN_UNUSABLE))


def _references(plugin_type: str | None, distribution: str | None, candidates: Sequence[Candidate]) -> list[Reference] | Diagnostic:
    """The types to test; a diagnostic when the distribution has none."""
    if plugin_type is not None:
        return [Reference(plugin_type, distribution=distribution)]
    if distribution is None:
        return [Reference(one.type, distribution=one.distribution) for one in candidates if not one.is_builtin and not one.shadowed_by]
    wanted = normalise(distribution)
    offered = [one for one in candidates if normalise(one.distribution) == wanted and not one.shadowed_by]
    return [Reference(one.type, distribution=one.distribution) for one in offered] or _nothing_offered(distribution)


def _load_all(references: list[Reference] | Diagnostic, candidates: Sequence[Candidate]) -> tuple[list[LoadedPlugin], list[Diagnostic]]:
    """Each class once, whatever aliases lead to it, and why others cannot be had."""
    if isinstance(references, Diagnostic):
        return [], [references]
    plugins: dict[type, LoadedPlugin] = {}
    problems: list[Diagnostic] = []
    for reference in references:
        candidate = resolve(reference, candidates)
        if isinstance(candidate, Diagnostic):
            problems.append(candidate)
            continue
        loading = load(candidate, reference)
        problems += [diagnostic for diagnostic in loading.diagnostics if diagnostic.is_error]
        if loading.loaded is not None:
            plugins.setdefault(loading.loaded.plugin, loading.loaded)
    return list(plugins.values()), problems


def _nothing_offered(distribution: str) -> Diagnostic:
    installed: dict[str, Metadata] = effective(read_all())
    group = f"{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}"
    found = installed.get(normalise(distribution))
    if found is None:
        close = did_you_mean(distribution, sorted(installed))
        return Diagnostic(
            Code.E0301, f"no distribution '{distribution}' is installed", help=close or "install it into the environment of this endpick"
        )
    return Diagnostic(
        Code.E0301,
        f"{found.name} {found.version} is installed and has no entry points in the group '{group}'",
        help=f'add "acme.my-type" = "module:Class" under [project.entry-points."{group}"] in its pyproject.toml, and install it again',
        notes=(f"its metadata is at {found.path}",),
    )


def _text(plugin: LoadedPlugin, report: Report) -> str:
    counts = {status: sum(outcome.status is status for outcome in report.outcomes) for status in Status}
    listed = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    lines = [f"{plugin.type} ({plugin.candidate.origin}): {listed}"]
    lines += [f"\n{told(outcome, report.subject)}" for outcome in report.faults]
    lines += [f"  skipped {one.check.id}: {one.reason}" for one in report.outcomes if one.status is Status.SKIPPED]
    return "\n".join(lines)


def _document(tested: Iterable[tuple[LoadedPlugin, Report]]) -> dict[str, object]:
    return {
        "endpick": __version__,
        "pluginApi": API_VERSION,
        "plugins": [
            {
                "type": plugin.type,
                "distribution": plugin.candidate.distribution,
                "version": plugin.candidate.version,
                "class": report.subject.target,
                "conforms": report.conforms,
                "checks": [
                    {
                        "id": outcome.check.id,
                        "rule": outcome.check.doc,
                        "status": outcome.status.value,
                        "reason": outcome.reason,
                        "findings": [{"message": finding.message, "help": finding.help} for finding in outcome.findings],
                    }
                    for outcome in report.outcomes
                ],
            }
            for plugin, report in tested
        ],
    }
