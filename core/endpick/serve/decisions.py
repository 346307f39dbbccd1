"""Shows decision records to hook objects, in a thread of its own: a slow hook object misses records and delays no request."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from queue import Empty, Full, Queue
from random import Random
from threading import Thread

from endpick.host.hooks import HookRegistry
from endpick.requests.pipeline import Pipeline
from endpick.scheduling.trace import DecisionTrace, sampled, to_json
from endpick.serve.hook_circuits import HookCircuits

WAITING_RECORDS = 256
"""How many records may wait for the observers; further ones are dropped and counted."""

STOP_TIMEOUT_SECONDS = 2.0

_log = logging.getLogger("endpick.serve")


class DecisionObservers:
    """The hook objects that implement `endpick_decision`, and the thread in which they are called."""

    def __init__(self, hooks: HookRegistry, ratio: float, circuits: HookCircuits) -> None:
        """`ratio` of all decisions is shown through `circuits`, chosen at random: 0 none, 1 all. Nothing runs until `start`."""
        self._circuits = circuits
        self._hooks = hooks
        self._ratio = ratio
        self._random = Random()  # noqa: S311 - sampling needs no secrets
        self._waiting: Queue[DecisionTrace | None] = Queue(WAITING_RECORDS)
        self._thread = Thread(target=self._show_all, name="endpick-decisions", daemon=True)
        self._counts = {"shown": 0, "dropped": 0}

    @property
    def are_wanted(self) -> bool:
        """Whether there is a hook object to call."""
        return self._ratio > 0 and self._hooks.implements("endpick_decision")

    def watched(self, pipeline: Pipeline) -> Pipeline:
        """The same pipeline, but with a sample of its decisions shown; unchanged when no hook object wants them."""
        if not self.are_wanted:
            return pipeline
        return replace(pipeline, scheduler=sampled(pipeline.scheduler, self._is_chosen, self._offer))

    def counts(self) -> Mapping[str, int]:
        """How many records were shown, and how many were dropped because observers were too slow."""
        return self._counts

    def start(self) -> None:
        """Begin to call the observers; does nothing when there are none."""
        if self.are_wanted:
            self._thread.start()

    def stop(self) -> None:
        """Show the waiting records, for two seconds at most; a hook object that does not return keeps its thread."""
        if not self._thread.is_alive():
            return
        self._finish()
        self._thread.join(STOP_TIMEOUT_SECONDS)
        if self._thread.is_alive():
            _log.warning("a hook object does not return from endpick_decision; its thread is left running")

    def _finish(self) -> None:
        """Put the end mark behind the waiting records; while the queue is full, drop the oldest."""
        while True:
            try:
                self._waiting.put_nowait(None)
            except Full:
                self._drop_oldest()
            else:
                return

    def _drop_oldest(self) -> None:
        try:
            self._waiting.get_nowait()
        except Empty:
            return
        self._counts["dropped"] += 1

    def _is_chosen(self) -> bool:
        return self._random.random() < self._ratio

    def _offer(self, record: DecisionTrace) -> None:
        try:
            self._waiting.put_nowait(record)
        except Full:
            self._counts["dropped"] += 1

    def _show_all(self) -> None:
        while (record := self._waiting.get()) is not None:
            document = to_json(record)
            assert isinstance(document, Mapping)
            self._circuits.decision(document)
            self._counts["shown"] += 1
