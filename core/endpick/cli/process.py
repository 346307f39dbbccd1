"""The `endpick` command: prepares the process before heavy imports."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the command line."""
    # numpy would start a thread per core for matrix products, which endpick does not compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.argv[1:2] == ["serve"]:
        _handle_early_signals()
    from endpick.cli.main import main as verbs

    verbs()


def _handle_early_signals() -> None:
    """Until the event loop handles them: process 1 of a container ignores SIGTERM, and SIGHUP ends any process."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # nothing has started, and a plugin's import could catch an exception
