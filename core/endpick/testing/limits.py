"""A limit for code that may never come back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TookTooLong(KeyboardInterrupt):
    """The time was up.

    A `KeyboardInterrupt`, because that is what neither plugins nor event loops are used to catch.
    """


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Interrupt what runs in this block after so many seconds, with `TookTooLong`; None: never.

    Works in the main thread only, which is where a signal can interrupt Python; elsewhere there is no limit.
    """
    if seconds is None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
