"""Log output: readable lines on a terminal, one JSON object per line elsewhere."""

from __future__ import annotations

import fcntl
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal, TextIO

import orjson

from endpick.host.importing import Attribution
from endpick.serve.log_lines import LineHandler
from endpick.serve.log_values import event_of, fields_of, shortened

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

LogFormat = Literal["auto", "text", "json"]


_FIRST_DESCRIPTOR = 3


def configure_logging(level: str, log_format: LogFormat, stream: TextIO | None = None) -> None:
    """Send every logger of the process to `stream` (standard error by default); replaces earlier handlers."""
    target = sys.stderr if stream is None else stream
    text = log_format == "text" or (log_format == "auto" and target.isatty())
    handler = _handler_for(target)
    handler.setFormatter(TextFormatter() if text else JSONFormatter())
    handler.addFilter(Attribution())
    logging.basicConfig(level=LEVELS[level], handlers=[handler], force=True)


def _handler_for(stream: TextIO) -> logging.Handler:
    try:
        descriptor = stream.fileno()
    except (OSError, AttributeError):  # not a file: there is nothing to wait for
        return logging.StreamHandler(stream)
    # One of its own: where a plugin closes that of the stream, a connection gets its number.
    return LineHandler(fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR))


def last_line(message: str) -> bytes:
    """A line in the format of the log, made without its locks: for the end of a process in which another thread may hold them."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, LineHandler):
            return handler.own_line(logging.WARNING, "%s", message)
    return f"{message}\n".encode()


class JSONFormatter(logging.Formatter):
    """One JSON object per record: `ts`, `level`, `logger`, `event`, then the record's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        line: dict[str, object] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": _level_of(record),
            "logger": record.name,
            "event": event_of(record),
        }
        if record.exc_info:
            line["exception"] = _exception_of(record)
        for name, value in fields_of(record).items():
            line[f"{name}_" if name in _OF_THE_LINE else name] = value
        try:
            text = orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()
        except TypeError:  # half a surrogate pair, which is text to Python and to no other reader
            text = orjson.dumps({name: _encodable(value) for name, value in line.items()}).decode()
        # What shows the line without reading its JSON must not obey it either: a terminal, a tool that takes U+2028 for the end of a line.
        return _escaped(text, lambda match: json.dumps(match[0])[1:-1])


class TextFormatter(logging.Formatter):
    """`12:30:01 info  endpick.serve: ready  grpc=9002`.

    Clients, model servers and plugins choose parts of what is logged. Control characters are shown as escapes, so that no such part can
    begin a line or command a terminal; a field that could be taken for several is quoted; what follows a line is indented. So are names of
    loggers and of fields, which plugins choose as well.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Render one record."""
        moment = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S")
        fields = "".join(f"  {_quoted(str(name))}={_quoted(str(value))}" for name, value in fields_of(record).items())
        line = f"{moment} {_level_of(record):7} {_quoted(str(record.name))}: {_shown(event_of(record))}{fields}"
        if not record.exc_info:
            return line
        return "\n  ".join((line, *map(_shown, _exception_of(record).split("\n"))))


_OF_THE_LINE = frozenset({"ts", "level", "logger", "event", "exception"})
"""What a line says of itself; a field of such a name is another one, and gets a "_"."""
_LEVEL_NAMES = {"DEBUG": "debug", "INFO": "info", "WARNING": "warning", "ERROR": "error", "CRITICAL": "critical"}


def _level_of(record: logging.LogRecord) -> str:
    """One of the five levels: who logs may give others any name, and these a text of a class of its own."""
    known = _LEVEL_NAMES.get(record.levelname)
    return known or next((name for name, number in reversed(LEVELS.items()) if record.levelno >= number), "debug")


def _exception_of(record: logging.LogRecord) -> str:
    problem = record.exc_info[1] if record.exc_info else None
    return shortened("" if problem is None else "".join(traceback.format_exception(problem)))


_CONTROL = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164"
    "\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
"""Those that write from right to left, or nothing, are among them: what stands there would look like something else."""
_PLAIN = re.compile("[ -~]+")
_AMBIGUOUS = re.compile(r'["\s]')


def _escaped(text: str, escape: Callable[[re.Match[str]], str]) -> str:
    """A text with its control characters escaped. They are looked for in what is not plain ASCII, which is most often next to nothing."""
    if _CONTROL.search(_PLAIN.sub("", text)) is None:
        return text
    return _CONTROL.sub(escape, text)


def _shown(text: str) -> str:
    return _escaped(text, lambda match: match[0].encode("unicode_escape").decode())


def _quoted(text: str) -> str:
    """A value as one word."""
    if text and not _AMBIGUOUS.search(text):
        return _shown(text)
    return '"' + _shown(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def _encodable(value: object) -> str:
    return str(value).encode(errors="backslashreplace").decode()
