"""Last step of a plan: the hook objects that the document names exist, and implement hooks that there are."""

from __future__ import annotations

from endpick.planning.draft import Draft


def check_hooks(draft: Draft) -> None:
    """Nothing yet."""
