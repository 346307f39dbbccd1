"""reference/diagnostics.md: every code endpick can report."""

from __future__ import annotations

import re

from docs_reference.markdown import page as markdown_page
from docs_reference.markdown import table
from endpick.diagnostics import Code
from endpick.diagnostics.explain import explanation

FAMILIES = {
    "01": "YAML text",
    "02": "Shape of the document",
    "03": "Plugins found and loaded",
    "04": "Parameters",
    "05": "References and profiles",
    "06": "Data",
    "07": "Life cycle",
    "08": "Environment",
}


def page() -> str:
    """The page."""
    families = dict.fromkeys(code.name[1:3] for code in Code)
    return markdown_page(
        "Diagnostics",
        "Look up here what a code such as `E0402` means, an example that causes it, and how to repair it. `endpick explain E0402` prints "
        "the same text in a terminal.",
        "E is an error and prevents the start, W a warning, N a note. A number never changes its meaning.",
        table(
            ("code", "title", "exit code"),
            (
                (f"[{code.name}](#{code.name.lower()})", code.title, str(int(code.exit_code)) if code.name[0] == "E" else "")
                for code in Code
            ),
        ),
        *(part for family in families for part in _family(family)),
    )


def _family(family: str) -> list[str]:
    return [f"## {FAMILIES[family]}", *(_entry(code) for code in Code if code.name[1:3] == family)]


def _entry(code: Code) -> str:
    title, _, body = explanation(code).partition("\n")
    sentence = title.removeprefix("# ").partition(":")[2].strip() or code.title
    # What is no YAML at all cannot be highlighted as such.
    fence = "```text" if code.name[1:3] == "01" else "<!-- yaml: mistake -->\n```yaml"
    body = re.sub(r"^```yaml", fence, body, flags=re.MULTILINE)
    return f"({code.name.lower()})=\n### {code.name}: {sentence}\n\n{body.strip()}"
