"""Whose code is running: stamps log records, and catches what a plugin prints or warns, with the plugin's identity."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import IO

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
    """Gives records that a plugin causes the attribute `plugin`: on whose behalf they were written. For handlers, not for loggers."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Stamp the record; keep every one."""
        origin = _origin.get()
        if origin and not hasattr(record, "plugin"):
            record.plugin = origin
        return True


@dataclass(slots=True)
class Output:
    """What somebody wrote while being watched."""

    text: str = ""
    """Standard output and standard error, in the order written."""

    warnings: list[warnings.WarningMessage] = field(default_factory=list)


@contextmanager
def captured() -> Iterator[Output]:
    """Catch what is printed and warned meanwhile, so that it neither mixes with our own output nor goes unnoticed.

    Also what child processes and C code write; but only what goes to the process's own standard streams.
    """
    output = Output()
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace", buffering=1) as file,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("default")
        try:
            with redirect_stdout(file), redirect_stderr(file), _descriptor_redirected(1, file), _descriptor_redirected(2, file):
                yield output
        finally:
            file.seek(0)
            output.text = file.read()
            output.warnings = list(caught)


@contextmanager
def _descriptor_redirected(descriptor: int, file: IO[str]) -> Iterator[None]:
    try:
        saved = os.dup(descriptor)
    except OSError:  # a daemon may have closed it
        yield
        return
    try:
        file.flush()
        os.dup2(file.fileno(), descriptor)
        yield
    finally:
        file.flush()
        os.dup2(saved, descriptor)
        os.close(saved)
