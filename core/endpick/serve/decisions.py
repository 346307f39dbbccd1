"""Shows decision records to hook objects in a thread: a slow one misses records but delays no request."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from queue import Empty, Full, Queue
from random import Random
from threading import Thread

from endpick.api.hooks import Document
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.hooks import HookCall, HookRegistry
from endpick.host.telemetry import Throttle
from endpick.requests.pipeline import Pipeline
from endpick.scheduling.trace import DecisionTrace, sampled, to_json
from endpick.serve.metrics import EndpickMetrics

HOOK = "endpick_decision"
MAX_WAITING_RECORDS = 256
STOP_TIMEOUT_SECONDS = 2.0
SLOW_SECONDS = 1.0
LOG_INTERVAL_SECONDS = 60.0

_log = logging.getLogger("endpick.hooks")


class DecisionObservers:
    """The hook objects with `endpick_decision`, and the thread that calls them."""

    def __init__(self, hooks: HookRegistry, ratio: float, metrics: EndpickMetrics, clock: Callable[[], float]) -> None:
        """`ratio` is the share of decisions to show."""
        self._calls = tuple(hooks.calls(HOOK))
        self._ratio = ratio
        self._metrics = metrics
        self._clock = clock
        self._random = Random()  # noqa: S311 - sampling needs no secrets
        self._throttle = Throttle(clock, LOG_INTERVAL_SECONDS)
        self._records: Queue[DecisionTrace | None] = Queue(MAX_WAITING_RECORDS)
        self._thread = Thread(target=self._show_all, name="endpick-decisions", daemon=True)
        self._counts = {"shown": 0, "dropped": 0}
        self._running: tuple[HookCall, float] | None = None

    @property
    def are_wanted(self) -> bool:
        """True if a hook object is called."""
        return self._ratio > 0 and bool(self._calls)

    def watched(self, pipeline: Pipeline) -> Pipeline:
        """Wrap the pipeline to show a sample of its decisions."""
        if not self.are_wanted:
            return pipeline
        return replace(pipeline, scheduler=sampled(pipeline.scheduler, self._is_chosen, self._offer))

    def counts(self) -> Mapping[str, int]:
        """Shown and dropped records."""
        return self._counts

    def remarks(self) -> tuple[str, ...]:
        """Hook objects that do not return."""
        if self._running is None:
            return ()
        call, since = self._running
        seconds = self._clock() - since
        if seconds < SLOW_SECONDS:
            return ()
        name = f"the hook object '{call.reference.type}' from {call.candidate.origin}"
        return (f"{name} has not returned from {HOOK} for {seconds:.0f} s; decisions are not shown meanwhile",)

    def start(self) -> None:
        """Start the thread."""
        if self.are_wanted:
            self._thread.start()

    def stop(self) -> None:
        """Show the waiting records, within two seconds."""
        if not self._thread.is_alive():
            return
        while True:
            try:
                self._records.put_nowait(None)
                break
            except Full:
                self._drop_oldest()
        self._thread.join(STOP_TIMEOUT_SECONDS)
        if self._thread.is_alive():
            _log.warning("a hook object does not return from %s; its thread is left running", HOOK)

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
            self._records.get_nowait()
        except Empty:
            return
        self._counts["dropped"] += 1

    def _is_chosen(self) -> bool:
        return self._random.random() < self._ratio

    def _offer(self, record: DecisionTrace) -> None:
        try:
            self._records.put_nowait(record)
        except Full:
            self._counts["dropped"] += 1

    def _show_all(self) -> None:
        while (record := self._records.get()) is not None:
            document = to_json(record)
            assert isinstance(document, Mapping)
            self.show(document)
            self._counts["shown"] += 1
