"""A parser like that of `endpick serve`, in the helper process: how it is built, and what it logs and counts there."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.registry import CollectorRegistry

from endpick.api.plugin import Plugin, PluginContext
from endpick.api.request_control import Parser
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import Candidate, discover
from endpick.host.elsewhere import Growth
from endpick.host.failures import kind_of
from endpick.host.guard import GUARD
from endpick.host.hook_objects import discover_hook_objects
from endpick.host.instance import build, instance_logger
from endpick.host.loader import LoadedPlugin, load
from endpick.host.lock import load_lock
from endpick.host.lock_check import LockCheck
from endpick.host.parameters import check_parameters
from endpick.host.resolution import Reference
from endpick.serve.bodies.wire import LONGEST_TEXT, GrownSample, LogLine, Spec, shortened

_MOST_LINES = 20
"""Of the log, per body."""


class NotBuiltError(Exception):
    """The parser cannot be had in this process; the text says why."""


@dataclass(frozen=True, slots=True)
class Double:
    """A parser, and what its metrics have grown by."""

    plugin: Parser[Any]
    growth: Growth


def double_of(spec: Spec) -> Double:
    """Build the parser that the spec describes, by the same steps and after the same checks as `endpick serve`.

    Raises:
        NotBuiltError: it does not load, or cannot be built.
    """
    loaded = _loaded(spec.candidate, spec)
    parameters = check_parameters(loaded, spec.parameters)
    if isinstance(parameters, tuple):
        raise NotBuiltError(_told(parameters))
    registry = CollectorRegistry()
    context = PluginContext(random.Random(), time.monotonic, instance_logger(loaded, spec.name), registry)  # noqa: S311 - as for any plugin
    built = build(loaded, spec.name, parameters, None, context)
    if isinstance(built, Diagnostic):
        raise NotBuiltError(_told((built,)))
    if not isinstance(built.plugin, Parser):
        raise NotBuiltError(f"{built.origin} is no parser")
    return Double(built.plugin, Growth(registry))


def _loaded(candidate: Candidate, spec: Spec) -> LoadedPlugin:
    reference = Reference(candidate.type, spec.name)
    check = None if spec.lock_file is None else _lock_check(Path(spec.lock_file))
    differs = None if check is None else check.plugin(reference, candidate)
    if differs is not None:
        raise NotBuiltError(_told((differs,)))
    # What its distribution requires was judged when `endpick serve` loaded it.
    loading = load(candidate, reference, unmet=())
    unchecked = None if check is None else check.loaded(reference, candidate)
    if unchecked is not None:
        raise NotBuiltError(_told((unchecked,)))
    if loading.loaded is None:
        raise NotBuiltError(_told([each for each in loading.diagnostics if each.is_error]))
    return loading.loaded


def _lock_check(file: Path) -> LockCheck:
    """What `make_plan` makes of a lock file, with this process's own guard of imports."""
    lock = load_lock(file)
    if isinstance(lock, Diagnostic):
        raise NotBuiltError(_told((lock,)))
    check = LockCheck(lock, GUARD)
    unguarded = check.guard_all((*discover(), *(discover_hook_objects() if lock.hooks else ())))
    if unguarded:
        raise NotBuiltError(_told(unguarded))
    return check


def _told(diagnostics: Sequence[Diagnostic]) -> str:
    return "; ".join(each.message for each in diagnostics)


def starts_or_stops(plugin: Plugin[Any], method: str) -> bool:
    """Whether a plugin has a `start` or a `stop` of its own."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)


def grown_samples(growth: Growth) -> tuple[GrownSample, ...]:
    """What has been counted since the last answer; nothing while the metrics cannot be read, which `/metrics` complains of."""
    try:
        grown = growth.since_told()
    except Exception:
        return ()
    return tuple(
        GrownSample(
            family=shortened(key.family),
            type=key.type,
            documentation=shortened(key.documentation),
            sample=shortened(key.sample),
            labels=tuple((shortened(name), shortened(value)) for name, value in key.labels),
            more=more,
        )
        for key, more in grown.items()
    )


class LogLines(logging.Handler):
    """Keeps what is logged until the next answer takes it along; of too many lines the last."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))
        self._kept: deque[LogLine] = deque(maxlen=_MOST_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record as text, or that it has none; Python would write why to standard error, which is the parent's."""
        try:
            line = LogLine(level=min(max(record.levelno, 0), 1000), text=shortened(self.format(record))[:LONGEST_TEXT])
        except BaseException as problem:  # what is logged may be a plugin's, and is asked only here what it says
            line = LogLine(level=logging.ERROR, text=f"a line cannot be shown: {kind_of(problem)}")
        self._kept.append(line)

    def take(self) -> tuple[LogLine, ...]:
        """What was kept."""
        taken = tuple(self._kept)
        self._kept.clear()
        return taken
