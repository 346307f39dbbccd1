"""`endpick migrate`: converts a start of llm-d's endpoint picker into an `endpick serve` command, and configurations to v1."""

from __future__ import annotations

import difflib
import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from endpick.cli.console import STANDARD_INPUT, fail, print_diagnostics
from endpick.cli.llm_d_flags import FLAGS, VARIABLES, Effect, known_name, options_of, removed_flags
from endpick.cli.options import GO_BOOLEAN
from endpick.diagnostics import Diagnostic, ExitCode, did_you_mean, has_errors
from endpick_migrate.sources import Input, MigrationError, Start, config_map, containers_of, inference_service, word
from endpick_migrate.values import starts_of_values

_SHOWN = {flag.name: flag for flag in FLAGS}
_KIND = "EndpointPickerConfig"
_READ = frozenset(
    {
        "NAMESPACE",
        "POD_NAME",
        "KUBECONFIG",
        "PREDICTION_SERVER_URL",
        "TRAINING_SERVER_URL",
        "LATENCY_COALESCE_WINDOW_MS",
        "LATENCY_FLUSH_INTERVAL_SEC",
        "LATENCY_HTTP_TIMEOUT_SEC",
        "LATENCY_MAX_COALESCED_ROWS",
        "LATENCY_MAX_CONCURRENT_DISPATCHES",
        "LATENCY_MAX_SAMPLE_SIZE",
    }
)
"""Variables that endpick or one of its plugins reads, too."""


@click.command("migrate", short_help="Convert llm-d's arguments, manifests, Helm values or configuration.")
@click.argument("source", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--diff", "diffs", is_flag=True, help="Show how a configuration would change, and write nothing.")
def command(source: str | None, arguments: tuple[str, ...], diffs: bool) -> None:
    """Print the `endpick serve` command equivalent to llm-d's endpoint picker, and all differences.

    SOURCE is a file with Kubernetes manifests (a Deployment, a ConfigMap, KServe's LLMInferenceService), with values of llm-d's Helm
    charts, or with a list of arguments; `-` reads standard input. Or give the arguments themselves:
    `endpick migrate -- --pool-name=chat --v=4`. What cannot be carried over is listed with the reason.

    If SOURCE is an EndpointPickerConfig, it is rewritten in place as llm-d.ai/v1; comments stay. Exit code 0: the result can be used as
    printed. 3: an argument is unknown, or removed by llm-d; a part has an unexpected shape; or a configuration is wrong.
    """
    if source is None or (source.startswith("-") and source != STANDARD_INPUT):
        sys.exit(_print_start(Start((*([] if source is None else [source]), *arguments)), ()))
    text = _content(source)
    documents = _documents(text, source)
    if len(documents) == 1 and isinstance(documents[0], Mapping) and documents[0].get("kind") == _KIND:
        sys.exit(_rewrite(source, text, diffs))
    sys.exit(_convert(documents, source))


def _content(source: str) -> str:
    try:
        return sys.stdin.buffer.read().decode() if source == STANDARD_INPUT else Path(source).read_text(encoding="utf-8")
    except OSError as problem:
        fail(f"{source} cannot be read: {problem.strerror}")
    except ValueError as problem:
        raise click.UsageError(f"{source} cannot be read: {problem}") from problem


def _documents(text: str, source: str) -> list[object]:
    from endpick.config.load import documents_of

    try:
        documents = documents_of(text)
    except ValueError as problem:
        raise click.UsageError(f"{source} cannot be read: {problem}") from problem
    return [item for document in documents for item in _items(document) if item is not None]


def _items(document: object) -> list[object]:
    items = document.get("items") if isinstance(document, Mapping) else None
    return items if isinstance(items, list) else [document]


def _rewrite(source: str, text: str, diffs: bool) -> int:
    from endpick_migrate.config import rewrite

    found = _check(text, source)
    if any(mistake.is_error and mistake.code.family <= 2 for mistake in found):
        return ExitCode.CONFIG_INVALID
    new, changes = rewrite(text)
    if diffs:
        before, after = text.splitlines(keepends=True), new.splitlines(keepends=True)
        click.echo("".join(difflib.unified_diff(before, after, source, source)), nl=False)
    elif source == STANDARD_INPUT:
        click.echo(new, nl=False)
    elif changes:
        Path(source).write_text(new, encoding="utf-8")
    for change in changes or ("nothing to change",):
        click.echo(f"{source}: {change}", err=True)
    return ExitCode.CONFIG_INVALID if has_errors(found) else ExitCode.OK


def _check(text: str, name: str) -> tuple[Diagnostic, ...]:
    from endpick.cli.validate import judge_plan
    from endpick.config import load_config
    from endpick.host.discovery import discover

    loaded = load_config(text=text, name=name)
    found = judge_plan(loaded, discover())
    print_diagnostics([mistake for mistake in found if mistake.is_error], [loaded])
    return found


def _convert(documents: Sequence[object], source: str) -> int:
    codes: list[int] = []
    for number, document in enumerate(documents, 1):
        read = Input(document)
        try:
            starts = list(_starts(read))
        except MigrationError as problem:
            click.echo(f"error: {problem}", err=True)
            codes.append(ExitCode.CONFIG_INVALID)
            continue
        for index, start in enumerate(starts):
            codes.append(_print_start(start, read.leftovers() if index == len(starts) - 1 else ()))
        if not starts and len(documents) > 1:
            kind = document.get("kind") if isinstance(document, Mapping) else None
            click.echo(f"# document {number} ({kind or 'of no kind'}) is not carried over: nothing in it starts an endpoint picker")
    if not codes:
        raise click.UsageError(
            f"{source} contains no Deployment of llm-d's endpoint picker, no ConfigMap or LLMInferenceService with its configuration, "
            "no chart values and no list of arguments"
        )
    return max(codes)


def _starts(read: Input) -> Iterator[Start]:
    document = read.data
    if isinstance(document, list):
        yield Start(tuple(word(argument) for argument in read.sequence()))
    elif isinstance(document, Mapping) and document.get("kind") == _KIND:
        raise MigrationError(f"an {_KIND} among other documents; put it into a file of its own")
    elif isinstance(document, Mapping):
        flags = (*_SHOWN, *removed_flags())
        for part in ("apiVersion", "kind"):
            read.get(part)
        whole = config_map(read) or inference_service(read, flags)
        if whole is not None:
            yield whole
        else:
            yield from (*starts_of_values(read), *containers_of(read, flags))


def _print_start(start: Start, leftovers: Iterable[str]) -> int:
    flags, wrong = _flags(start.arguments)
    if start.arguments or not start.configs:
        click.echo(_command_line(flags))
    for line in (*start.notes, *_differences(flags), *_variables(start.environment), *leftovers):
        click.echo(f"# {' '.join(line.split())}")
    for line in wrong:
        click.echo(f"error: {line}", err=True)
    texts = {place: given if isinstance(given, str) else json.dumps(given) for place, given in start.configs.items()}
    checked = [_check(text, place) for place, text in texts.items()]
    return ExitCode.CONFIG_INVALID if wrong or any(map(has_errors, checked)) else ExitCode.OK


def _flags(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    from endpick.cli.serve import command as serve
    from endpick.config.upstream import State, find_name

    options = options_of(serve.params)
    flags: dict[str, str] = {}
    wrong: list[str] = []
    remaining = iter(arguments)
    for given in remaining:
        name, equals, value = given.lstrip("-").partition("=")
        known = known_name(name, options) if given.startswith("-") else None
        upstream = find_name("flag", name)
        if known is not None:
            alone = options[known].type is GO_BOOLEAN
            flags[known] = value if equals else "true" if alone else next(remaining, "")
        elif upstream is not None and upstream.state is State.REMOVED:
            wrong.append(f"llm-d has removed --{name}: {upstream.advice}")
            if not equals and not name.endswith("skip-verify"):
                next(remaining, None)
        elif upstream is not None:
            wrong.append(f"endpick does not have --{name}; {upstream.status}")
        else:
            advice = did_you_mean(f"--{name}", [f"--{flag}" for flag in _SHOWN]) or "leave it out"
            wrong.append(f"'{given}' is not a flag of llm-d; {advice}")
    return flags, wrong


def _command_line(flags: Mapping[str, str]) -> str:
    idle = {flag.name for flag in FLAGS if flag.effect is Effect.NONE}
    kept = [shlex.quote(f"--{name}={value}") for name, value in flags.items() if name not in idle]
    return " \\\n  ".join(("endpick serve", *kept))


def _differences(flags: Iterable[str]) -> Iterator[str]:
    for name in flags:
        flag = _SHOWN.get(name)
        if flag is not None and flag.note:
            yield f"--{name}{' is left out' if flag.effect is Effect.NONE else ''}: {flag.note}"


def _variables(environment: Mapping[str, str | None]) -> Iterator[str]:
    for name in environment:
        if name in VARIABLES:
            yield f"{name} (environment) has no effect: {VARIABLES[name]}"
        elif name in _READ or name.startswith("OTEL_"):
            yield f"{name} (environment) has the same meaning in endpick: keep it"
        else:
            yield f"{name} (environment) is not carried over: endpick does not read it"
