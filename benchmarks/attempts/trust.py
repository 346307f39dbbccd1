"""Placeholder."""

from __future__ import annotations

from benchmarks.attempts.catalogue import Attempt

ATTEMPTS: tuple[Attempt, ...] = ()
