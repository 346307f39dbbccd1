"""Logging as text or JSON, written by a thread so that a slow reader delays no request."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler, QueueListener
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, Literal, TextIO

from endpick.host.failures import describe_error
from endpick.host.importing import Attribution

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from prometheus_client.metrics import Counter

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

LogFormat = Literal["auto", "text", "json"]

_log = logging.getLogger("endpick.serve")

MAX_WAITING_RECORDS = 10_000
MAX_CHARACTERS = 16_000  # longer texts are cut in the middle
MAX_RECENT_RECORDS = 500  # kept for the admin API


class DroppingQueueHandler(QueueHandler):
    """Drops records when the queue is full; keeps the latest."""

    def __init__(self) -> None:
        self.recent: deque[logging.LogRecord] = deque(maxlen=MAX_RECENT_RECORDS)
        self.lines: Queue[logging.LogRecord] = Queue(MAX_WAITING_RECORDS)
        self.dropped = 0
        super().__init__(self.lines)

    def enqueue(self, record: logging.LogRecord) -> None:
        """Add a record to the queue, or drop and count it if the queue is full."""
        self.recent.append(record)
        try:
            self.lines.put_nowait(record)
        except Full:
            self.dropped += 1
            return
        if self.dropped:
            dropped, self.dropped = self.dropped, 0
            _log.warning("%d log lines were dropped because the reader of the log is too slow", dropped)


def configure_logging(level: str, log_format: LogFormat, stream: TextIO | None = None, worker: int | None = None) -> Callable[[], None]:
    """Send logs and Python's warnings to `stream`, by default stderr.

    Lines of a worker carry its number. Returns a function that flushes the queue at exit.
    """
    target = sys.stderr if stream is None else stream
    is_text = log_format == "text" or (log_format == "auto" and target.isatty())
    handler = DroppingQueueHandler()
    handler.setFormatter(_TextFormatter() if is_text else _JSONFormatter())
    handler.addFilter(Attribution())
    if worker is not None:
        handler.addFilter(_numbered(worker))
    listener = QueueListener(handler.lines, logging.StreamHandler(target))
    listener.start()

    def stop() -> None:
        with suppress(Full):
            listener.stop()

    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    return stop


def _numbered(worker: int) -> Callable[[logging.LogRecord], bool]:
    def number(record: logging.LogRecord) -> bool:
        record.worker = worker
        return True

    return number


def recent_lines() -> list[str]:
    """Return the latest 500 log lines as JSON, oldest first."""
    handlers = [handler for handler in logging.getLogger().handlers if isinstance(handler, DroppingQueueHandler)]
    formatter = _JSONFormatter()
    return [formatter.format(record) for handler in handlers for record in tuple(handler.recent)]


def last_line(message: str) -> bytes:
    """Format a line without the log's locks, which another thread may hold."""
    handlers = logging.getLogger().handlers
    if not handlers:
        return f"{message}\n".encode()
    record = logging.LogRecord("endpick.serve", logging.WARNING, "", 0, message, (), None)
    return f"{handlers[0].format(record)}\n".encode(errors="backslashreplace")


def log_uncaught_errors(loop: asyncio.AbstractEventLoop, count: Counter) -> None:
    """Log and count errors that no caller can catch."""

    def report(event: str, text: str, error: BaseException | None) -> None:
        count.labels(event).inc()
        detail = "" if error is None else f": {describe_error(error)}"
        _log.error("%s%s", text, detail, exc_info=error, extra={"kind": event})

    def finalizer_raised(unraisable: UnraisableHookArgs) -> None:
        if not sys.is_finalizing():
            report("finalizer", "a finalizer raised", unraisable.exc_value)

    def thread_raised(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not SystemExit:
            report("thread", "a thread ended with an error", args.exc_value)

    def task_raised(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        report("task", str(context.get("message", "an error on the event loop")), context.get("exception"))

    sys.unraisablehook = finalizer_raised
    threading.excepthook = thread_raised
    loop.set_exception_handler(task_raised)


_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_RESERVED = frozenset({"ts", "level", "logger", "event", "exception"})


class _JSONFormatter(logging.Formatter):
    """One JSON object per record, with the fields passed as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": _shortened(record.getMessage()),
        }
        if record.exc_info:
            line["exception"] = _shortened(self.formatException(record.exc_info))
        for name, value in _fields_of(record).items():
            line[f"{name}_" if name in _RESERVED else name] = value
        return json.dumps(line, default=str, separators=(",", ":"))


class _TextFormatter(logging.Formatter):
    """`12:30:01 info    endpick.serve: serving  grpc_port=9002`.

    Control characters are escaped: clients choose parts of the text.
    """

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = "".join(f"  {_escaped(name)}={_quoted(str(value))}" for name, value in _fields_of(record).items())
        line = f"{moment} {record.levelname.lower():7} {record.name}: {_escaped(_shortened(record.getMessage()))}{fields}"
        if not record.exc_info:
            return line
        traceback = _shortened(self.formatException(record.exc_info))
        return "\n  ".join((line, *map(_escaped, traceback.split("\n"))))


def _fields_of(record: logging.LogRecord) -> dict[str, object]:
    return {
        name: _shortened(value) if isinstance(value, str) else value for name, value in vars(record).items() if name not in _STANDARD_FIELDS
    }


def _shortened(text: str) -> str:
    if len(text) <= MAX_CHARACTERS:
        return text
    half = MAX_CHARACTERS // 2
    return f"{text[:half]}\n… {len(text) - 2 * half} characters …\n{text[-half:]}"


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def _quoted(text: str) -> str:
    if text and not any(char.isspace() or char == '"' for char in text):
        return _escaped(text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{_escaped(escaped)}"'
