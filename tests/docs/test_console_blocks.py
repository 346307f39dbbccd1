"""What the pages show in a terminal is what a terminal shows."""

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
from docs.pages import ROOT, TUTORIAL, Block, all_blocks, blocks, pages
from docs.replay import Shell, as_shown, commands
from endpick.cli.main import VERBS, main

NOT_REPLAYED = "not replayed, "
INSTALLED_FOR = re.compile(r"with ([a-z-]+)")
BLOCKS = all_blocks("console")
PAGES = [page for page in pages() if page != TUTORIAL and any(block.language == "console" for block in blocks(page))]


@pytest.fixture
def shell(tmp_path: Path, fixture_project: Callable[[str], Path], make_distribution: Callable[..., Path]) -> Callable[[Block], Shell]:
    """The reader's terminal, with `endpick` on the path and the projects a block asks for installed."""
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
        path = [*projects, ROOT / "core", ROOT / "builtin_plugins" / "builtin"]
        terminal.environment = {
            "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return terminal

    return for_block


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_print_what_the_page_shows(page: Path, shell: Callable[[Block], Shell]):
    for block in blocks(page):
        if block.file:
            shell(block).write(block.file, block.text)
        if block.language != "console" or block.mark.startswith(NOT_REPLAYED):
            continue
        for command in commands(block):
            actual = shell(block).run(command.text)
            assert as_shown(command.expected, actual), f"{block.name}: $ {command.text}\nprints\n{actual}\nnot\n{command.expected}"


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.name)
def test_commands_of_endpick_parse(block: Block):
    for command in commands(block):
        words = shlex.split(command.text, comments=True)
        if words[:1] == ["endpick"]:
            assert_parses(list(takewhile(lambda word: word not in ("|", "&", ">"), words[1:])))


@pytest.mark.parametrize("block", [block for block in BLOCKS if "not replayed" in block.mark], ids=lambda block: block.name)
def test_a_block_that_is_not_replayed_says_why(block: Block):
    assert block.mark.removeprefix(NOT_REPLAYED) not in ("", block.mark)


def assert_parses(arguments: list[str]) -> None:
    """The verb exists, and so does every option."""
    if arguments[0].startswith("-"):
        return
    assert arguments[0] in VERBS
    verb = main.get_command(click.Context(main), arguments[0])
    assert verb is not None
    verb.make_context(arguments[0], list(arguments[1:]))


@pytest.mark.parametrize(
    ("expected", "actual", "fits"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\n...\nc\n", "a\nx\ny\nc\n", True),
        ("a\n...\nc\n", "a\nx\nd\n", False),
        ("took … ms\n", "took 12.5 ms\n", True),
        ("", "a\n", False),
        ("...\n", "", True),
    ],
)
def test_output_is_compared_line_by_line(expected: str, actual: str, fits: bool):
    assert as_shown(expected, actual) is fits
