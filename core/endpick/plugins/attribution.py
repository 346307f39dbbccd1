"""Whose code is running: stamps log records, and catches what a plugin prints or warns, with the plugin's identity."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field

_origin: ContextVar[str] = ContextVar("endpick_plugin_origin", default="")


@contextmanager
def attributed(origin: str) -> Iterator[None]:
    """Mark everything logged meanwhile as caused by `origin`, such as `queue-scorer (endpick 0.1.0)`."""
    token = _origin.set(origin)
    try:
        yield
    finally:
        _origin.reset(token)


class Attribution(logging.Filter):
    """Gives each log record the attribute `plugin`: on whose behalf it was written, or empty. For handlers, not for loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Stamp the record; keep every one."""
        if not hasattr(record, "plugin"):
            record.plugin = _origin.get()
        return True


@dataclass(slots=True)
class Output:
    """What somebody wrote while being watched."""

    text: str = ""
    """Standard output and standard error, in the order written."""

    warnings: list[warnings.WarningMessage] = field(default_factory=list)


@contextmanager
def captured() -> Iterator[Output]:
    """Catch what is printed and warned meanwhile, so that it neither mixes with our own output nor goes unnoticed."""
    output, stream = Output(), io.StringIO()
    with warnings.catch_warnings(record=True) as caught, redirect_stdout(stream), redirect_stderr(stream):
        warnings.simplefilter("default")
        try:
            yield output
        finally:
            output.text = stream.getvalue()
            output.warnings = list(caught)
