"""The fenced blocks of the documentation, and the marks that define how each is tested.

A mark is an HTML comment directly above a block:

- `<!-- yaml: refused E0402 -->`: a configuration with exactly these errors; `warned W0301`: with exactly these warnings; `endpoints`: an
  endpoint file; `kubernetes`: manifests; `part of PATH`: consecutive lines of that file of the repository; `with NAME`: a configuration
  that needs that fixture project, or for `page` the plugins on the page itself; `example TYPE`: a configuration without errors that uses
  the type; `excerpt`: valid YAML, not a configuration. Without a mark a block is a configuration without errors or warnings.
- `<!-- console: with NAME -->`: as above. `not replayed, REASON`: cannot run in a test; its endpick commands must still parse.
- `<!-- file: NAME -->`: the block is the content of this file, unless its first line names it (`# NAME`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorial" / "your-first-scorer.md"

_FENCE = re.compile(r"^```([a-z{}-]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- ([a-z]+): (.*?) -->\s*\Z")
_FILE_NAME = re.compile(r"\A# ([\w./-]+\.(?:yaml|toml|py|json))\n")


@dataclass(frozen=True)
class Block:
    """One fenced block; `mark` is for its own language, `file` the name of the file it shows."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    file: str = ""

    @property
    def name(self) -> str:
        """`docs/how-to/debug.md:12`."""
        return f"{named(self.page)}:{self.line}"


def named(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


def pages() -> tuple[Path, ...]:
    """Every page for readers."""
    return (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))


def blocks(page: Path) -> tuple[Block, ...]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    return tuple(_block(page, text, match) for match in _FENCE.finditer(text))


def all_blocks(language: str) -> list[Block]:
    """Every block of a language."""
    return [block for page in pages() for block in blocks(page) if block.language == language]


def _block(page: Path, text: str, match: re.Match[str]) -> Block:
    language, content = match[1], match[2]
    mark = _MARK.search(text, 0, match.start())
    marks = {mark[1]: mark[2]} if mark else {}
    first_line = _FILE_NAME.match(content)
    file = marks.get("file") or (first_line[1] if first_line else "")
    return Block(page, text.count("\n", 0, match.start()) + 1, language, content, marks.get(language, ""), file)
