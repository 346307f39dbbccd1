"""Keeps decision records: in memory for the admin API, in a file, in the log, and for hook objects."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from queue import Empty, Full, Queue
from random import Random
from threading import Thread

import orjson

from endpick.api.hooks import Document
from endpick.api.request import InferenceRequest
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.hooks import HookCall, HookRegistry
from endpick.host.telemetry import Throttle
from endpick.requests.record import DecisionRecord, Why, document_of
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.tracing import Tracing

HOOK = "endpick_decision"
EXPLAIN_HEADER = "x-endpick-explain"
MAX_WAITING_RECORDS = 256
STOP_TIMEOUT_SECONDS = 2.0
SLOW_SECONDS = 1.0
LOG_INTERVAL_SECONDS = 60.0
MAX_RECORDS = 1000  # half of them for errors, so that a flood of errors leaves the sample
MAX_CELLS = 1_000_000  # endpoint values in all records, 16 bytes each
FILE_BYTES = 64 * 1024 * 1024
OLD_FILES = 4

_log = logging.getLogger("endpick.hooks")
_decision_log = logging.getLogger("endpick.decisions")


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Which decisions are recorded, and where they go besides memory.

    Attributes:
        sampling_ratio: Share of decisions, 0 to 1. Errors are always recorded.
        obeys_header: Record each request with the header `x-endpick-explain`.
        file: JSON lines, rotated at 64 MiB; four old files are kept.
        logs: Write an info line per record, and at level debug a line per endpoint.
    """

    sampling_ratio: float = 0.01
    obeys_header: bool = False
    file: Path | None = None
    logs: bool = False


class Ring:
    """The latest records; older ones go when there are too many, or they hold too many values."""

    def __init__(self, max_records: int = MAX_RECORDS // 2, max_cells: int = MAX_CELLS // 2) -> None:
        self._records: deque[DecisionRecord] = deque()
        self._max_records = max_records
        self._max_cells = max_cells
        self._cells = 0

    def __iter__(self) -> Iterator[DecisionRecord]:
        """Newest first."""
        return reversed(self._records)

    def append(self, record: DecisionRecord) -> None:
        """Add a finished record."""
        self._records.append(record)
        self._cells += record.cells
        while len(self._records) > 1 and (len(self._records) > self._max_records or self._cells > self._max_cells):
            self._cells -= self._records.popleft().cells


class DecisionRecords:
    """The `DecisionLog` of a serving process. Hook objects and the file get records in a thread, and miss some if they are slow."""

    def __init__(
        self,
        hooks: HookRegistry,
        settings: RecordSettings,
        metrics: EndpickMetrics,
        clock: Callable[[], float],
        tracing: Tracing | None = None,
    ) -> None:
        self._calls = tuple(hooks.calls(HOOK))
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._tracing = tracing
        self._random = Random()  # noqa: S311 - sampling needs no secrets
        self._throttle = Throttle(clock, LOG_INTERVAL_SECONDS)
        self._sampled, self._errors = Ring(), Ring()
        self._counts = {"recorded": 0, "shown": 0, "dropped": 0}
        self._file = None if settings.file is None else DecisionFile(settings.file, self._throttle)
        self._waiting: Queue[DecisionRecord | None] = Queue(MAX_WAITING_RECORDS)
        self._thread = Thread(target=self._pass_on_all, name="endpick-decisions", daemon=True)
        self._running: tuple[HookCall, float] | None = None

    def begin(self, request: InferenceRequest, plan: str) -> DecisionRecord | None:
        """See `DecisionLog`."""
        span = None if self._tracing is None else self._tracing.begin(request, time.time() - (self._clock() - request.received_at))
        if self._random.random() < self._settings.sampling_ratio:
            why = Why.SAMPLED
        elif self._settings.obeys_header and EXPLAIN_HEADER in request.headers:
            why = Why.ASKED
        elif span is not None:
            why = Why.TRACED
        else:
            return None
        record = DecisionRecord.of(request, plan, why)
        if span is not None:
            record.span, record.trace_id = span, span.trace_id
        return record

    def finish(self, record: DecisionRecord) -> None:
        """See `DecisionLog`."""
        self._counts["recorded"] += 1
        if record.span is not None and self._tracing is not None:
            self._tracing.finish(record)
        (self._errors if record.why is Why.ERROR else self._sampled).append(record)
        if self._settings.logs:
            log_decision(record)
        if self._calls or self._file is not None:
            try:
                self._waiting.put_nowait(record)
            except Full:
                self._counts["dropped"] += 1

    def latest(self) -> Sequence[DecisionRecord]:
        """All kept records, newest first."""
        return sorted((*self._sampled, *self._errors), key=lambda record: -record.time)

    def counts(self) -> Mapping[str, int]:
        """Records made; and those shown to hook objects or the file, or dropped."""
        return self._counts

    def remarks(self) -> tuple[str, ...]:
        """Hook objects that do not return, and a file that cannot be written."""
        found = [] if self._file is None or not self._file.problem else [self._file.problem]
        if self._running is not None:
            call, since = self._running
            seconds = self._clock() - since
            if seconds >= SLOW_SECONDS:
                name = f"the hook object '{call.reference.type}' from {call.candidate.origin}"
                found.append(f"{name} has not returned from {HOOK} for {seconds:.0f} s; decisions are not shown meanwhile")
        return tuple(found)

    def start(self) -> None:
        """Start the thread, if anybody wants records."""
        if self._calls or self._file is not None:
            self._thread.start()

    def stop(self) -> None:
        """Pass on the waiting records and spans, within seconds."""
        if self._tracing is not None:
            self._tracing.shut_down()
        if not self._thread.is_alive():
            return
        while True:
            try:
                self._waiting.put_nowait(None)
                break
            except Full:
                self._drop_oldest()
        self._thread.join(STOP_TIMEOUT_SECONDS)
        if self._thread.is_alive():
            _log.warning("a hook object does not return from %s; its thread is left running", HOOK)
        elif self._file is not None:
            self._file.close()

    def show(self, record: Document) -> None:
        """Show a record to every hook object."""
        for call in self._calls:
            self._running = call, self._clock()
            try:
                call(record=record)
            except PLUGIN_ERRORS as error:
                name = call.reference.type
                self._metrics.hook_faults.labels(name, HOOK, type(error).__name__).inc()
                if self._throttle.admit(name) is not None:
                    _log.warning(call.failure_message(error), exc_info=error)
            self._running = None

    def _drop_oldest(self) -> None:
        try:
            self._waiting.get_nowait()
        except Empty:
            return
        self._counts["dropped"] += 1

    def _pass_on_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            document = document_of(record)
            if self._file is not None:
                self._file.write(document)
            self.show(document)
            self._counts["shown"] += 1


class DecisionFile(RotatingFileHandler):
    """Appends records as JSON lines. A full disk loses records, and says so."""

    def __init__(self, path: Path, throttle: Throttle) -> None:
        """Raises OSError."""
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=OLD_FILES, encoding="utf-8")
        self._throttle = throttle
        self.problem = ""

    def write(self, document: Document) -> None:
        """Append one line."""
        self.problem = ""
        line = orjson.dumps(document).decode()
        self.emit(logging.LogRecord("", logging.INFO, "", 0, line, (), None))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name in `logging`
        """Called by `emit` for an error."""
        self.problem = f"decisions cannot be written to {self.baseFilename}: {sys.exception()}"
        if self._throttle.admit("file") is not None:
            _decision_log.error(self.problem)


def log_decision(record: DecisionRecord) -> None:
    """Write an info line about a decision; at level debug, also the scores of each endpoint."""
    if _decision_log.isEnabledFor(logging.DEBUG):
        for run in record.runs:
            for position, name in enumerate(run.candidates):
                scores = {scorer.instance: round(scorer.weighted[position], 4) for scorer in run.scorers}
                extra = {"request_id": record.id, "profile": run.profile, "endpoint": name, "scores": scores}
                _decision_log.debug("endpoint scored", extra={**extra, "total": round(run.totals[position], 4)})
    ended = record.outcome
    outcome = {} if ended is None else {"response": ended.status, "end": ended.cause, "seconds": round(ended.duration_seconds, 4)}
    _decision_log.info(
        "request refused" if record.is_refused else "request routed" if record.status is None else "request answered",
        extra={
            "request_id": record.id,
            "model": record.model,
            **({"destinations": ", ".join(record.destinations)} if record.status is None else {"status": record.status}),
            **({"refusal": record.refusal} if record.refusal else {}),
            **outcome,
            "plan": record.plan,
        },
    )
