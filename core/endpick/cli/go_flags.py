"""Command lines as Go programs read them: `-flag` and `--flag`, `--flag=true`, booleans that take no word of their own, did-you-mean."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

import click

_TRUE = frozenset({"1", "t", "T", "TRUE", "true", "True"})
_FALSE = frozenset({"0", "f", "F", "FALSE", "false", "False"})
GIVEN = "endpick.given"
"""Where a `GoCommand` keeps what the command line gave, as text, by the name of the flag."""
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class GoBoolean(click.ParamType[bool]):
    """The words that Go takes for booleans."""

    name = "boolean"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> bool:
        """Parse, or fail with exit code 2."""
        if isinstance(value, bool):
            return value
        if value in _TRUE:
            return True
        if value not in _FALSE:
            self.fail(f"'{value}' is no boolean; write true or false", param, ctx)
        return False


GO_BOOLEAN = GoBoolean()


class GoCommand(click.Command):
    """A command whose options may be written as for a Go program; `removed` says of each former flag what took its place."""

    removed: Mapping[str, str] = {}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Rewrite the arguments into click's own notation, then have click read them; `ctx.meta[GIVEN]` keeps what was given."""
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
        from endpick.diagnostics import did_you_mean  # only a mistake pays for it

        if name in self.removed:
            return f"llm-d has removed --{name}, and endpick does not have it: {self.removed[name]}"
        hint = did_you_mean(f"--{name}", sorted(f"--{known}" for known in options)) or _flags_with_words_of(name, options)
        return f"no such flag: --{name}; {hint or 'see --help'}"


def boolean(name: str, *, default: bool, help: str) -> Callable[[Callable[..., None]], Callable[..., None]]:  # noqa: A002 - click's word
    """A click option that is `--name`, `--name=true` or `--name=false`."""
    return click.option(name, type=GO_BOOLEAN, default=default, show_default=True, help=help)


def options_of(command: click.Command) -> dict[str, click.Option]:
    """The options of a command, by each of their names without dashes."""
    return {name: option for option in command.params if isinstance(option, click.Option) for name in _long_names(option)}


def _flags_with_words_of(name: str, options: Mapping[str, click.Option]) -> str | None:
    """A hint that lists the flags in whose names every word of `name` stands: `--port` is a part of several."""
    words = set(name.split("-"))
    likely = [f"--{known}" for known in options if words <= set(known.split("-"))]
    return f"there is {', '.join(likely)}" if likely else None


def _long_names(option: click.Option) -> Iterator[str]:
    return (name.lstrip("-") for name in option.opts)


def known_name(name: str, options: Mapping[str, click.Option]) -> str | None:
    """The flag of this name; older documents write `--configFile` for `--config-file`."""
    kebab = _HUMP.sub("-", name).lower()
    return name if name in options else kebab if kebab in options else None
