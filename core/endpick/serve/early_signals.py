"""What signals mean to `endpick serve` before it has an event loop that answers them. Imports nothing slow."""

from __future__ import annotations

import os
import signal
from types import FrameType

_NAMES = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGSTKFLT")
WITHOUT_A_MEANING: tuple[int, ...] = (
    *(getattr(signal, name) for name in _NAMES if hasattr(signal, name)),
    *range(getattr(signal, "SIGRTMIN", 1), getattr(signal, "SIGRTMAX", 0) + 1),
)
"""Signals that mean nothing here, and would end the process all the same: what rotates the logs of others may send them, a timer that a
plugin has left, or a descriptor that became ready. Those that ask for a dump of memory, and that of a limit of time, are not among them."""


class EarlySignals:
    """Answers signals from the first import on, so that one that comes too early neither kills the process nor is lost.

    What Python does by itself with SIGHUP and SIGUSR1 is to end, with SIGINT to show where it was, and in a container, as process 1, to
    ignore SIGTERM: such a process would serve until it is killed.
    """

    def __init__(self) -> None:
        self.reload_asked = False
        """Whether a SIGHUP came: what was read before it may be out of date."""

    def listen(self) -> None:
        """Begin; `endpick.serve.main` takes over with handlers of its own."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._end)
        signal.signal(signal.SIGHUP, self._ask_for_reload)
        for meaningless in WITHOUT_A_MEANING:
            signal.signal(meaningless, signal.SIG_IGN)

    def _ask_for_reload(self, _number: int, _frame: FrameType | None) -> None:
        self.reload_asked = True

    def _end(self, _number: int, _frame: FrameType | None) -> None:
        # Nothing is served and nothing has been started. An exception would be a plugin's, in whose import it might be raised.
        os._exit(0)


EARLY_SIGNALS = EarlySignals()
"""Of this process."""
