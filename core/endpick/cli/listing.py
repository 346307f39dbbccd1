"""`endpick list` and `endpick explain`: installed plugin types, and diagnostic codes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import click
from click.shell_completion import CompletionItem

from endpick.cli.console import FORMAT_OPTION, json_text
from endpick.diagnostics import Code, did_you_mean
from endpick.diagnostics.codes import explanation
from endpick.diagnostics.tables import table
from endpick.host.discovery import Candidate, discover, summary_of

if TYPE_CHECKING:
    from endpick.cli.listing_output import CodeExplanation, ListedPlugin, Status

OUTPUTS = {"list": "endpick.cli.listing_output:ListOutput", "explain": "endpick.cli.listing_output:ExplainOutput"}

_SHORT = {"conflict": "conflict: several distributions offer it", "invalid-name": "invalid name"}


@click.command("list")
@click.option("--load", "loads", is_flag=True, help="Import every plugin, to show its kind and if it works.")
@click.option("--kind", help="Only plugins of this kind, such as scorer; implies --load.")
@FORMAT_OPTION
def list_plugins(loads: bool, kind: str | None, output: str) -> None:
    """List the installed plugin types and their distributions. Imports plugins only with --load or --kind."""
    if kind is not None:
        _check_kind(kind)
    candidates = discover()
    rows = [_facts(candidate, status) for candidate, status in zip(candidates, statuses(candidates), strict=True)]
    if loads or kind:
        rows = [_loaded(row, candidate) if row["status"] == "ok" else row for row, candidate in zip(rows, candidates, strict=True)]
        rows = [row for row in rows if kind is None or kind in row.get("kinds", ())]
    click.echo(json_text({"plugins": rows}) if output == "json" else _text(rows, with_kinds=loads or kind is not None), nl=False)


def _check_kind(kind: str) -> None:
    from endpick.host.kinds import KINDS

    names = sorted(known.kind for known in KINDS)
    if kind not in names:
        hint = did_you_mean(kind, names) or f"there are {', '.join(names)}"
        raise click.UsageError(f"no plugin kind is named '{kind}'; {hint}")


def statuses(candidates: Sequence[Candidate]) -> list[Status]:
    """Return for each candidate `ok`, or the reason why no configuration can use it."""
    usable = (candidate for candidate in candidates if candidate.is_usable)
    offers = Counter(candidate.type for candidate in usable)
    return [_status(candidate, offers[candidate.type]) for candidate in candidates]


def _status(candidate: Candidate, offers: int) -> Status:
    if not candidate.is_valid:
        return "invalid-name"
    if not candidate.speaks_our_api:
        return "other-api"
    return "conflict" if offers > 1 else "ok"


def _facts(candidate: Candidate, status: Status) -> ListedPlugin:
    return {
        "type": candidate.type,
        "distribution": candidate.distribution,
        "version": candidate.version,
        "api": candidate.api_major,
        "status": status,
        "builtin": candidate.is_builtin,
        "editable": bool(candidate.source_path),
        "sourcePath": candidate.source_path,
        "target": candidate.target,
        "metadataPath": candidate.metadata_path,
        "summary": summary_of(candidate),
    }


def _text(rows: Sequence[ListedPlugin], *, with_kinds: bool) -> str:
    if not rows:
        return "no plugin types are installed\n"
    headers = ["TYPE", *(["KIND"] if with_kinds else []), "DESCRIPTION"]
    blocks = []
    for origin in dict.fromkeys(map(_origin, rows)):
        lines = [
            [row["type"], *([", ".join(row.get("kinds", ())) or "-"] if with_kinds else []), _shown_summary(row)]
            for row in rows
            if _origin(row) == origin
        ]
        blocks.append(f"{origin}\n{table(headers, lines, 2)}")
    troubled = sum(row["status"] != "ok" for row in rows)
    footer = f"\n{troubled} of {len(rows)} need attention; run `endpick doctor`\n" if troubled else ""
    return "\n".join(blocks) + footer


def _origin(row: ListedPlugin) -> str:
    editable = f", editable: {row['sourcePath']}" if row["editable"] else ""
    return f"{row['distribution']} {row['version']}{' (builtin)' if row['builtin'] else ''}{editable}"


def _shown_summary(row: ListedPlugin) -> str:
    if row["status"] == "ok":
        return row["summary"]
    if row["status"] == "other-api":
        return f"needs plugin API {row['api']}"
    return row.get("problem") or _SHORT.get(row["status"], row["status"])


def _loaded(row: ListedPlugin, candidate: Candidate) -> ListedPlugin:
    from endpick.host.loader import load
    from endpick.host.resolution import Reference

    loading = load(candidate, Reference(candidate.type))
    loaded = loading.loaded
    if loaded is None:
        fault = loading.diagnostics[0]
        return {**row, "status": "broken", "problem": f"broken: {fault.message} [{fault.code}]"}
    return {
        **row,
        "kinds": [kind.kind for kind in loaded.kinds],
        "summary": loaded.summary,
        "stability": loaded.plugin.stability,
        "loadSeconds": round(loaded.load_seconds, 6),
    }


def _complete_codes(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(code.name, help=code.title) for code in Code if code.name.startswith(incomplete.upper())]


@click.command("explain", short_help="Explain a diagnostic code such as E0301.")
@click.argument("code", required=False, shell_complete=_complete_codes)
@click.option("--format", "output", type=click.Choice(["text", "json"]), default="text", help="Output format.")
def explain(code: str | None, output: Literal["text", "json"]) -> None:
    """Explain a diagnostic CODE such as E0301; without one, list all codes."""
    codes = tuple(Code) if code is None else (_find(code),)
    if output == "json":
        click.echo(json.dumps([_explained(found) for found in codes], indent=2, ensure_ascii=False))
    elif code is None:
        click.echo("\n".join(f"{found.name}  {found.title}" for found in codes))
    else:
        click.echo(explanation(codes[0]), nl=False)


def _find(name: str) -> Code:
    known = {code.name: code for code in Code}
    found = known.get(name.strip().upper())
    if found is None:
        hint = did_you_mean(name.strip().upper(), known) or "'endpick explain' lists all codes"
        message = f"'{name}' is not a diagnostic code; {hint}"
        raise click.BadParameter(message, param_hint="CODE")
    return found


def _explained(code: Code) -> CodeExplanation:
    return {
        "code": code.name,
        "severity": code.severity.value,
        "title": code.title,
        "exitCode": int(code.exit_code),
        "explanation": explanation(code),
    }
