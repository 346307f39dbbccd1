"""`endpick try`: makes one decision without a server and shows the answer of each plugin."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

import click
from pydantic import Field

from endpick.api.keys import ENDPOINT_HEALTH, HealthState
from endpick.cli.admin_client import TOKEN_OPTION, AdminClient, AdminError
from endpick.cli.console import FORMAT_OPTION, STANDARD_INPUT, fail, json_text, plan_or_exit, shown_destinations
from endpick.diagnostics import ExitCode
from endpick.diagnostics.tables import table
from endpick.requests.document import DecisionOutput
from endpick.requests.record import document_of
from endpick.scheduling.trace import FilterRecord, ProfileRecord
from endpick.testing.host import DEFAULT_PATH, Explanation, FixtureError, Host, HostRefused, arrange, missing_data, read_fixture


class TryOutput(DecisionOutput):
    """Output of `endpick try`."""

    headers: dict[str, str] = Field(description="Added to the request for the model server.")


OUTPUTS = {"try": TryOutput}


@click.command("try", short_help="Make one decision and show how each plugin voted.")
@click.argument("config")
@click.option("--request", "request_file", required=True, help="File with the request body; `-` reads standard input.")
@click.option("--endpoints", "endpoints_file", help="YAML or JSON file with the endpoints and their `data:`.")
@click.option("--from", "url", metavar="URL", help="Take the endpoints and their data from the metrics port of a running endpick.")
@TOKEN_OPTION
@click.option("--path", default=DEFAULT_PATH, show_default=True, help="Path of the request.")
@click.option("--header", "headers", multiple=True, metavar="NAME:VALUE", help="Request header; may be repeated.")
@click.option("--seed", default=1, show_default=True, help="Random seed; the same seed gives the same decision.")
@FORMAT_OPTION
def command(
    config: str,
    request_file: str,
    endpoints_file: str | None,
    url: str | None,
    token_file: Path | None,
    path: str,
    headers: tuple[str, ...],
    seed: int,
    output: Literal["text", "json"],
) -> None:
    """Make one decision with the plugins of CONFIG, and show the answer of each.

    The endpoints file has the format of `file-discovery`, plus `data:` with the reported values by data key:

    \b
      endpoints:
        - {name: a, address: 10.0.0.1, port: 8000, data: {waiting-queue-size: 3, kv-cache-usage: 0.5}}

    No data source or discovery runs, and plugins have learnt nothing. A request that flow control holds back waits for its time limit, with
    the endpoints as they are. Exit code 0: a decision was made, even if it refuses the request.
    """  # noqa: D301 - click needs the backspace character
    if (endpoints_file is None) == (url is None):
        raise click.UsageError("give the endpoints with --endpoints or --from")
    plan = plan_or_exit(config, as_json=output == "json")
    body = _content(request_file)
    situation = _content(endpoints_file) if endpoints_file is not None else _live(AdminClient(str(url), token_file))
    named = _headers(headers)
    try:
        with Host(plan, seed=seed) as host:
            arrange(host, read_fixture(situation))
            for warning in missing_data(host):
                click.echo(f"warning: {warning}", err=True)
            explanation = host.send(body, headers=named, path=path)
    except FixtureError as mistake:
        raise click.UsageError(f"{endpoints_file or url} cannot be used:\n{mistake}") from mistake
    except HostRefused as refusal:
        click.echo(str(refusal), err=True)
        sys.exit(ExitCode.PLUGIN_UNUSABLE)
    shown = {**document_of(explanation.record), "headers": explanation.headers}
    click.echo(json_text(TryOutput.model_validate(shown)) if output == "json" else _text(explanation), nl=False)


def _content(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
    except OSError as error:
        fail(f"{file} cannot be read: {error.strerror}")


def _live(picker: AdminClient) -> bytes:
    try:
        pool = picker.get("endpoints")
    except AdminError as error:
        fail(str(error)[:1000])
    named = ("name", "namespace", "address", "port", "labels", "data")
    ejected = [row for row in pool["endpoints"] if (row["data"].get(ENDPOINT_HEALTH.name) or {}).get("state") == HealthState.EJECTED]
    for endpoint in ejected:
        click.echo(f"warning: {endpoint['namespace']}/{endpoint['name']} is left out, because the running endpick has ejected it", err=True)
    endpoints = [{name: endpoint[name] for name in named} for endpoint in pool["endpoints"] if endpoint not in ejected]
    return json_text({"endpoints": endpoints, "pool": pool["pool"]}).encode()


def _headers(given: tuple[str, ...]) -> dict[str, str]:
    headers = {}
    for header in given:
        name, colon, value = header.partition(":")
        if not colon or not name.strip():
            raise click.UsageError(f"'{header}' is not a header; write NAME:VALUE, for example x-session-id:7")
        headers[name.strip()] = value.strip()
    return headers


def _text(explanation: Explanation) -> str:
    if explanation.waits:
        verdict = "waits in flow control, and nothing ends its wait while the endpoints stay as they are\n"
    elif explanation.status is None:
        verdict = f"goes to {shown_destinations(explanation.destinations)}\n"
    else:
        verdict = f"is refused with status {explanation.status}: {explanation.refusal}\n"
    lines = [
        f"the request {verdict}",
        *(f"  header {name}: {value}\n" for name, value in sorted(explanation.headers.items())),
        *(f"  left out by {removal.instance}: {', '.join(removal.endpoints)}\n" for removal in explanation.record.removed),
        *(f"\nprofile {run.profile}\n{_run(run)}" for run in explanation.runs),
        *(["\nfaults\n"] if explanation.faults else []),
        *(f"  {fault.instance} ({fault.extension_point}): {fault.problem}\n" for fault in explanation.faults),
    ]
    return "".join(lines)


def _run(run: ProfileRecord) -> str:
    filters = "".join(f"  filter {step.instance}: {_kept(step)}\n" for step in run.filters)
    failure = f"  no endpoint picked: {run.failure}\n" if run.failure else ""
    return filters + _scores(run) + failure


def _kept(step: FilterRecord) -> str:
    if step.problem:
        return f"failed: {step.problem}"
    dropped = f"; dropped {', '.join(step.dropped)}" if step.dropped else ""
    return f"kept {len(step.kept)} of {len(step.given)}{dropped}"


def _scores(run: ProfileRecord) -> str:
    if not run.candidates:
        return ""
    headers = ["ENDPOINT", *(f"{scorer.instance} x{scorer.weight:g}" for scorer in run.scorers), "TOTAL", f"PICK ({run.picker})"]
    rows = []
    for position in sorted(range(len(run.candidates)), key=lambda position: -run.totals[position]):
        name = run.candidates[position]
        scores = [
            f"{scorer.answered[position]:.3f} ({scorer.weighted[position]:.3f})" if scorer.answered else "failed" for scorer in run.scorers
        ]
        rank = str(run.picked.index(name) + 1) if name in run.picked else ""
        rows.append([name, *scores, f"{run.totals[position]:.3f}", rank])
    return table(headers, rows, 2)
