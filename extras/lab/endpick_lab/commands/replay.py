"""`endpick replay`: decides recorded requests again with another configuration."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np
from pydantic import Field

from endpick.api.keys import KV_CACHE_USAGE, PREFIX_MATCH_BLOCKS, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE
from endpick.cli.console import FORMAT_OPTION, json_text, plan_or_exit, print_diagnostics
from endpick.cli.output import Output
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


class ReplayReason(Output):
    """Why picks moved."""

    reason: str
    requests: int


class PredictedChange(Output):
    """A value of the endpoints at the recorded and the new picks, over the requests that have both."""

    measure: str
    requests: int
    recorded: float = Field(description="Mean.")
    replayed: float = Field(description="Mean.")
    change: float
    low: float = Field(description="Of the 95 % interval of the change.")
    high: float


class ReplayExample(Output):
    """A request whose pick moved."""

    id: str
    time: str
    was: str | None = Field(description="Null if it was refused.")
    now: str | None = Field(description="Null if it is refused.")
    reason: str
    totals: list[float] | None = Field(description="Of both picks; null if the configuration does not rate the recorded one.")


class ReplayOutput(Output):
    """Output of `endpick replay`."""

    version: Literal[1]
    config: str
    decisions: str
    requests: int
    moved: int = Field(description="Requests that go to another endpoint.")
    reasons: list[ReplayReason] = Field(description="The most frequent first.")
    changes: list[PredictedChange]
    examples: list[ReplayExample]


OUTPUTS = {"replay": ReplayOutput}


@click.command("replay", context_settings={"show_default": True})
@click.argument("config")
@click.option("--decisions", required=True, type=click.Path(path_type=Path), help="File of `serve --decision-log` or `simulate --record`.")
@click.option("--seed", type=int, default=1, help="The same seed gives the same output.")
@FORMAT_OPTION
def command(config: str, decisions: Path, seed: int, output: Literal["text", "json"]) -> None:
    """Decide recorded requests again with CONFIG: moved picks, reasons, and the expected change.

    Each meets the endpoint values of its record, then goes where it went, so that plugins learn what happened. Other data sources or
    producers do not show. A request that has to wait meets the recorded values until its time limit.

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
    click.echo(json_text(report) if output == "json" else "".join(_text(report)), nl=False)


def _report(config: str, name: str, decided: Sequence[Redecided]) -> ReplayOutput:
    moved = [decision for decision in decided if decision.moved]
    reasons = Counter(decision.reason for decision in moved)
    examples = {decision.reason: decision for decision in reversed(moved)}
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
    numbers = {"recorded": was.mean(), "replayed": now.mean(), "change": (now - was).mean(), "low": low, "high": high}
    return PredictedChange(measure=measure, requests=len(was), **{name: round(float(number), _DIGITS) for name, number in numbers.items()})


def _interval(differences: np.ndarray[Any, Any]) -> tuple[float, float]:
    groups = np.array_split(differences, min(len(differences), _GROUPS))
    sums, sizes = np.array([(group.sum(), len(group)) for group in groups]).T
    drawn = np.random.default_rng(0).integers(0, len(groups), (_DRAWS, len(groups)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1), (0.025, 0.975)).tolist()
    return low, high


def _example(decision: Redecided) -> ReplayExample:
    totals = None if decision.totals is None else [round(total, _DIGITS) for total in decision.totals]
    was, now = (None if endpoint is None else endpoint.name for endpoint in (decision.was, decision.now))
    return ReplayExample(id=decision.id, time=decision.time, was=was, now=now, reason=decision.reason, totals=totals)


def _text(report: ReplayOutput) -> Iterator[str]:
    share = report.moved / report.requests
    yield f"{report.decisions}: {report.moved} of {report.requests} picks move with {report.config} ({share:.1%})\n"
    if report.reasons:
        yield "\n" + table(["BECAUSE", "MOVES"], [[reason.reason, str(reason.requests)] for reason in report.reasons])
    if report.changes:
        headers = ["AT THE PICK, MEAN", "RECORDED", "REPLAYED", "CHANGE", "95 % INTERVAL"]
        yield "\n" + table(headers, [_row(change) for change in report.changes])
    if report.examples:
        yield "\nfor example\n"
    for example in report.examples:
        totals = "" if example.totals is None else f" (total {example.totals[1]:.3f} against {example.totals[0]:.3f})"
        yield f"  {example.id}: {example.was or 'refused'} -> {example.now or 'refused'}: {example.reason}{totals}\n"
    yield (
        "\nEach request was decided alone, as if all before it had gone where they went. After the first move,\n"
        "caches and queues would be others, which no record can tell. To follow that:\n"
        f"  endpick simulate {report.config} --trace {report.decisions}\n"
    )


def _row(row: PredictedChange) -> list[str]:
    digits = 4 if max(row.recorded, row.replayed) < 10 else 1
    numbers = f"{row.recorded:.{digits}f}", f"{row.replayed:.{digits}f}", f"{row.change:+.{digits}f}"
    return [row.measure, *numbers, f"{row.low:+.{digits}f} to {row.high:+.{digits}f}"]
