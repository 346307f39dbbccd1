"""The page behind each code, as `endpick explain` prints it."""

from __future__ import annotations

from importlib.resources import files

from endpick.diagnostics.codes import Code


def explanation(code: Code) -> str:
    """The Markdown page of a code: what it means, an example that triggers it, how to repair it."""
    return files(__package__).joinpath(f"{code.name}.md").read_text(encoding="utf-8")
