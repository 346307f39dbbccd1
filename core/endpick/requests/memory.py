"""Memory of undecided requests, and overload by memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final

from endpick.requests.model import CODE_OF, Refused

MAX_UNDECIDED_BYTES: Final = 512 * 1024 * 1024
_STATM: Final = Path("/proc/self/statm")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
_HYSTERESIS: Final = 0.05

NO_MEMORY: Final = Refused(503, CODE_OF[503], "the bodies of undecided requests use all the memory reserved for them; try again")
OVERLOADED: Final = Refused(503, CODE_OF[503], "endpick is short of memory; try again", "rejected-overloaded")
SHED_FOR_MEMORY: Final = Refused(429, CODE_OF[429], "endpick is short of memory, sheddable request dropped", "rejected-overloaded")


class OverloadStage(IntEnum):
    """The overload of the process, by its share of the memory limit."""

    NORMAL = 0
    SHEDDING = 1
    REFUSING = 2


_BEGINS: Final = {OverloadStage.SHEDDING: 0.8, OverloadStage.REFUSING: 0.9}  # shares of the limit


def resident_bytes() -> int:
    """Return the resident size of the process in bytes; 0 if /proc is not readable."""
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return 0


class Memory:
    """The bytes held by undecided requests, and the overload stage of the process."""

    __slots__ = ("budget_bytes", "held_bytes", "limit_bytes", "on_stage", "refused", "resident", "shed", "stage")

    def __init__(self, limit_bytes: int = sys.maxsize, resident: Callable[[], int] = resident_bytes) -> None:
        self.limit_bytes = limit_bytes
        self.budget_bytes = min(MAX_UNDECIDED_BYTES, limit_bytes // 4)
        self.resident = resident
        self.held_bytes = 0
        self.stage = OverloadStage.NORMAL
        self.on_stage: list[Callable[[OverloadStage], None]] = []
        self.refused = 0
        self.shed = 0

    def hold(self, size: int) -> bool:
        """Reserve bytes and return False beyond the budget. The caller releases them in either case."""
        self.held_bytes += size
        return self.held_bytes <= self.budget_bytes

    def measure(self) -> None:
        """Compare resident memory with the limit, and notify `on_stage` of a new stage."""
        used = self.resident() / self.limit_bytes
        stage = OverloadStage.NORMAL
        for candidate, begins in _BEGINS.items():
            if used >= begins - (_HYSTERESIS if self.stage >= candidate else 0.0):
                stage = candidate
        if stage is not self.stage:
            self.stage = stage
            for notify in self.on_stage:
                notify(stage)
