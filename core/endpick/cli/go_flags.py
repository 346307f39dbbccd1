"""Command lines in Go's syntax: `-flag`, `--flag=true`, booleans without a separate value, and did-you-mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import click

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
GIVEN = "endpick.given"
"""Key in `ctx.meta` for the given flags: their values as text by flag name."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class GoBoolean(click.ParamType[bool]):
    """Accepts Go's boolean literals."""

    name = "boolean"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Parse, or fail with exit code 2."""
        if isinstance(value, bool):
            return value
        if value in _TRUE:
            return True
        if value not in _FALSE:
            self.fail(f"'{value}' is not a boolean; write true or false", param, ctx)
        return False


GO_BOOLEAN = GoBoolean()


class GoCommand(click.Command):
    """A command with options in Go's syntax; `removed` maps each removed flag to its replacement."""

    removed: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the arguments into click's syntax; `ctx.meta[GIVEN]` keeps the given flags."""
        options = {name: option for option in self.get_params(ctx) if isinstance(option, click.Option) for name in _long_names(option)}
        rewritten: list[str] = []
        given: dict[str, str] = {}
        remaining = iter(args)
        for argument in remaining:
            name, equals, value = argument.lstrip("-").partition("=")
            if argument == "--":
                rewritten += (argument, *remaining)
            elif argument in ("-", "-h") or not argument.startswith("-"):
                rewritten.append(argument)
            else:
                known = known_name(name, options)
                if known is None:
                    raise click.UsageError(self._unknown(name, options), ctx)
                if options[known].is_flag:
                    rewritten.append(f"--{known}{equals}{value}")
                    continue
                setting = value if equals else "true" if isinstance(options[known].type, GoBoolean) else next(remaining, None)
                rewritten.append(f"--{known}" if setting is None else f"--{known}={setting}")
                given[known] = setting or ""
        ctx.meta[GIVEN] = given
        return super().parse_args(ctx, rewritten)

    def _unknown(self, name: str, options: Mapping[str, click.Option]) -> str:
        from endpick.diagnostics import did_you_mean

        if name in self.removed:
            return f"llm-d has removed --{name}, and endpick does not have it: {self.removed[name]}"
        hint = did_you_mean(f"--{name}", sorted(f"--{known}" for known in options)) or _flags_with_words_of(name, options)
        return f"no such flag: --{name}; {hint or 'see --help'}"


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by each of their names, without dashes."""
    return {name: option for option in command.params if isinstance(option, click.Option) for name in _long_names(option)}


def _flags_with_words_of(name: str, options: Mapping[str, click.Option]) -> str | None:
    """A hint that lists the flags containing every word of `name`: `--port` is part of several."""
    words = set(name.split("-"))
    likely = [f"--{known}" for known in options if words <= set(known.split("-"))]
    return f"there is {', '.join(likely)}" if likely else None


def _long_names(option: click.Option) -> Iterator[str]:
    return (name.lstrip("-") for name in option.opts)


def known_name(name: str, options: Mapping[str, click.Option]) -> str | None:
    """The flag of this name; older documents write `--configFile` for `--config-file`."""
    kebab = _HUMP.sub("-", name).lower()
    return name if name in options else kebab if kebab in options else None


class Duration(click.ParamType[float]):
    """A duration such as `50ms` or `1m30s`, converted to seconds."""

    name = "duration"

    def __init__(self, *, positive: bool = False) -> None:
        """`positive` refuses zero."""
        self._positive = positive

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse, or fail with exit code 2."""
        from endpick.api.duration import parse_duration

        if isinstance(value, float):
            return value
        try:
            seconds = parse_duration(str(value))
        except ValueError:
            self.fail(f"'{value}' is not a duration; write for example 50ms or 1m30s", param, ctx)
        if seconds < 0 or (self._positive and not seconds):
            self.fail(f"'{value}' is too short; write for example 50ms or 1m30s", param, ctx)
        return seconds


_BYTES = re.compile(r"(?<=[0-9kKMGTPEi])B$")


def _without_unit(text: str) -> str:
    """`10MiB` as a Kubernetes quantity; K means 1000, like k."""
    plain = _BYTES.sub("", text.strip())
    return f"{plain[:-1]}k" if plain.endswith("K") else plain


class Quantity(click.ParamType[int]):
    """A size such as `16Mi`, `1k`, `16MiB` or `25MB`, converted to a whole number of at least 1."""

    name = "quantity"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse, or fail with exit code 2."""
        from endpick.config.model import parse_quantity

        if isinstance(value, int):
            return value
        try:
            quantity = parse_quantity(_without_unit(str(value)))
        except ValueError:
            self.fail(f"'{value}' is not a quantity; write for example 16Mi or 500k", param, ctx)
        if quantity < 1:
            self.fail(f"'{value}' is too little; write for example 16Mi or 500k", param, ctx)
        return quantity


DURATION = Duration()
POSITIVE_DURATION = Duration(positive=True)
QUANTITY = Quantity()
