"""Writes recorded decisions to a file, and lines about them to the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import orjson

from endpick.api import hookimpl
from endpick.api.hooks import Document
from endpick.diagnostics import Code, Diagnostic
from endpick.engine.instances import StartRefused
from endpick.host.telemetry import Throttle

FILE_BYTES = 64 * 1024 * 1024
OLD_FILES = 4
LOG_INTERVAL_SECONDS = 60.0
_FIRST_ERROR = 400

_log = logging.getLogger("endpick.decisions")


class DecisionFile(RotatingFileHandler):
    """Appends decisions as JSON lines; those that a full disk loses are logged as an error."""

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        """Open the file for appending. Raises StartRefused if that fails."""
        try:
            super().__init__(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
        except OSError as error:
            message = f"the decision log {path} cannot be opened: {error.strerror}"
            raise StartRefused(Diagnostic(Code.E0808, message, help="name a file in a writable folder with --decision-log")) from error
        self._throttle = Throttle(clock, LOG_INTERVAL_SECONDS)
        self._problem = ""

    @hookimpl
    def endpick_decided(self, record: Document) -> None:
        """Append one decision as a line of JSON; called in the thread of the records."""
        self._problem = ""
        line = orjson.dumps(record).decode()
        self.emit(logging.LogRecord("", logging.INFO, "", 0, line, (), None))

    @hookimpl
    def endpick_stopping(self) -> None:
        """Flush and close the file when endpick stops."""
        self.close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in `logging`
        """Log the error of a write at most once a minute; called by `emit`."""
        self._problem = f"decisions cannot be written to {self.baseFilename}: {sys.exception()}"
        if self._throttle.admit("file") is not None:
            _log.error(self._problem)

    def remarks(self) -> tuple[str, ...]:
        """Return a line for `/healthz` if the last decision could not be written, else nothing."""
        return (self._problem,) if self._problem else ()


class DecisionLines:
    """Logs an info line about each decision; at level debug, also the scores of each endpoint."""

    @hookimpl
    def endpick_decided(self, record: dict[str, Any]) -> None:
        """Log the fate of one decision, and at level debug a line per scored endpoint."""
        if _log.isEnabledFor(logging.DEBUG):
            for run in record["runs"]:
                for position, name in enumerate(run["candidates"]):
                    scores = {scorer["instance"]: round(scorer["weighted"][position], 4) for scorer in run["scorers"]}
                    extra = {"request_id": record["id"], "profile": run["profile"], "endpoint": name, "scores": scores}
                    _log.debug("endpoint scored", extra={**extra, "total": round(run["totals"][position], 4)})
        status, ended = record["status"], record["outcome"]
        is_refused = status is not None and status >= _FIRST_ERROR
        _log.info(
            "request refused" if is_refused else "request routed" if status is None else "request answered",
            extra={
                "request_id": record["id"],
                "model": record["model"],
                **({"destinations": ", ".join(record["destinations"])} if status is None else {"status": status}),
                **({"refusal": record["refusal"]} if record["refusal"] else {}),
                **({"response": ended["status"], "end": ended["cause"], "seconds": round(ended["durationSeconds"], 4)} if ended else {}),
                "plan": record["plan"],
            },
        )
