"""The last reloads of a serving process: trigger, changes and result."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from endpick.diagnostics import Diagnostic
from endpick.engine.changes import Change

REMEMBERED = 50


class Trigger(StrEnum):
    """The source of a reload request."""

    START = "start"  # of the process
    SIGNAL = "signal"
    FILE = "file"  # --watch-config


class ReloadResult(StrEnum):
    """The result of a reload; also the label `outcome` of `endpick_config_reloads_total`."""

    APPLIED = "applied"
    UNCHANGED = "unchanged"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class ReloadEntry:
    """One reload.

    Attributes:
        time: Unix seconds when it ended.
        old_hash: Hash of the plan that served before; empty at the start.
        new_hash: Hash of the new plan; empty if the configuration gave none.
        changes: From the old to the new plan, also if it was refused.
        diagnostics: Warnings, or why it was refused.
        problem: An unexpected error, else empty.
    """

    time: float
    trigger: Trigger
    old_hash: str
    new_hash: str
    result: ReloadResult
    changes: tuple[Change, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    problem: str = ""


class ReloadLog(deque[ReloadEntry]):
    """The last 50 reloads, newest last."""

    def __init__(self) -> None:
        super().__init__(maxlen=REMEMBERED)
