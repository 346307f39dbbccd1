"""`endpick test`: runs the conformance kit on installed plugins."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click
from pydantic import Field

from endpick import __version__
from endpick.cli.console import FORMAT_OPTION, complete_types, json_text
from endpick.cli.output import Output
from endpick.diagnostics import Code, Diagnostic, ExitCode, did_you_mean, exit_code_of, render_json, render_text, wants_colour
from endpick.host.discovery import API_MAJOR, ENTRY_POINT_GROUP_PREFIX, OWN_DISTRIBUTIONS, Candidate, discover, find_installed, normalise
from endpick.host.loader import LoadedPlugin, load
from endpick.host.resolution import Reference, resolve
from endpick.testing.kit import FIRST, CheckOutcome, CheckStatus, ConformanceReport, conformance, describe_outcome

LIMIT_SECONDS = 60.0  # per check


class FindingOutput(Output):
    """A broken rule, and how to fix it."""

    message: str
    help: str


class Verdict(Output):
    """The result of one check of one plugin."""

    id: str
    rule: str
    status: str
    reason: str = Field(description="Why a check was skipped or expected to fail.")
    findings: list[FindingOutput]


class TestedPlugin(Output):
    """A plugin class tested by the conformance kit."""

    type: str
    distribution: str
    version: str
    class_: str = Field(alias="class")
    conforms: bool
    checks: list[Verdict]


class TestOutput(Output):
    """Output of `endpick test`."""

    endpick: str
    plugin_api: int = Field(description="Major version of the plugin API of this endpick.")
    plugins: list[TestedPlugin]


OUTPUTS = {"test": TestOutput}

_NOTHING_INSTALLED = Diagnostic(
    Code.E0301,
    "no plugin is installed except endpick's own",
    help="install your project into the environment of this endpick: python -m pip install --editable .",
    notes=("`endpick test --dist endpick` tests endpick's own", f"this endpick runs in {sys.prefix}"),
)


@click.command("test", short_help="Run the conformance kit on installed plugins.")
@click.argument("plugin_type", metavar="[TYPE]", required=False, shell_complete=complete_types)
@click.option("--dist", "distribution", help="Test every type of this distribution; with TYPE, the distribution if several offer it.")
@FORMAT_OPTION
def command(plugin_type: str | None, distribution: str | None, output: str) -> None:
    """Run the conformance kit on one plugin type, on all types of a distribution, or on all third-party plugins.

    Exit code 0: all plugins conform; 4: a plugin is missing, cannot be loaded, or breaks a rule.
    """
    candidates = discover()
    plugins, problems = _load_all(_references(plugin_type, distribution, candidates), candidates)
    reports = [conformance(plugin.plugin, candidates=candidates, limit_seconds=LIMIT_SECONDS) for plugin in plugins]
    tested = list(zip(plugins, reports, strict=True))
    if output == "text":
        click.echo(render_text(problems, colour=wants_colour(sys.stderr)), err=True, nl=False)
        click.echo("".join(f"{_text(plugin, report)}\n" for plugin, report in tested), nl=False)
    elif problems and not tested:
        click.echo(render_json(problems), nl=False)
    else:
        shown = [*(_tested(plugin, report) for plugin, report in tested), *map(_not_loaded, problems)]
        click.echo(json_text(TestOutput(endpick=__version__, plugin_api=API_MAJOR, plugins=shown)), nl=False)
    conforms = all(report.conforms for report in reports)
    sys.exit(exit_code_of(problems) or (ExitCode.OK if conforms else ExitCode.PLUGIN_UNUSABLE))


def _references(plugin_type: str | None, distribution: str | None, candidates: Sequence[Candidate]) -> list[Reference] | Diagnostic:
    if plugin_type is not None:
        if ":" in plugin_type or "/" in plugin_type:
            raise click.BadParameter(
                f"'{plugin_type}' is a place in the code; give the plugin type, as `endpick list` shows it", param_hint="TYPE"
            )
        return [Reference(plugin_type, distribution=distribution)]
    if distribution is None:
        others = [candidate for candidate in candidates if normalise(candidate.distribution) not in OWN_DISTRIBUTIONS]
        return [Reference(candidate.type, distribution=candidate.distribution) for candidate in others] or _NOTHING_INSTALLED
    wanted = normalise(distribution)
    offered = [candidate for candidate in candidates if normalise(candidate.distribution) == wanted]
    return [Reference(candidate.type, distribution=candidate.distribution) for candidate in offered] or _nothing_offered(distribution)


def _load_all(references: list[Reference] | Diagnostic, candidates: Sequence[Candidate]) -> tuple[list[LoadedPlugin], list[Diagnostic]]:
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
    installed = {copy.key: copy for copy in reversed(find_installed())}
    group = f"{ENTRY_POINT_GROUP_PREFIX}{API_MAJOR}"
    found = installed.get(normalise(distribution))
    if found is None:
        close = did_you_mean(distribution, sorted(installed))
        return Diagnostic(
            Code.E0301, f"no distribution '{distribution}' is installed", help=close or "install it into the environment of this endpick"
        )
    return Diagnostic(
        Code.E0301,
        f"{found.origin} is installed and has no entry points in the group '{group}'",
        help=f'add "acme.my-type" = "module:Class" under [project.entry-points."{group}"] in its pyproject.toml, and install it again',
        notes=(f"its metadata is at {found.path}", *([f"it has entry points in {', '.join(found.groups)}"] if found.groups else [])),
    )


def _text(plugin: LoadedPlugin, report: ConformanceReport) -> str:
    counts = {status: sum(outcome.status is status for outcome in report.outcomes) for status in CheckStatus}
    listed = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    lines = [f"{plugin.type} ({plugin.candidate.origin}): {listed}"]
    lines += [f"\n{describe_outcome(outcome, report.subject)}" for outcome in report.faults]
    lines += [f"  skipped {outcome.check.id}: {outcome.reason}" for outcome in report.outcomes if outcome.status is CheckStatus.SKIPPED]
    return "\n".join(lines)


def _tested(plugin: LoadedPlugin, report: ConformanceReport) -> TestedPlugin:
    return TestedPlugin(
        type=plugin.type,
        distribution=plugin.candidate.distribution,
        version=plugin.candidate.version,
        class_=report.subject.target,
        conforms=report.conforms,
        checks=[_verdict(outcome) for outcome in report.outcomes],
    )


def _verdict(outcome: CheckOutcome) -> Verdict:
    findings = [FindingOutput(message=finding.message, help=finding.help) for finding in outcome.findings]
    return Verdict(id=outcome.check.id, rule=outcome.check.doc, status=outcome.status.value, reason=outcome.reason, findings=findings)


def _not_loaded(problem: Diagnostic) -> TestedPlugin:
    plugin = problem.plugin
    finding = FindingOutput(message=f"{problem.message} [{problem.code}]", help=problem.help or "")
    return TestedPlugin(
        type=plugin.type if plugin else "",
        distribution=(plugin and plugin.distribution) or "",
        version=(plugin and plugin.version) or "",
        class_="",
        conforms=False,
        checks=[Verdict(id=FIRST.id, rule=FIRST.doc, status=CheckStatus.FAILED.value, reason="", findings=[finding])],
    )
