"""Options declared as fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import click
import pytest
from click.testing import CliRunner

from endpick.cli.llm_d_flags import GoCommand
from endpick.cli.options import Count, Option, Seconds, Size, Switch, takes


@dataclass(frozen=True)
class First:
    size: Annotated[Size, Option("How large.")] = 16 << 10
    retry_after: Annotated[Seconds | None, Option("How long.")] = None


@dataclass(frozen=True)
class Second:
    wait: Annotated[Seconds, Option("How long.")] = 0.05
    files: Annotated[tuple[Path, ...], Option("Which.", "file")] = ()
    colour: Annotated[Literal["red", "blue"] | None, Option("Which.")] = None


@dataclass(frozen=True)
class Chosen(First, Second):
    source: str = "no option"
    fast: Annotated[Switch, Option("Whether.")] = True
    plain: Annotated[bool, Option("Whether.")] = False
    count: Annotated[Count, Option("How many.", metavar="N")] = 2


def parsed(*arguments: str) -> Chosen:
    found: list[Chosen] = []

    @click.command("try", cls=GoCommand)
    @click.argument("source", required=False, default="given")
    @takes(Chosen)
    def command(options: Chosen) -> None:
        found.append(options)

    result = CliRunner().invoke(command, arguments)
    if result.exit_code or not found:
        raise ValueError(result.output)
    return found[0]


def test_options_are_named_and_typed_by_their_fields():
    given = parsed("--size=2Mi", "--retry-after=1m", "--file=a", "--file=b", "--colour=red", "--fast=false", "--plain", "--count=3", "here")

    assert given == Chosen(
        size=2 << 20, retry_after=60, files=(Path("a"), Path("b")), colour="red", source="here", fast=False, plain=True, count=3
    )


def test_defaults_are_those_of_the_class():
    assert parsed() == Chosen(source="given")


def test_help_shows_options_in_order_with_defaults():
    with pytest.raises(ValueError, match="Usage") as shown:
        parsed("--help")

    lines = [line.split() for line in str(shown.value).splitlines() if line.startswith("  --")]
    assert [(words[0], words[-1]) for words in lines] == [
        ("--size", "16Ki]"), ("--retry-after", "long."), ("--wait", "50ms]"), ("--file", "Which."), ("--colour", "Which."),
        ("--fast", "True]"), ("--plain", "Whether."), ("--count", "x>=1]"), ("--help", "exit."),
    ]  # fmt: skip


@pytest.mark.parametrize("argument", ["--size=0", "--wait=-1s", "--count=0", "--colour=green", "--fast=maybe", "--retry-after=5"])
def test_wrong_values_are_refused_with_the_flag(argument: str):
    with pytest.raises(ValueError, match=f"Invalid value for '{argument.partition('=')[0]}'"):
        parsed(argument)
