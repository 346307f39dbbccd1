"""`endpick why`: explains a decision of a running endpick, or why an endpoint gets no traffic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from endpick.cli.admin_client import TOKEN_OPTION, URL_OPTION, AdminClient, AdminError
from endpick.cli.console import FORMAT_OPTION, fail, json_text, shown_destinations
from endpick.diagnostics.tables import table
from endpick.engine.reasons import PickHistory, Reason, pick_history, reason_of
from endpick.requests.document import DecisionOutput, ProfileRun

_MOST_DECISIONS = 200
_FIRST_ERROR = 400
_LONGEST = 60  # characters of a value


@click.command("why", short_help="Explain a decision of a running endpick.")
@click.argument("request_id", required=False)
@click.option("--endpoint", help="Instead of a request: why this endpoint gets traffic or not.")
@URL_OPTION
@TOKEN_OPTION
@FORMAT_OPTION
def command(request_id: str | None, endpoint: str | None, url: str, token_file: Path | None, output: str) -> None:
    """Explain why a request went where it did. REQUEST_ID is its x-request-id.

    Prints the answers of the plugins, the one that decided, and what would have changed the pick.

    The picker records 1 % of the decisions (--decision-sampling), all errors, and with --explain-header each request with the header
    x-endpick-explain.
    """
    if (request_id is None) == (endpoint is None):
        raise click.UsageError("name a request, or an endpoint with --endpoint")
    picker = AdminClient(url, token_file)
    try:
        if endpoint is not None:
            _endpoint(endpoint, picker, output)
        elif request_id is not None:
            _request(request_id, picker, output)
    except AdminError as error:
        fail(str(error)[:1000])


def _request(request_id: str, picker: AdminClient, output: str) -> None:
    document = picker.get("decisions", request_id)
    decision = DecisionOutput.model_validate(document)
    reasons = [reason_of(decision, run) for run in decision.runs]
    if output == "json":
        click.echo(json_text({"decision": document, "reasons": [asdict(reason) for reason in reasons]}), nl=False)
        return
    reads = {instance["name"]: (*instance["consumes"], *instance["consumesOptional"]) for instance in picker.get("plan")["instances"]}
    click.echo("".join(_explained(decision, reasons, reads)), nl=False)


def _fate(decision: DecisionOutput) -> str:
    if decision.status is None:
        return f"went to {shown_destinations(decision.destinations)}"
    return f"was refused with {decision.status}" if decision.status >= _FIRST_ERROR else f"was answered by a plugin with {decision.status}"


def _explained(decision: DecisionOutput, reasons: list[Reason], reads: dict[str, tuple[str, ...]]) -> Iterator[str]:
    yield f"request {decision.id} for model '{decision.model}' {_fate(decision)} at {decision.time}\n"
    if decision.refusal:
        yield f"  {decision.refusal}\n"
    if decision.waited is not None:
        yield f"  it waited {decision.waited.seconds:.3f} s; the pool was {decision.waited.saturation:.0%} full\n"
    yield from (f"  left out by {removal.instance}: {', '.join(removal.endpoints)}\n" for removal in decision.removed)
    yield from (f"  {fault.instance} failed ({fault.extension_point}): {fault.problem}\n" for fault in decision.faults)
    for run, reason in zip(decision.runs, reasons, strict=True):
        yield f"\nprofile {run.profile}: {reason.sentence}\n"
        yield from (f"  filter {step.instance} kept {len(step.kept)} of {len(step.given)}\n" for step in run.filters)
        yield _scores(run, reason)
        yield from _data(decision, reads.get(reason.decisive, ()), reason.decisive)
        yield from map(_flip_line, reason.flips)
    if not decision.runs and decision.why == "error":
        yield "  recorded because it failed; the answers of plugins are recorded with --decision-sampling 1 only\n"
    ended = decision.outcome
    if ended is not None:
        first = "" if ended.ttft_seconds is None else f", first byte after {ended.ttft_seconds:.3f} s"
        gateway = f"; the gateway says {ended.gateway_error}" if ended.gateway_error else ""
        yield f"\nanswered {ended.status} by {ended.served_by} in {ended.duration_seconds:.3f} s{first} ({ended.cause}){gateway}\n"


def _scores(run: ProfileRun, reason: Reason) -> str:
    if not run.candidates:
        return ""
    marked = [f"{'*' if scorer.instance == reason.decisive else ''}{scorer.instance} x{scorer.weight:g}" for scorer in run.scorers]
    rows = []
    for place in sorted(range(len(run.candidates)), key=lambda place: -run.totals[place]):
        name = run.candidates[place]
        scores = ["failed" if scorer.problem else f"{scorer.answered[place]:.3f}" for scorer in run.scorers]
        rank = "" if name not in run.picked else "picked" if name == run.picked[0] else f"fallback {run.picked.index(name)}"
        rows.append([name, *scores, f"{run.totals[place]:.3f}", rank])
    return "".join(f"  {line}\n" for line in table(["ENDPOINT", *marked, "TOTAL", ""], rows).splitlines())


def _data(decision: DecisionOutput, keys: tuple[str, ...], reader: str) -> Iterator[str]:
    for key in keys:
        known = [
            f"{endpoint.name} {_short(endpoint.values[key])}" + (f" ({endpoint.ages[key]:.2f} s old)" if key in endpoint.ages else "")
            for endpoint in decision.endpoints
            if key in endpoint.values
        ]
        if known:
            yield f"  {reader} read {key}: {', '.join(known)}\n"


def _short(value: Any) -> str:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        return ", ".join(f"{name} {_short(item)}" for name, item in value.items() if item not in (None, "", 0))
    return f"{value:g}" if isinstance(value, float | int) else str(value)[:_LONGEST]


def _flip_line(flip: Any) -> str:  # noqa: ANN401
    if flip.to is None:
        return f"  no other weight of {flip.scorer} changes the pick\n"
    return f"  with weight {flip.to:g} instead of {flip.weight:g}, {flip.scorer} would make it {flip.winner}\n"


def _endpoint(endpoint: str, picker: AdminClient, output: str) -> None:
    pool = picker.get("endpoints")["endpoints"]
    found = next((row for row in pool if endpoint in (row["name"], f"{row['namespace']}/{row['name']}", _address(row))), None)
    if found is None:
        known = ", ".join(f"{row['namespace']}/{row['name']}" for row in pool) or "none"
        raise AdminError(f"there is no endpoint '{endpoint}' in the pool; known are {known}")
    name = f"{found['namespace']}/{found['name']}"
    decisions = picker.get("decisions", endpoint=name, limit=str(_MOST_DECISIONS))["decisions"]
    history = pick_history(name, [DecisionOutput.model_validate(decision) for decision in decisions])
    if output == "json":
        click.echo(json_text({"endpoint": found, "standing": asdict(history)}), nl=False)
    else:
        click.echo("".join(_history_lines(name, found, history)), nl=False)


def _address(endpoint: dict[str, Any]) -> str:
    return f"{endpoint['address']}:{endpoint['port']}"


def _history_lines(name: str, endpoint: dict[str, Any], history: PickHistory) -> Iterator[str]:
    yield f"{name} at {_address(endpoint)}\n"
    for key, value in endpoint["data"].items():
        yield f"  {key}: {_short(value)} ({endpoint['ages'][key]:.2f} s old)\n"
    if not endpoint["data"]:
        yield "  it has never reported data\n"
    if not history.decisions:
        yield "\nno decision with it is recorded yet; --decision-sampling 1 records all\n"
        return
    yield f"\npicked in {history.picked} of the last {history.decisions} recorded decisions\n"
    yield from (f"  {count} times {reason}\n" for reason, count in history.losses)
