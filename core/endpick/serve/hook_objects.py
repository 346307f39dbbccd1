"""Failures of hook objects, and the pages that they add to the admin API."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable

import orjson

from endpick.api import hookimpl
from endpick.api.hooks import AdminPages
from endpick.api.request import JSONValue
from endpick.diagnostics import Code
from endpick.engine.reload_log import ReloadEntry
from endpick.host.discovery import Candidate
from endpick.host.failures import PLUGIN_ERRORS
from endpick.host.hooks import Failure, running_hook_object, title
from endpick.host.telemetry import Throttle
from endpick.requests.record import to_time
from endpick.serve.admin_api import ROUTES, Answer, PageFailedError, Route
from endpick.serve.logs import recent_lines
from endpick.serve.metrics import EndpickMetrics

LOG_INTERVAL_SECONDS = 60.0
_METRICS_ROUTES = ("/metrics", "/healthz")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")

_log = logging.getLogger("endpick.hooks")


class HookFaults:
    """Counts all failures, and logs those of one hook of one object at most once a minute."""

    def __init__(self, metrics: EndpickMetrics, clock: Callable[[], float]) -> None:
        self._metrics = metrics
        self._throttle = Throttle(clock, LOG_INTERVAL_SECONDS)

    def report(self, failures: Iterable[Failure], code: Code | None = None) -> None:
        """Count failures and log them: as errors if they have a code, else as warnings."""
        for failure in failures:
            name = failure.candidate.type
            self._metrics.hook_faults.labels(name, failure.hook, type(failure.error).__name__).inc()
            if self._throttle.admit(f"{name}/{failure.hook}") is not None:
                level, extra = (logging.WARNING, {}) if code is None else (logging.ERROR, {"code": str(code)})
                _log.log(level, failure.message, exc_info=failure.error, extra=extra)


class HookPages:
    """The `AdminPages` of a process: collects the routes that hook objects add."""

    def __init__(self, faults: HookFaults) -> None:
        self.routes: list[Route] = []
        self._faults = faults

    def add(self, path: str, summary: str, answer: Callable[[], JSONValue]) -> None:
        candidate, problem = running_hook_object(), self._problem(path)
        if candidate is None or problem:
            _log.warning("%s cannot add the page %s: %s", title(candidate), path, problem or "it is too late")
            return
        guarded = self._guarded(candidate, answer)
        self.routes.append(Route(path, summary, lambda _api, _request: guarded))

    def _problem(self, path: str) -> str:
        if not _PATH.fullmatch(path):
            return "a path looks like /acme/budget"
        taken = (*_METRICS_ROUTES, *(route.path for route in (*ROUTES, *self.routes)))
        return "the path is taken" if any(_matches(route, path) for route in taken) else ""

    def _guarded(self, candidate: Candidate, answer: Callable[[], JSONValue]) -> Answer:
        def guarded() -> orjson.Fragment:
            try:
                return orjson.Fragment(orjson.dumps(answer(), option=orjson.OPT_INDENT_2))
            except PLUGIN_ERRORS as error:
                failure = Failure("endpick_admin_pages", candidate, error)
                self._faults.report((failure,))
                raise PageFailedError(failure.message) from error

        return guarded


def _matches(route: str, path: str) -> bool:
    parts, given = route.split("/"), path.split("/")
    return len(parts) == len(given) and all(part in (name, "{id}") for part, name in zip(parts, given, strict=True))


class HistoryPages:
    """The hook object that adds the admin pages `/reloads` and `/log`."""

    def __init__(self, reloads: Callable[[], Iterable[ReloadEntry]]) -> None:
        self._reloads = reloads

    @hookimpl
    def endpick_admin_pages(self, pages: AdminPages) -> None:
        pages.add("/reloads", "The latest reloads: when, why, hashes, changes and result.", self._reload_page)
        pages.add("/log", "The latest log lines, oldest first.", lambda: {"lines": [orjson.loads(line) for line in recent_lines()]})

    def _reload_page(self) -> JSONValue:
        return {"reloads": [_reload(entry) for entry in reversed(tuple(self._reloads()))]}


def _reload(entry: ReloadEntry) -> JSONValue:
    return {
        "time": to_time(entry.time),
        "trigger": entry.trigger.value,
        "oldHash": entry.old_hash,
        "newHash": entry.new_hash,
        "result": entry.result.value,
        "changes": [{"text": str(change), "routes": change.routes} for change in entry.changes],
        "diagnostics": [{"code": str(found.code), "message": found.message, "place": str(found.span or "")} for found in entry.diagnostics],
        "problem": entry.problem,
    }
