"""What observers add to the headers of a response and to its metadata, looked at entry by entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from endpick.api.request import check_headers, shown
from endpick.api.request_control import MetadataValue
from endpick.host.boundary import Step
from endpick.requests.intake import MOST_ADDED, plain_text, plain_value

_FOR_A_FAULT: Final = 1024
"""Characters for which a wrong entry counts: an answer may have no end."""


class _Left:
    """What is left of `MOST_ADDED` for one answer."""

    __slots__ = ("characters",)

    def __init__(self) -> None:
        self.characters = MOST_ADDED

    def take(self, characters: int) -> None:
        """Raises ValueError when there is no more."""
        self.characters -= characters
        if self.characters < 0:
            raise ValueError(f"answered more than {MOST_ADDED} characters")


def add_metadata(answer: Mapping[object, object], told: dict[str, dict[str, MetadataValue]], step: Step) -> None:
    """Add what an observer answered to what is told; a wrong entry is a fault of it. Whatever looking at the answer raises passes."""
    left = _Left()
    for namespace, entries in answer.items():
        if not isinstance(namespace, str) or not isinstance(entries, Mapping):
            step.fault(f"answered metadata {shown(namespace)}: {shown(entries)}; it takes a mapping for each namespace")
            left.take(_FOR_A_FAULT)
            continue
        for key, value in entries.items():
            if isinstance(key, str) and isinstance(value, str | float | int):
                name, plain = plain_text(key), plain_value(value)
                left.take(len(name) + (len(plain) if isinstance(plain, str) else 1))
                told.setdefault(plain_text(namespace), {})[name] = plain
            else:
                step.fault(f"wants metadata {shown(key)} set to {shown(value)}; it takes strings, numbers and booleans")
                left.take(_FOR_A_FAULT)


def add_headers(answer: Mapping[object, object], added: dict[str, str | None], step: Step) -> None:
    """Add what an observer answered to what is added, as `add_metadata`."""
    left = _Left()
    for name, value in answer.items():
        if isinstance(name, str) and (value is None or isinstance(value, str)):
            plain = "" if value is None else plain_text(value)
            check_headers(((plain_text(name), plain),))
            left.take(len(plain_text(name)) + len(plain))
            added[plain_text(name)] = None if value is None else plain
        else:
            step.fault(f"wants header {shown(name)} set to {shown(value)}; names and values must be strings")
            left.take(_FOR_A_FAULT)
