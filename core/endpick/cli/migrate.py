"""`endpick migrate`: converts a start of llm-d's endpoint picker into an `endpick serve` command."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import click

from endpick.cli.console import STANDARD_INPUT
from endpick.cli.go_flags import GoBoolean, known_name, options_of
from endpick.cli.helm_values import Start, at, environment_of, start_of_values
from endpick.cli.llm_d_flags import FLAGS, REMOVED, VARIABLES, Effect
from endpick.diagnostics import ExitCode, did_you_mean

_SHOWN = {flag.name: flag for flag in FLAGS}


@click.command("migrate", short_help="Convert llm-d's arguments, Deployment or Helm values.")
@click.argument("source", required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(source: str | None, arguments: tuple[str, ...]) -> None:
    """Print the `endpick serve` command equivalent to llm-d's endpoint picker, and the differences.

    SOURCE is a file with a Deployment, with values of llm-d's Helm charts, or with a list of arguments; `-` reads standard input. Or
    give the arguments themselves: `endpick migrate -- --pool-name=chat --v=4`. Exit code 0: the command can be used as printed. 3: an
    argument is unknown, or removed by llm-d.
    """
    if source is None or (source.startswith("-") and source != STANDARD_INPUT):
        start = Start((*([] if source is None else [source]), *arguments), {})
    else:
        start = _read(source)
    flags, wrong = _flags(start.arguments)
    click.echo(_command_line(flags))
    for line in (*start.notes, *_differences(flags), *_variables(start.environment)):
        click.echo(f"# {' '.join(line.split())}")
    for line in wrong:
        click.echo(f"error: {line}", err=True)
    sys.exit(ExitCode.CONFIG_INVALID if wrong else ExitCode.OK)


def _read(source: str) -> Start:
    from endpick.config.load import documents_of

    try:
        documents = documents_of(_content(source))
    except (OSError, ValueError) as problem:
        raise click.UsageError(f"{source} cannot be read: {problem}") from problem
    for document in documents:
        start = _start_of(document)
        if start is not None:
            return start
    raise click.UsageError(f"{source} contains no Deployment of llm-d's endpoint picker, no chart values and no list of arguments")


def _content(source: str) -> str:
    return sys.stdin.buffer.read().decode() if source == STANDARD_INPUT else Path(source).read_text(encoding="utf-8")


def _start_of(document: object) -> Start | None:
    if isinstance(document, list):
        return Start(tuple(map(str, document)))
    if not isinstance(document, Mapping):
        return None
    values = start_of_values(document)
    if values is not None:
        return values
    containers = at(document, "spec", "template", "spec", "containers")
    for container in containers if isinstance(containers, list) else ():
        command, given = at(container, "command"), at(container, "args")
        arguments = [*_words(command)[1:], *_words(given)]
        if {word.lstrip("-").partition("=")[0] for word in arguments} & (_SHOWN.keys() | REMOVED.keys()):
            return Start(tuple(arguments), environment_of(at(container, "env")))
    return None


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _flags(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """The known flags with their values as text, and an error for each of the others."""
    from endpick.cli.serve import command as serve

    options = options_of(serve)
    flags: dict[str, str] = {}
    wrong: list[str] = []
    remaining = iter(arguments)
    for word in remaining:
        name, equals, value = word.lstrip("-").partition("=")
        known = known_name(name, options) if word.startswith("-") else None
        if known is not None:
            alone = isinstance(options[known].type, GoBoolean)
            setting = value if equals else "true" if alone else next(remaining, "")
            flags[known] = setting
        elif name in REMOVED:
            wrong.append(f"llm-d has removed --{name}: {REMOVED[name]}")
            if not equals and not name.endswith("skip-verify"):
                next(remaining, None)
        else:
            wrong.append(f"'{word}' is not a flag of llm-d; {did_you_mean(f'--{name}', [f'--{one}' for one in _SHOWN]) or 'leave it out'}")
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


def _variables(environment: Mapping[str, str]) -> Iterator[str]:
    for name in environment:
        if name in VARIABLES:
            yield f"{name} (environment) has no effect: {VARIABLES[name]}"
        elif name in ("NAMESPACE", "POD_NAME"):
            yield f"{name} (environment) has the same meaning in endpick: keep it"
