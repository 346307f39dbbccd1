"""Replays the commands that pages show."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import cache
from itertools import takewhile
from pathlib import Path

import click
import pytest

from docs.page_plugins import distribution_of
from docs.pages import ROOT, TUTORIAL, Block, all_blocks, blocks, named, pages
from docs.replay import Shell, as_shown, commands
from endpick.cli.main import main

NOT_REPLAYED = "not replayed, "
INSTALLED_FOR = re.compile(r"with ([a-z-]+)")
BLOCKS = all_blocks("console")
REPLAYED = [block for block in BLOCKS if not block.mark.startswith(NOT_REPLAYED)]
PAGES = [page for page in pages() if page != TUTORIAL and any(block.page == page for block in REPLAYED)]


@pytest.fixture
def shell(tmp_path: Path, fixture_project: Callable[[str], Path], make_distribution: Callable[..., Path]) -> Callable[[Block], Shell]:
    """The reader's terminal, with `endpick` on the path and the projects a block needs."""
    script = tmp_path / "bin" / "endpick"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m endpick "$@"\n')
    script.chmod(0o755)
    terminal = Shell(tmp_path / "work")
    terminal.folder.mkdir()

    @cache
    def of_page(page: Path) -> Path:
        return distribution_of(page, make_distribution)

    def for_block(block: Block) -> Shell:
        wanted = INSTALLED_FOR.fullmatch(block.mark)
        projects = [] if wanted is None else [of_page(block.page) if wanted[1] == "page" else fixture_project(wanted[1])]
        path = [*projects, ROOT / "core", ROOT / "builtin_plugins" / "builtin", *sorted((ROOT / "extras").iterdir())]
        terminal.environment = {
            "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return terminal

    return for_block


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_print_the_output_of_the_page(page: Path, shell: Callable[[Block], Shell]):
    for block in blocks(page):
        if block.file:
            shell(block).write(block.file, block.text)
        if block not in REPLAYED:
            continue
        for command in commands(block):
            actual = shell(block).run(command.text)
            assert as_shown(command.expected, actual), f"{block.name}: $ {command.text}\nprints\n{actual}\nnot\n{command.expected}"


def test_commands_of_endpick_parse():
    problems = []
    for block in BLOCKS:
        for command in commands(block):
            words = shlex.split(command.text, comments=True)
            if words[:1] == ["endpick"]:
                problem = parse_problem(list(takewhile(lambda word: word not in ("|", "&", ">"), words[1:])))
                problems += [f"{block.name}: {problem}"] if problem else []
    assert problems == []


def test_blocks_that_are_not_replayed_give_a_reason():
    assert [block.name for block in BLOCKS if "not replayed" in block.mark and not block.mark.removeprefix(NOT_REPLAYED).strip()] == []


def parse_problem(arguments: list[str]) -> str | None:
    """Why `endpick` rejects these arguments; None if verb and options exist."""
    if arguments[0].startswith("-"):
        return None
    verb = main.get_command(click.Context(main), arguments[0])
    if verb is None:
        return f"no verb {arguments[0]}"
    try:
        verb.make_context(arguments[0], list(arguments[1:]))
    except click.ClickException as error:
        return error.format_message()
    return None


def test_output_is_compared_line_by_line():
    assert as_shown("a\n", "a\n")
    assert not as_shown("a\n", "b\n")
    assert as_shown("a\n...\nc\n", "a\nx\ny\nc\n")
    assert not as_shown("a\n...\nc\n", "a\nx\nd\n")
    assert as_shown("took … ms\n", "took 12.5 ms\n")
    assert not as_shown("", "a\n")
    assert as_shown("...\n", "")
