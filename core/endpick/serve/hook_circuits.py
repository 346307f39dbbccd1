"""The boundary around hook objects that watch decisions: one that keeps failing, or takes most of the time, is left out for a while.

They are called in a thread of their own, so that a slow one delays no request. It delays the other hook objects, though, which then miss
records, and one that fails again and again fills the log. Each has the circuit breaker that plugin instances have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace

from endpick.api.hooks import Document
from endpick.api.metrics import LabelLimit
from endpick.host.breaker import Breaker, BreakerSettings, BreakerState
from endpick.host.failures import CALL_FAILURES, kind_of
from endpick.host.hooks import HookCall, HookRegistry
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.recorder import MOST_REASONS

_log = logging.getLogger("endpick.hooks")

BUDGET_SECONDS = 1.0
"""A call that takes longer is late; it holds up no request, so it may take more than a plugin."""
HOOK = "endpick_decision"


@dataclass(slots=True)
class _Observer:
    call: HookCall
    breaker: Breaker
    busy_since: float | None = None

    @property
    def name(self) -> str:
        return f"the hook object '{self.call.reference.type}' from {self.call.candidate.origin}"


class HookCircuits:
    """Calls the hook objects that watch decisions; from one thread only, while others may ask for `remarks`."""

    def __init__(self, hooks: HookRegistry, settings: BreakerSettings, metrics: EndpickMetrics, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        settings = replace(settings, budget_seconds=BUDGET_SECONDS)
        self._observers = [_Observer(call, Breaker(settings, clock)) for call in hooks.calls(HOOK)]
        self._metrics = metrics
        self._clock = clock
        self._reason = LabelLimit(MOST_REASONS)
        for observer in self._observers:
            metrics.hook_circuits.labels(observer.call.reference.type).set(BreakerState.CLOSED)

    def decision(self, record: Document) -> None:
        """Show a decision record to every hook object whose circuit lets the call through; what one raises stops no other."""
        for observer in self._observers:
            breaker, name = observer.breaker, observer.call.reference.type
            before = breaker.state
            admitted = before is BreakerState.CLOSED or breaker.admits()
            self._report_change(observer, before)
            if admitted:
                self._show(observer, record)
            else:
                self._metrics.hooks_left_out.labels(name).inc()

    def remarks(self) -> tuple[str, ...]:
        """A sentence for each hook object that is left out, or does not return, at this moment."""
        return tuple(remark for observer in self._observers if (remark := self._remark(observer)))

    def _remark(self, observer: _Observer) -> str:
        since = observer.busy_since
        if since is not None and self._clock() - since > BUDGET_SECONDS:
            return f"{observer.name} has not returned from {HOOK} for {self._clock() - since:.0f} s, and no other sees decisions"
        if observer.breaker.state is BreakerState.OPEN:
            return f"{observer.name} is left out for {observer.breaker.seconds_left:.1f} s more: {observer.breaker.reason}"
        return ""

    def _show(self, observer: _Observer, record: Document) -> None:
        began = observer.busy_since = self._clock()
        before = observer.breaker.state
        try:
            observer.call(record=deepcopy(record))  # one of its own: what it does to it no other sees
        except CALL_FAILURES as problem:  # in a thread of its own nothing of it is the host's
            self._metrics.hook_faults.labels(observer.call.reference.type, HOOK, self._reason(kind_of(problem))).inc()
            if before is BreakerState.CLOSED:
                _log.warning(observer.call.failure_message(problem), exc_info=problem)
            observer.breaker.failed(skipped=True)
        observer.busy_since = None
        seconds = self._clock() - began
        if seconds > BUDGET_SECONDS:
            self._metrics.hooks_late.labels(observer.call.reference.type).inc()
            observer.breaker.took(seconds)
        self._report_change(observer, before)

    def _report_change(self, observer: _Observer, before: BreakerState) -> None:
        breaker = observer.breaker
        if breaker.state is before:
            return
        self._metrics.hook_circuits.labels(observer.call.reference.type).set(breaker.state)
        if breaker.state is BreakerState.OPEN:
            _log.error(
                "%s is left out for %g s, and decisions are not shown to it meanwhile: %s; remove it from `hooks:`, or lower "
                "--decision-sampling where it is only slow",
                observer.name,
                round(breaker.seconds_left, 3),
                breaker.reason,
            )
        elif breaker.state is BreakerState.HALF_OPEN:
            _log.warning("%s is called again, after it was left out because %s", observer.name, breaker.reason)
        elif before is BreakerState.HALF_OPEN:
            _log.info("%s has recovered", observer.name)
