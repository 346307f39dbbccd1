"""`endpick replay`: decides recorded requests again with another configuration."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from endpick.api.keys import KV_CACHE_USAGE, PREFIX_MATCH_BLOCKS, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.cli.console import FORMAT_OPTION, json_text, plan_or_exit, print_diagnostics
from endpick.cli.outputs import EndpointValues, PredictedChange, ReplayExample, ReplayOutput, ReplayReason
from endpick.diagnostics import ExitCode
from endpick.diagnostics.tables import table
from endpick.testing.host import HostRefused
from endpick_lab.commands.simulate import explained_failures
from endpick_lab.compare import path_of
from endpick_lab.decisions import read_decisions
from endpick_lab.redecide import Redecided, Redecider, changes_of

_MEASURES = {
    PREFIX_MATCH_BLOCKS.name: "cached tokens",
    WAITING_QUEUE_SIZE.name: "waiting requests",
    RUNNING_REQUESTS_SIZE.name: "running requests",
    KV_CACHE_USAGE.name: "KV cache usage",
}
_EXAMPLES = 3
_GROUPS = 100  # requests that follow each other are alike, so whole groups are drawn
_DRAWS = 2000
_DIGITS = 6


OUTPUTS = {"replay": ReplayOutput}


@click.command("replay", context_settings={"show_default": True})
@click.argument("config")
@click.option("--decisions", required=True, type=click.Path(path_type=Path), help="File of `serve --decision-log` or `simulate --record`.")
@click.option("--seed", type=int, default=1, help="The same seed gives the same output.")
@FORMAT_OPTION
def command(config: str, decisions: Path, seed: int, output: Literal["text", "json"]) -> None:
    """Decide recorded requests again with CONFIG: moved picks, reasons, and the expected change.

    Each meets the endpoint values of its record, then goes where it went, so that plugins learn what happened. Other data sources or
    producers do not show, and nobody waits.

    The change is that of recorded values, from the recorded picks to the new ones, with a 95 % interval (bootstrap).
    """
    plan = plan_or_exit(path_of(config), as_json=output == "json")
    with explained_failures(decisions):
        recorded = read_decisions(decisions)
        print_diagnostics(recorded.warnings, [])
        try:
            redecider = Redecider(plan, seed)
        except HostRefused as refusal:
            click.echo(str(refusal), err=True)
            sys.exit(ExitCode.PLUGIN_UNUSABLE)
        with redecider.host:
            decided = list(redecider.decide(recorded))
            warnings = [*redecider.warnings(), *(f"'{name}' asks others, so it did not run" for name in redecider.left_out)]
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    report = _report(config, decisions.name, decided)
    click.echo(json_text(report.model_dump(by_alias=True)) if output == "json" else "".join(_text(report)), nl=False)


def _report(config: str, name: str, decided: Sequence[Redecided]) -> ReplayOutput:
    moved = [one for one in decided if one.moved]
    reasons = Counter(one.reason for one in moved)
    examples = {one.reason: one for one in reversed(moved)}
    return ReplayOutput(
        version=1,
        config=config,
        decisions=name,
        requests=len(decided),
        moved=len(moved),
        reasons=[ReplayReason(reason=reason, requests=requests) for reason, requests in reasons.most_common()],
        changes=[change for key, measure in _MEASURES.items() if (change := _change(decided, key, measure)) is not None],
        examples=[_example(examples[reason]) for reason, _ in reasons.most_common(_EXAMPLES)],
    )


def _change(decided: Sequence[Redecided], key: str, measure: str) -> PredictedChange | None:
    was, now = changes_of(decided, key)
    if not len(was):
        return None
    low, high = _interval(now - was)
    means = [round(float(value), _DIGITS) for value in (was.mean(), now.mean(), (now - was).mean(), low, high)]
    return PredictedChange(
        measure=measure, requests=len(was), recorded=means[0], replayed=means[1], change=means[2], low=means[3], high=means[4]
    )


def _interval(differences: np.ndarray[Any, Any]) -> tuple[float, float]:
    groups = np.array_split(differences, min(len(differences), _GROUPS))
    sums, sizes = np.array([(group.sum(), len(group)) for group in groups]).T
    drawn = np.random.default_rng(0).integers(0, len(groups), (_DRAWS, len(groups)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), (0.025, 0.975)).tolist()
    return low, high


def _example(one: Redecided) -> ReplayExample:
    totals = None if one.totals is None else [round(total, _DIGITS) for total in one.totals]
    return ReplayExample(id=one.id, time=one.time, was=_name(one.was), now=_name(one.now), reason=one.reason, totals=totals)


def _name(endpoint: EndpointValues | None) -> str | None:
    return None if endpoint is None else endpoint.name


def _text(report: ReplayOutput) -> Iterator[str]:
    share = report.moved / report.requests
    yield f"{report.decisions}: {report.moved} of {report.requests} picks move with {report.config} ({share:.1%})\n"
    if report.reasons:
        yield "\n" + table(["BECAUSE", "MOVES"], [[one.reason, str(one.requests)] for one in report.reasons])
    if report.changes:
        headers = ["AT THE PICK, MEAN", "RECORDED", "REPLAYED", "CHANGE", "95 % INTERVAL"]
        yield "\n" + table(headers, [_row(one) for one in report.changes])
    if report.examples:
        yield "\nfor example\n"
    for one in report.examples:
        totals = "" if one.totals is None else f" (total {one.totals[1]:.3f} against {one.totals[0]:.3f})"
        yield f"  {one.id}: {one.was or 'refused'} -> {one.now or 'refused'}: {one.reason}{totals}\n"
    yield (
        "\nEach request was decided alone, as if all before it had gone where they went. After the first move,\n"
        "caches and queues would be others, which no record can tell. To follow that:\n"
        f"  endpick simulate {report.config} --trace {report.decisions}\n"
    )


def _row(one: PredictedChange) -> list[str]:
    digits = 4 if max(one.recorded, one.replayed) < 10 else 1
    numbers = f"{one.recorded:.{digits}f}", f"{one.replayed:.{digits}f}", f"{one.change:+.{digits}f}"
    return [one.measure, *numbers, f"{one.low:+.{digits}f} to {one.high:+.{digits}f}"]
