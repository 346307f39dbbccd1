"""reference/diagnostics.md: every code endpick can report."""

from __future__ import annotations

from docs_reference.markdown import page as markdown_page
from docs_reference.markdown import table
from endpick.diagnostics import Code
from endpick.diagnostics.codes import explanation

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
    return markdown_page(
        "Diagnostics",
        "All codes that endpick reports. `endpick explain E0402` explains one, with an example and the repair.",
        "E is an error and prevents the start, W a warning, N a note. The exit code is 3 for the configuration, 4 for a plugin, 5 for "
        "the environment. A number never changes its meaning.",
        *(part for family in dict.fromkeys(code.name[1:3] for code in Code) for part in _family(family)),
    )


def _family(family: str) -> tuple[str, str]:
    rows = ((code.name, str(int(code.exit_code)) if code.name[0] == "E" else "", _title(code)) for code in Code if code.name[1:3] == family)
    return f"## {FAMILIES[family]}", table(("code", "exit", "meaning"), rows)


def _title(code: Code) -> str:
    title = explanation(code).partition("\n")[0].partition(":")[2].strip() or code.title
    return title[0].upper() + title[1:]
