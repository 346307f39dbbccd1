"""Attempts that do what none may be able to: the judge has to see it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

from benchmarks.attempts.catalogue import Attempt, Target


async def nothing(target: Target) -> None:
    """Do nothing."""


async def an_end(target: Target) -> None:
    """End the picker by force."""
    os.kill(target.pid, signal.SIGKILL)


async def a_line(target: Target) -> None:
    """Forge a line of the log."""
    with (target.folder / "log").open("a") as log:
        log.write("all is well\n")


async def a_word(target: Target) -> Iterable[str]:
    """Find something that only the attempt sees."""
    return ("a secret is in the log",)


async def a_refusal(target: Target) -> None:
    """Take all endpoints away, so that every request is refused."""
    (target.folder / "none").write_text("endpoints: []\n")
    (target.folder / "none").replace(target.folder / "endpoints.yaml")


ATTEMPTS = (Attempt(nothing), Attempt(an_end), Attempt(a_line), Attempt(a_word), Attempt(a_refusal))
