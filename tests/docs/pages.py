"""The fenced blocks of the documentation, with the marks that say how each is held true.

A mark is an HTML comment right above a block:

- `<!-- yaml: refused E0402 -->`: a configuration with exactly these errors; `endpoints`: an endpoint file; `kubernetes`: manifests;
  `part of PATH`: lines of that file of the repository; `with NAME`: a configuration that needs that fixture project, or for `page` the
  plugins on the page itself; `example TYPE`: a complete configuration without errors that uses the type; `excerpt`: YAML, and no more is
  claimed; `mistake`: not even that. Without a mark a block is a complete configuration without errors or warnings.
- `<!-- console: with NAME -->`: the same. `not replayed, REASON`: needs what a test does not have; commands of endpick must still parse.
- `<!-- file: NAME -->`: the block is the content of this file, where its first line does not say so (`# NAME`).
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
    """One fenced block."""

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    """What the mark of its own language says."""

    file: str = ""
    """The file it is the content of."""

    @property
    def name(self) -> str:
        """For test ids: `docs/how-to/debug.md:12`."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages() -> tuple[Path, ...]:
    """Every page that people read."""
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
    marks = dict([mark.groups()]) if (mark := _MARK.search(text, 0, match.start())) else {}
    named = _FILE_NAME.match(content)
    file = marks.get("file") or (named[1] if named else "")
    return Block(page, text.count("\n", 0, match.start()) + 1, language, content, marks.get(language, ""), file)
