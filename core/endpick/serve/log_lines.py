"""Where log lines go: to a file descriptor, without ever waiting for it.

Who reads the log may be slow, or have gone, and its disk may be full. A process that waits for that serves no requests. So a line that
cannot be written at once waits for a thread, and where too many wait, or none can be written, lines are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress

from endpick.host.failures import kind_of

AT_ONCE_BYTES = select.PIPE_BUF
"""Of a pipe that takes bytes at all: POSIX promises that it takes so many without waiting."""
MOST_WAITING = 10_000
MOST_WAITING_BYTES = 16 * 1024 * 1024
"""Of all lines that wait: most have some hundred, but a traceback, or what a plugin says, may have any number. One line may have more."""
_FLUSH_SECONDS = 1.0


class LostLines:
    """What became of the log lines of this process that could not be written at once."""

    def __init__(self) -> None:
        self.delayed = 0
        self.dropped = 0

    def snapshot(self) -> dict[str, int]:
        """Both counts by name."""
        return {"delayed": self.delayed, "dropped": self.dropped}


LOST = LostLines()


class LineHandler(logging.Handler):
    """Writes to a file descriptor."""

    def __init__(self, descriptor: int, lost: LostLines = LOST) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._lost = lost
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_full = False
        """A line had no room, and none of those that wait has been written since: to format another would be for nothing."""
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._told = lost.dropped

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or have it written."""
        if self._is_full:
            with self._changed:
                self._lost.dropped += 1
            return
        try:
            line = self.format(record).encode(errors="backslashreplace") + b"\n"
        except BaseException as problem:  # what is logged may be a plugin's, and is asked only here what it says
            line = self._instead_of(record, problem)
        with self._changed:
            if not self._waiting and len(line) <= AT_ONCE_BYTES and _is_ready(self._descriptor):
                self._write(line)
            else:
                self._keep(line)

    def _instead_of(self, record: logging.LogRecord, problem: BaseException) -> bytes:
        """What stands for a record that cannot be shown, as a line of the same format."""
        said = vars(record)
        name, path, line = (said.get(field) for field in ("name", "pathname", "lineno"))
        source = f"{_plain(path)}:{_plain(line)}"
        return self.own_line(logging.ERROR, "a line of %s cannot be shown: %s at %s", _plain(name), kind_of(problem), source)

    def own_line(self, level: int, message: str, *arguments: object) -> bytes:
        """A line of this handler's own; it cannot be logged while another is."""
        return self.format(logging.LogRecord(__name__, level, "", 0, message, arguments, None)).encode(errors="backslashreplace") + b"\n"

    def flush(self) -> None:
        """Wait until nothing waits, but not for long."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, _FLUSH_SECONDS)

    def _keep(self, line: bytes) -> None:
        if sys.is_finalizing():  # no thread would start any more, and Python would wait for it
            self._lost.dropped += 1
            return
        if len(self._waiting) >= MOST_WAITING or (self._waiting and self._waiting_bytes + len(line) > MOST_WAITING_BYTES):
            self._lost.dropped += 1
            self._is_full = self._thread is not None  # which writes one, if it ever can; where none could be started the next line tries
            return
        self._lost.delayed += 1
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._thread is None:
            thread = threading.Thread(target=self._write_waiting, name="endpick-log", daemon=True)
            with suppress(RuntimeError):  # there may be no more threads for now; the next line tries again
                thread.start()
                self._thread = thread
        self._changed.notify_all()

    def _write_waiting(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._waiting))
                line = self._waiting[0]
            self._write(line)  # may take as long as it likes
            with self._changed:
                self._waiting_bytes -= len(self._waiting.popleft())
                self._is_full = False
                self._changed.notify_all()

    def _write(self, line: bytes) -> None:
        missed = self._lost.dropped - self._told
        try:
            while line:
                line = line[os.write(self._descriptor, line) :]
            if missed and _is_ready(self._descriptor):
                told = self.own_line(logging.WARNING, "%d log lines were dropped: what reads the log is too slow, or has no room", missed)
                os.write(self._descriptor, told)
                self._told += missed
        except OSError:
            self._lost.dropped += 1


def _plain(value: object) -> str:
    """A text or a number of Python's own, as text; of any other class it may be what cannot be shown."""
    return str(value) if type(value) is str or type(value) is int else "?"


def _is_ready(descriptor: int) -> bool:
    with suppress(OSError, ValueError):
        return bool(select.select([], [descriptor], [], 0)[1])
    return True
