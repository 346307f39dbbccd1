"""Reloads: replaces a picker's plan if the new plan is valid and different."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from endpick.diagnostics import Diagnostic
from endpick.engine.building import carry_over
from endpick.engine.changes import changes, plan_hash
from endpick.engine.instances import StartRefused
from endpick.engine.picker import Picker
from endpick.engine.reload_log import ReloadEntry, ReloadLog, ReloadResult, Trigger
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.planning.plan import Plan, PlanOutcome

_log = logging.getLogger("endpick.serve")

PLANNING_SECONDS = 60.0


class Reloader:
    """Replaces the plan of a picker on reload; `log` holds the last reloads."""

    def __init__(self, picker: Picker, replan: Callable[[], PlanOutcome]) -> None:
        """`replan` is called in a thread."""
        self.log = ReloadLog()
        self._picker = picker
        self._replan = replan

    async def reload(self, trigger: Trigger) -> ReloadEntry:
        """Plan and deploy the configuration. If it is refused, the old plan keeps serving and the reason is logged."""
        attempt = _Attempt(self._picker.deployment.plan)
        before = self._picker.deployment
        try:
            result = await self._reload(attempt, trigger)
        except StartRefused as refusal:
            attempt.diagnostics = tuple(refusal.diagnostics)
            _log_diagnostics(refusal.diagnostics)
            _log.error("configuration refused; the old one keeps serving", extra={"trigger": trigger.value})
            result = ReloadResult.REFUSED
        except PLUGIN_ERRORS as error:
            attempt.problem = describe_error(error)
            serves = "old" if self._picker.deployment is before else "new"
            _log.error("a reload failed: %s; the %s configuration serves", attempt.problem, serves, exc_info=error)
            result = ReloadResult.REFUSED
        entry = attempt.entry(trigger, result)
        self.log.append(entry)
        return entry

    async def _reload(self, attempt: _Attempt, trigger: Trigger) -> ReloadResult:
        try:
            async with asyncio.timeout(PLANNING_SECONDS) as limit:
                outcome = await asyncio.to_thread(self._replan)
        except TimeoutError:
            if limit.expired():
                raise TimeoutError(f"the plugins of the new configuration are not loaded within {PLANNING_SECONDS:g} s") from None
            raise
        if outcome.plan is None:
            raise StartRefused(*outcome.diagnostics)
        attempt.new, attempt.diagnostics = outcome.plan, outcome.diagnostics
        _log_diagnostics(outcome.diagnostics)
        fields = {"trigger": trigger.value, "old_hash": plan_hash(attempt.old), "new_hash": plan_hash(attempt.new)}
        if fields["old_hash"] == fields["new_hash"] and self._carries_everything(attempt.new):
            _log.info("configuration unchanged", extra=fields)
            return ReloadResult.UNCHANGED
        new = await self._picker.prepare(attempt.new)
        try:
            await self._picker.replace(new)
        except BaseException:
            if self._picker.deployment is not new:
                await self._picker.discard(new)
            raise
        fields["changes"] = "; ".join(map(str, changes(attempt.old, attempt.new)))
        built = {"carried_over": len(new.instances) - len(new.fresh), "built": len(new.fresh)}
        _log.info("configuration replaced", extra={**fields, **built})
        return ReloadResult.APPLIED

    def _carries_everything(self, plan: Plan) -> bool:
        serving = self._picker.deployment
        return len(carry_over(serving.plan, serving.instances, plan)) == len(plan.instances)


@dataclass(slots=True)
class _Attempt:
    old: Plan
    new: Plan | None = None
    diagnostics: tuple[Diagnostic, ...] = ()
    problem: str = ""

    def entry(self, trigger: Trigger, result: ReloadResult) -> ReloadEntry:
        old, new = self.old, self.new
        differences = () if new is None else changes(old, new)
        new_hash = "" if new is None else plan_hash(new)
        return ReloadEntry(time.time(), trigger, plan_hash(old), new_hash, result, differences, self.diagnostics, self.problem)


def _log_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    for diagnostic in diagnostics:
        level = logging.ERROR if diagnostic.is_error else logging.WARNING
        _log.log(level, diagnostic.message, extra={"code": str(diagnostic.code), "place": str(diagnostic.span or "")})
