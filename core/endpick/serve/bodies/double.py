"""A parser like that of `endpick serve`, in the helper process: how it is built, and what it logs and counts there."""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.registry import CollectorRegistry

from endpick.api.plugin import Plugin, PluginContext
from endpick.api.request_control import Parser
from endpick.diagnostics import Diagnostic
from endpick.host.discovery import Candidate
from endpick.host.failures import kind_of
from endpick.host.instance import build, instance_logger
from endpick.host.loader import LoadedPlugin, load
from endpick.host.parameters import check_parameters
from endpick.host.resolution import Reference
from endpick.serve.bodies.wire import LONGEST_TEXT, LogLine, Spec, shortened

_MOST_LINES = 20
"""Of the log, per body."""


class NotBuiltError(Exception):
    """The parser cannot be had in this process; the text says why."""


@dataclass(frozen=True, slots=True)
class Double:
    """A parser, and what its metrics have grown by."""

    plugin: Parser[Any]


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
    return Double(built.plugin)


def _loaded(candidate: Candidate, spec: Spec) -> LoadedPlugin:
    # `endpick serve` has checked the requirements and the lock.
    loading = load(candidate, Reference(candidate.type, spec.name), unmet=())
    if loading.loaded is None:
        raise NotBuiltError(_told([each for each in loading.diagnostics if each.is_error]))
    return loading.loaded


def _told(diagnostics: Sequence[Diagnostic]) -> str:
    return "; ".join(each.message for each in diagnostics)


def starts_or_stops(plugin: Plugin[Any], method: str) -> bool:
    """Whether a plugin has a `start` or a `stop` of its own."""
    return getattr(type(plugin), method) is not getattr(Plugin, method)


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
