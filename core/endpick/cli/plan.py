"""`endpick plan` and `endpick graph`: a configuration with all defaults resolved, and its data flow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import click

from endpick.api import Parser, ProfileHandler, SaturationDetector
from endpick.cli.console import ENDPOINTS_OPTION, FORMAT_OPTION, json_text, plan_or_exit
from endpick.diagnostics.tables import table
from endpick.engine.plan_document import Picture, PlanDocument, document_of, picture_of
from endpick.host.kinds import KINDS, Kind
from endpick.host.planning.plan import FlowControlSettings, Plan, PlannedInstance, PlannedProfile

NONE = "-"

OUTPUTS = {"plan": PlanDocument, "graph": Picture}


@click.command("plan", short_help="Show the resolved plan: order, weights and defaults.")
@click.argument("config", required=False)
@ENDPOINTS_OPTION
@FORMAT_OPTION
def plan(config: str | None, endpoints_file: Path | None, output: Literal["text", "json"]) -> None:
    """Show the plan of CONFIG: instances in order, defaults with their reasons, and the data flow.

    `-` reads standard input. Without CONFIG, the built-in default is shown.
    """
    plan = plan_or_exit(config, as_json=output == "json", endpoints_file=endpoints_file)
    if output == "json":
        click.echo(json_text(document_of(plan)), nl=False)
    else:
        click.echo("\n".join(_sections(plan)), nl=False)


def _sections(plan: Plan) -> Iterator[str]:
    yield f"plan of {plan.config.path}\n"
    rows = [(instance.label, instance.loaded.candidate.origin, _defined(instance, plan)) for instance in plan.instances]
    yield "instances\n" + table(("name (type)", "from", "defined"), rows, 2)
    for profile in plan.profiles:
        yield f"scheduling profile {profile.name}\n" + table(("step", "instance", "weight"), _steps(profile), 2)
    yield "requests\n" + table(("step", "instances"), _request(plan), 2)
    if plan.flow_control is not None:
        yield "waiting\n" + table(_BAND_COLUMNS, _bands(plan.flow_control), 2) + _limits(plan.flow_control)
    yield "collection\n" + table(("source", "collectors", "unread"), _collection(plan), 2)
    if plan.graph.subscriptions:
        data = [(subscription.consumer, subscription.key, subscription.producer) for subscription in plan.graph.subscriptions]
        yield "data\n" + table(("who reads", "what", "from whom"), data, 2)
    if plan.announcements:
        yield "filled in\n" + "".join(f"  {announcement.message}\n" for announcement in plan.announcements)


def _steps(profile: PlannedProfile) -> Iterator[tuple[str, str, str]]:
    for name in profile.filters:
        yield "filter", name, ""
    for scorer in profile.scorers:
        yield "scorer", scorer.instance, f"{scorer.weight:g}" if scorer.weight_given else f"{scorer.weight:g} (default)"
    yield "picker", profile.picker, ""


def _request(plan: Plan) -> Iterator[tuple[str, str]]:
    taking_part: dict[Kind, tuple[str, ...]] = {
        Parser: plan.parsers,
        SaturationDetector: () if plan.detector is None else (plan.detector,),
        ProfileHandler: (plan.handler,),
        **plan.on_request,
    }
    for row in sorted(KINDS.values(), key=lambda row: row.layer):
        if row.api in taking_part:
            yield row.name, _listed(taking_part[row.api])


_BAND_COLUMNS = ("priority", "bytes", "requests", "fairness", "ordering", "at most for")


def _bands(settings: FlowControlSettings) -> Iterator[tuple[str, ...]]:
    listed = [(str(priority), settings.bands[priority]) for priority in sorted(settings.bands, reverse=True)]
    for name, band in (*listed, ("others", settings.template), ("others below 0", settings.negative_template)):
        yield name, str(band.max_bytes), str(band.max_requests), band.fairness, band.ordering, _seconds(settings.ttl_of(band))


def _limits(settings: FlowControlSettings) -> str:
    eviction = settings.eviction
    rows = (
        ("in all", f"{settings.max_bytes or 'any'} bytes, {settings.max_requests or 'any'} requests"),
        ("at most for", f"{_seconds(settings.ttl_seconds)}, {_seconds(settings.no_endpoint_ttl_seconds)} without endpoints"),
        ("usage limit", settings.usage_limit),
        ("eviction", "off" if eviction is None else f"{eviction.filter}, {eviction.ordering}"),
    )
    return "".join(f"  {name + ':':<13}{value}\n" for name, value in rows)


def _seconds(seconds: float) -> str:
    return f"{seconds:g} s" if seconds else "any time"


def _collection(plan: Plan) -> Iterator[tuple[str, str, str]]:
    if plan.discovery is not None:
        yield plan.discovery, "the endpoints themselves", ""
    for source in plan.sources:
        yield source.instance, _listed(source.active), _listed(name for name in source.collectors if name not in source.active)


def _defined(instance: PlannedInstance, plan: Plan) -> str:
    return "added" if instance.path is None else f"line {plan.config.source.value_span(instance.path).line}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or NONE


@click.command("graph", short_help="Draw which plugin produces data for which other.")
@click.argument("config", required=False)
@click.option("--format", "output", type=click.Choice(["mermaid", "json"]), default="mermaid", show_default=True)
def graph(config: str | None, output: Literal["mermaid", "json"]) -> None:
    """Draw the data flow of CONFIG: sources, collectors, producers and their readers. Dashed arrows are optional.

    `-` reads standard input. Without CONFIG, the built-in default is drawn.
    """
    picture = picture_of(plan_or_exit(config, as_json=output == "json"))
    click.echo(json_text(picture) if output == "json" else mermaid(picture), nl=False)


def mermaid(picture: Picture) -> str:
    """Return a Mermaid flowchart, which GitHub and GitLab render."""
    number = {node.name: f"n{index}" for index, node in enumerate(picture.nodes)}
    lines = ["flowchart LR", *(f'  {number[node.name]}["{_escaped(node.name)}"]' for node in picture.nodes)]
    for arrow in picture.arrows:
        line = "-->" if arrow.needed else "-.->"
        lines.append(f'  {number[arrow.giver]} {line}|"{"<br/>".join(map(_escaped, arrow.what))}"| {number[arrow.taker]}')
    added = [number[node.name] for node in picture.nodes if node.added]
    if added:
        lines += ["  classDef added stroke-dasharray: 4 3", f"  class {','.join(added)} added"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return "".join(character if character.isalnum() or character in " -_./@" else f"#{ord(character)};" for character in text)
