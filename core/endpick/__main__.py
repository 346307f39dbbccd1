"""The `endpick` script, which prepares the process before it imports anything heavy."""

from __future__ import annotations

import errno
import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Run the verb on the command line; the entry point of the `endpick` script."""
    # numpy would start a thread per core for matrix products, which endpick does not compute.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if sys.argv[1:2] == ["serve"]:
        _handle_early_signals()
    from endpick.cli.main import main as verbs  # noqa: PLC0415 - after the settings above

    try:
        verbs()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.stderr.write("error: the output cannot be written: the disk is full\n")
        os._exit(5)  # `ExitCode.FAILED`; Python would try to write once more


def _handle_early_signals() -> None:
    """End cleanly on SIGTERM and ignore SIGHUP until the event loop handles them.

    By default, process 1 of a container ignores SIGTERM, and SIGHUP ends any process.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(0)  # nothing has started, and a plugin's import could catch an exception


if __name__ == "__main__":
    main()
