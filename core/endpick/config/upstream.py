"""The names that llm-d's endpoint picker knows, knew or may get, as checked on a date; see `upstream.csv`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Literal

AS_OF = "2026-10-13"
"""The day of the newest source of the table; `tools/compare_upstream.py` compares it with a checkout."""

NameKind = Literal["type", "parameter", "field", "flag", "gate"]


class State(StrEnum):
    """The state of a name in llm-d's main branch."""

    CURRENT = "current"
    FORMER = "former"  # still read, and has a successor
    REMOVED = "removed"
    BRANCH = "branch"  # in a branch or an open pull request only
    TEST = "test"  # registered by tests only


@dataclass(frozen=True, slots=True)
class UpstreamName:
    """One row. `owner` is the plugin type of a parameter; `since` is when the state was first seen."""

    kind: str
    owner: str
    name: str
    state: State
    since: str
    successor: str
    source: str

    @property
    def status(self) -> str:
        """The state in words, for messages: "llm-d has had it since 2026-09-25"."""
        match self.state:
            case State.CURRENT | State.FORMER:
                return f"llm-d has had it since {self.since}"
            case State.REMOVED:
                return f"llm-d removed it by {self.since}"
            case State.BRANCH:
                return f"llm-d has it in a branch only, since {self.since}"
            case State.TEST:
                return "llm-d has it in its own tests only"

    @property
    def advice(self) -> str | None:
        """A help line that names the successor; None without one."""
        if not self.successor:
            return None
        is_sentence = self.kind in ("flag", "gate")
        return self.successor if is_sentence else f"use {self.successor}"

    @property
    def is_missing(self) -> bool:
        """Whether endpick may not know a name although it is written correctly."""
        return self.state in (State.CURRENT, State.BRANCH, State.TEST)


@cache
def upstream_names() -> tuple[UpstreamName, ...]:
    """Return every row, in the order of the file."""
    text = files(__package__).joinpath("upstream.csv").read_text(encoding="utf-8")
    rows = csv.reader(text.splitlines()[1:])
    return tuple(
        UpstreamName(kind, owner, name, State(state), since, successor, source)
        for kind, owner, name, state, since, successor, source in rows
    )


def find_name(kind: NameKind, name: str, owner: str = "") -> UpstreamName | None:
    """Return the row of a name; for a parameter, that of its type or else of every type."""
    rows = [row for row in upstream_names() if row.kind == kind and row.name == name and row.owner in (owner, "")]
    return max(rows, key=lambda row: row.owner, default=None)
