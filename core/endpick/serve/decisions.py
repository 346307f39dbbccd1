"""Records decisions: keeps the latest in memory, and shows them to hook objects."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Full, Queue
from random import Random
from threading import Thread

from endpick.api.request import InferenceRequest
from endpick.host.hooks import Failure, Hooks
from endpick.requests.record import DecisionRecord, Why, document_of
from endpick.serve.tracing import Tracing

HOOK = "endpick_decided"
EXPLAIN_HEADER = "x-endpick-explain"
MAX_WAITING_RECORDS = 256
STOP_TIMEOUT_SECONDS = 2.0
SLOW_SECONDS = 1.0
MAX_RECORDS = 1000  # half of them for errors, so that a flood of errors leaves the sample
MAX_CELLS = 1_000_000  # endpoint values in all records, 16 bytes each

_log = logging.getLogger("endpick.hooks")


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """Selects the decisions to record, and the places to write them besides memory.

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
        """Iterate over the records, newest first."""
        return reversed(self._records)

    def append(self, record: DecisionRecord) -> None:
        """Add a finished record, and drop the oldest ones beyond the limits."""
        self._records.append(record)
        self._cells += record.cells
        while len(self._records) > 1 and (len(self._records) > self._max_records or self._cells > self._max_cells):
            self._cells -= self._records.popleft().cells


class DecisionRecords:
    """The `DecisionLog` of a process; a thread shows records to hook objects, without delays."""

    def __init__(
        self,
        hooks: Hooks,
        settings: RecordSettings,
        report: Callable[[Iterable[Failure]], None],
        clock: Callable[[], float],
        tracing: Tracing | None = None,
    ) -> None:
        self._hooks = hooks
        self._settings = settings
        self._report = report
        self._clock = clock
        self._tracing = tracing
        self._random = Random()  # noqa: S311 - sampling needs no secrets
        self._sampled, self._errors = Ring(), Ring()
        self._counts = {"recorded": 0, "shown": 0, "dropped": 0}
        self._waiting: Queue[DecisionRecord | None] = Queue(MAX_WAITING_RECORDS)
        self._thread = Thread(target=self._show_all, name="endpick-decisions", daemon=True)
        self._is_observed = False

    def begin(self, request: InferenceRequest, plan: str) -> DecisionRecord | None:
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
        self._counts["recorded"] += 1
        if record.span is not None and self._tracing is not None:
            self._tracing.finish(record)  # here, because the observers miss records
        (self._errors if record.why is Why.ERROR else self._sampled).append(record)
        if self._is_observed:
            try:
                self._waiting.put_nowait(record)
            except Full:
                self._counts["dropped"] += 1

    def latest(self) -> Sequence[DecisionRecord]:
        """Return all kept records, newest first."""
        return sorted((*self._sampled, *self._errors), key=lambda record: -record.time)

    def counts(self) -> Mapping[str, int]:
        """Return the number of records that were made, shown to hook objects, or dropped."""
        return self._counts

    def remarks(self) -> tuple[str, ...]:
        """Return a line for `/healthz` while a hook object does not return, else nothing."""
        running = self._hooks.running(HOOK)
        if running is None or running[1] < SLOW_SECONDS:
            return ()
        return (f"{running[0]} has not returned from {HOOK} for {running[1]:.0f} s; decisions are not shown meanwhile",)

    def start(self) -> None:
        """Start the thread that shows records, if any hook object implements `endpick_decided`."""
        self._is_observed = self._hooks.implements(HOOK)
        if self._is_observed:
            self._thread.start()

    def stop(self) -> None:
        """Show the waiting records, and wait at most two seconds for the thread."""
        if not self._thread.is_alive():
            return
        while True:
            try:
                self._waiting.put_nowait(None)
                break
            except Full:
                with suppress(Empty):
                    self._waiting.get_nowait()
                    self._counts["dropped"] += 1
        self._thread.join(STOP_TIMEOUT_SECONDS)
        if self._thread.is_alive():
            _log.warning("a hook object does not return from %s; its thread is left running", HOOK)

    def _show_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            self._report(self._hooks.call(HOOK, record=document_of(record)))
            self._counts["shown"] += 1
