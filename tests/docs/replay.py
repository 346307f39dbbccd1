"""Replays console blocks: runs the commands and compares their output."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from docs.pages import Block


@dataclass(frozen=True)
class Command:
    """One command of a block and its output on the page."""

    text: str
    expected: str


def commands(block: Block) -> Iterator[Command]:
    """The commands: lines that begin with `$ `, continued after a backslash, each followed by its output."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        lines = part.splitlines(keepends=True)
        length = next(at for at, line in enumerate(lines, 1) if not line.endswith("\\\n"))
        yield Command("".join(lines[:length]).strip(), "".join(lines[length:]))


def as_shown(expected: str, actual: str) -> bool:
    """True if output matches a page: a line `...` stands for any lines, `…` for any text within a line."""
    pattern = "".join(
        "(?:.*\n)*" if line.strip() == "..." else re.escape(line.rstrip()).replace("…", ".*?") + "[ ]*\n" for line in expected.splitlines()
    )
    return re.fullmatch(pattern, actual if actual.endswith("\n") or not actual else actual + "\n") is not None


@dataclass
class Shell:
    """A reader's terminal: a folder, variables, and the status of the last command."""

    folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    prologue: str = ""  # runs before each command
    status: int = 0

    def write(self, name: str, text: str) -> None:
        """Save a file of the page."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, command: str, timeout_seconds: float = 60.0) -> str:
        """Run a command; returns stdout and stderr together."""
        script = f"{self.prologue}\n(exit {self.status})\n{command}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80", **self.environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
        self.status = done.returncode
        return done.stdout
