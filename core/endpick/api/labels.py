"""A bound on label values that come from clients, so that a stranger cannot fill the metrics registry."""

from __future__ import annotations

MAX_LABEL_VALUES = 1000
"""Distinct client-derived values; llm-d's figure."""


class LabelLimit:
    """Lets the first values through and folds later ones into `other`.

    For a plugin that labels its metrics with what a client sent: a model name, a fairness id.
    """

    def __init__(self, maximum: int = MAX_LABEL_VALUES) -> None:
        """Remember at most `maximum` values."""
        self._maximum = maximum
        self._seen: set[str] = set()

    def __call__(self, value: str) -> str:
        """The value itself, or `other` once too many have been seen."""
        if value in self._seen:
            return value
        if len(self._seen) >= self._maximum:
            return "other"
        self._seen.add(value)
        return value
