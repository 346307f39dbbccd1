"""Reloading: a new configuration is proven, built and started beside the old one, or refused without a trace in the data plane."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from endpick.diagnostics import Diagnostic
from endpick.planning.plan import Plan, PlanOutcome
from endpick.plugins.hooks import HookRegistry
from endpick.serve.current import Current
from endpick.serve.deployment import Ground, deploy, document_of
from endpick.serve.failure import Refused
from endpick.serve.lifecycle import stop_instances

_log = logging.getLogger("endpick.serve")


async def reload_once(current: Current, ground: Ground, hooks: HookRegistry, replan: Callable[[], PlanOutcome]) -> bool:
    """Read the configuration again and let it take over; True when it did.

    Whatever is wrong with it is logged, and the old configuration keeps serving.
    """
    outcome = await asyncio.to_thread(replan)
    _log_diagnostics(outcome.diagnostics)
    if outcome.plan is None:
        _log.error("configuration refused; the old one keeps serving")
        return False
    try:
        await _take_over(current, ground, hooks, outcome.plan)
    except Refused as refusal:
        _log_diagnostics(refusal.diagnostics)
        _log.error("configuration refused; the old one keeps serving")
        return False
    return True


async def _take_over(current: Current, ground: Ground, hooks: HookRegistry, plan: Plan) -> None:
    old = current.deployment
    new = await deploy(plan, ground, old)
    vetoes = await hooks.reload(document_of(old.plan), document_of(plan))
    if vetoes:
        await stop_instances(new.fresh)
        raise Refused(*vetoes)
    if plan.hooks.names != hooks.names:
        _log.warning("a change of `hooks:` takes effect at the next start only")
    await current.replace(new)
    _log.info("configuration replaced", extra={"carried_over": len(new.instances) - len(new.fresh), "built": len(new.fresh)})


def _log_diagnostics(diagnostics: Iterable[Diagnostic]) -> None:
    for diagnostic in diagnostics:
        level = logging.ERROR if diagnostic.is_error else logging.WARNING
        _log.log(level, diagnostic.message, extra={"code": str(diagnostic.code), "place": str(diagnostic.span or "")})


async def watch_file(path: Path, changed: Callable[[], None], interval_seconds: float = 1.0) -> None:
    """Call `changed` whenever the file becomes another one, until cancelled; a ConfigMap's swapped link counts."""
    seen = _identity(path)
    while True:
        await asyncio.sleep(interval_seconds)
        now = _identity(path)
        if now is not None and now != seen:
            seen = now
            changed()


def _identity(path: Path) -> tuple[int, int, int] | None:
    """None while there is no such file, which is how an editor's rename looks halfway."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
