"""What plugins do where no call of endpick's stands: errors in finalizers, threads and forgotten tasks, warnings, and lines.

Python writes all of it to standard error, as text, as often as it happens, and waits where nothing reads that. Here it is counted, told
in the log at intervals under the name of the plugin in whose file it happened, and waits for nothing.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from types import CodeType, CoroutineType, FrameType, FunctionType, MethodType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from endpick.host.failures import kind_of, message_of
from endpick.host.instance import Instance

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

    from _typeshed import ReadableBuffer

_log = logging.getLogger("endpick.uncaught")

INTERVAL_SECONDS = 30.0
MOST_LINES = 100
"""Lines of one plugin that are told in an interval, of those that it logs and of those that it prints; of everything else one is."""
_LONGEST_LINE = 4096
_DEEPEST = 100
"""Frames that are searched for a plugin's file."""
_MOST_FILES = 10_000


class Event(StrEnum):
    """What happened."""

    FINALIZER = "finalizer"
    """`__del__`, the callback of a weak reference, or whatever else Python calls on no caller's behalf raised."""
    THREAD = "thread"
    TASK = "task"
    """An asyncio task or callback raised, and nothing awaits it."""
    WARNING = "warning"
    OUTPUT = "output"
    """A line was printed."""
    COLLECTOR = "collector"
    """A collector of metrics raised that no instance has registered: a hook object has, in the registry of the host."""
    LOG = "log"
    """A line that a plugin, or a library, logged was held back, because there had been `MOST_LINES` in the interval."""


_LINES = (Event.OUTPUT, Event.LOG)
_STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
"""The latter are those that the process began with: what is written there is kept until it ends, and would then stand before any line."""


class Uncaught:
    """Takes all of it, for one process. What is called by Python here never raises, and may be called in any thread at any moment."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: dict[tuple[Event, str], int] = {}
        self._told: dict[tuple[Event, str], tuple[float, int, int]] = {}
        self._origins: dict[str, str] = {}
        self._folders: tuple[tuple[str, str], ...] = ()
        self._found: dict[str, str] = {}
        self._instances: frozenset[str] = frozenset()
        self._busy = threading.local()

    def plugins_are(self, instances: Iterable[Instance], hooks: Mapping[str, str]) -> None:
        """Say from now on that what happens in the files of these plugins is theirs, and in those of hook objects as `hooks` says."""
        instances = [*instances]
        origins = {**hooks}
        folders: dict[str, str] = {}
        for instance in instances:
            module = sys.modules.get(type(instance.plugin).__module__)
            file = getattr(module, "__file__", None)
            if module is None or not isinstance(file, str):
                continue
            package = f"{instance.distribution} {instance.version}"
            origins[file] = package if file in origins else instance.origin
            top = getattr(sys.modules.get(module.__name__.partition(".")[0]), "__file__", None)
            if isinstance(top, str) and top.endswith("__init__.py"):
                folders[top.removesuffix("__init__.py")] = package
        self._origins, self._folders, self._found = origins, tuple(folders.items()), {}
        self._instances = frozenset(instance.origin for instance in instances)

    def counts(self) -> Mapping[tuple[Event, str], int]:
        """How often each event happened, by the plugin in whose file; empty where it was no plugin's."""
        return self._counts.copy()

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Take what finalizers, threads and tasks raise, until the process ends: finalizers run to the last moment."""
        sys.unraisablehook = self.finalizer_raised
        threading.excepthook = self._thread_raised
        loop.set_exception_handler(self._task_raised)

    @contextmanager
    def output_taken(self) -> Iterator[None]:
        """Take warnings and, where no terminal shows it, what is printed meanwhile."""
        streams = {name: getattr(sys, name) for name in _STREAMS}
        with warnings.catch_warnings():
            # What no filter is for. Python would show a text once, and keep every text that it has shown.
            warnings.simplefilter("always", append=True)
            warnings.showwarning = self._warned
            vars(sys).update({name: self._instead_of(stream) for name, stream in streams.items()})
            handlers = [*logging.getLogger().handlers]
            for handler in handlers:
                handler.addFilter(self.lets_through)
            try:
                yield
            finally:
                vars(sys).update(streams)
                for handler in handlers:
                    handler.removeFilter(self.lets_through)

    def lets_through(self, record: logging.LogRecord) -> bool:
        """For handlers of the log: whether this line of a plugin or a library is told, or counted only.

        What is below `info` is shown where an operator asks for it, and then all of it is. endpick's own lines have limits of their own,
        but for those of errors that it did not expect, which a plugin may bring about with each request.
        """
        if record.levelno < logging.INFO or getattr(self._busy, "telling", False):
            return True
        try:
            whose = self._logged_by(record)
            if whose is None:
                return True
            key = (Event.LOG, whose)
            held_back = self._held_back(key)
            if held_back is None:
                self._counts[key] = self._counts.get(key, 0) + 1
                return False
            if held_back:
                record.suppressed = held_back
            if self._told[key][1] == MOST_LINES:
                record.advice = f"for {INTERVAL_SECONDS:.0f} s from the first of {MOST_LINES} lines on, more of them are counted only"
        except BaseException:  # a name of a logger may be of a class of its own; the line is as any other then
            return True
        return True

    def _logged_by(self, record: logging.LogRecord) -> str | None:
        """Whose line it is: a plugin's, as its logger or the file says, or none that is known; None for endpick's own."""
        if record.name.startswith("endpick.plugin."):
            named = getattr(record, "plugin", "")
            if type(named) is str and named in self._instances:
                return named
        origin = self._origin((record.pathname,))
        if origin or not record.name.startswith("endpick.") or record.name.startswith("endpick.plugin"):
            return origin
        return "" if record.exc_info and not hasattr(record, "plugin") else None

    def _instead_of(self, stream: TextIO | None) -> TextIO | None:
        if stream is None or stream.isatty():
            return stream
        sink = _LineSink(stream, self._printed)
        return io.TextIOWrapper(sink, "utf-8", "backslashreplace", write_through=True)  # type: ignore[type-var]

    def finalizer_raised(self, unraisable: UnraisableHookArgs) -> None:
        """For `sys.unraisablehook`."""
        codes = (*_codes_of(unraisable.exc_traceback), *_code_of(unraisable.object))
        self._happened(Event.FINALIZER, codes, "a finalizer, or what else Python calls by itself, raised", unraisable.exc_value)

    def _thread_raised(self, raised: threading.ExceptHookArgs) -> None:
        if raised.exc_type is not SystemExit:  # which ends a thread, as in Python's own hook
            self._happened(Event.THREAD, _codes_of(raised.exc_traceback), "a thread ended with an error", raised.exc_value)

    def _task_raised(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        problem = context.get("exception")
        codes = () if problem is None else _codes_of(problem.__traceback__)
        task = context.get("task") or context.get("future")
        coroutine = task.get_coro() if isinstance(task, asyncio.Task) else None
        message = str(context.get("message", "an error on the event loop"))
        self._happened(Event.TASK, (*codes, *_code_of(coroutine)), message[:_LONGEST_LINE], problem)

    def loop_left(self, problem: BaseException) -> None:
        """Something other than the end of the process ended the event loop, which is run on."""
        self._happened(Event.TASK, _codes_of(problem.__traceback__), "a task or callback was to end the event loop", problem)

    def collector_raised(self, problem: BaseException) -> None:
        """What a collector in the registry of the host shows is not on the page."""
        self._happened(Event.COLLECTOR, _codes_of(problem.__traceback__), "a collector of metrics failed, and is not on the page", problem)

    def _warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = message_of(message) if isinstance(message, Warning) else message
        self._happened(Event.WARNING, (filename,), f"{filename}:{lineno}: {category.__name__}: {text}"[:_LONGEST_LINE])

    def _printed(self, line: str) -> None:
        self._happened(Event.OUTPUT, _files_above(), f"printed: {line}")

    def _happened(self, event: Event, files: Iterable[str], text: str, problem: BaseException | None = None) -> None:
        try:
            origin = self._origin(files)
            key = (event, origin)
            self._counts[key] = self._counts.get(key, 0) + 1
            # In the last moments a lock of the log may be held by a thread that has ended.
            if sys.is_finalizing() or getattr(self._busy, "telling", False):
                return
            held_back = self._held_back(key)
            if held_back is None:
                return
            self._busy.telling = True
            try:
                _tell(event, origin, text, problem, held_back)
            finally:
                self._busy.telling = False
        except BaseException:  # noqa: S110 - Python would write it to standard error, where nothing may be written
            pass

    def _held_back(self, key: tuple[Event, str]) -> int | None:
        """How many like this were held back since the last interval; None when this one is."""
        now = self._clock()
        since, told, held_back = self._told.get(key, (-INTERVAL_SECONDS, 0, 0))
        if now - since >= INTERVAL_SECONDS:
            self._told[key] = (now, 1, 0)
            return held_back
        if told < (MOST_LINES if key[0] in _LINES else 1):
            self._told[key] = (since, told + 1, 0)
            return held_back
        self._told[key] = (since, told, held_back + 1)
        return None

    def _origin(self, files: Iterable[str]) -> str:
        """The plugin in whose file it happened: the first of these files that is one's."""
        for file in files:
            found = self._found.get(file)
            if found is None:
                found = self._origins.get(file) or next((origin for folder, origin in self._folders if file.startswith(folder)), "")
                if len(self._found) >= _MOST_FILES:  # code may be compiled under any name
                    self._found.clear()
                self._found[file] = found
            if found:
                return found
        return ""


def _tell(event: Event, origin: str, text: str, problem: BaseException | None, held_back: int) -> None:
    fields: dict[str, object] = {"kind": event.value, "suppressed": held_back, **({"plugin": origin} if origin else {})}
    if problem is None:
        _log.log(logging.INFO if event is Event.OUTPUT else logging.WARNING, "%s", text, extra=fields)
    else:
        _log.error("%s: %s: %s", text, kind_of(problem), message_of(problem), exc_info=problem, extra=fields)


class UncaughtCounts(Collector):
    """The metric of it."""

    def __init__(self, uncaught: Uncaught) -> None:
        self._uncaught = uncaught

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The family as it is now; called by the registry."""
        (family,) = self.describe()
        for (event, origin), count in self._uncaught.counts().items():
            family.add_metric([event.value, origin], count)
        yield family

    def describe(self) -> Iterator[CounterMetricFamily]:
        """The family without samples."""
        text = (
            "Errors that no caller can catch, warnings, printed lines, and log lines held back, by the plugin in whose file they happened."
        )
        yield CounterMetricFamily("endpick_uncaught", text, labels=["event", "origin"])


class _LineSink(io.RawIOBase):
    """What is written to it goes on in lines. It stays open, for it is everyone's."""

    def __init__(self, stream: TextIO, take: Callable[[str], None]) -> None:
        self._stream = stream
        self._take = take
        self._rest = b""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        """That of the stream in whose place it stands, for child processes."""
        return self._stream.fileno()

    def close(self) -> None:
        """Does nothing."""

    def write(self, data: ReadableBuffer) -> int:
        written = bytes(data)
        *lines, rest = (self._rest + written).split(b"\n")
        if len(rest) > _LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        self._rest = rest
        for line in lines:
            if line:
                self._take(line[:_LONGEST_LINE].decode("utf-8", "backslashreplace"))
        return len(written)


def _codes_of(traceback: TracebackType | None) -> list[str]:
    """The files of a traceback, innermost first."""
    innermost: deque[TracebackType] = deque(maxlen=_DEEPEST)
    while traceback is not None:
        innermost.appendleft(traceback)
        traceback = traceback.tb_next
    return [each.tb_frame.f_code.co_filename for each in innermost]


def _code_of(subject: object) -> tuple[str, ...]:
    """The file in which a function or a coroutine is written; asked of Python's own kinds only, since others answer with code of theirs."""
    kind = type(subject)
    function = subject.__func__ if isinstance(subject, MethodType) and kind is MethodType else subject
    code: CodeType | None = None
    if isinstance(function, FunctionType) and type(function) is FunctionType:
        code = function.__code__
    elif isinstance(function, CoroutineType) and type(function) is CoroutineType:
        code = function.cr_code
    return () if code is None else (code.co_filename,)


def _files_above() -> Iterator[str]:
    """The files of the functions that are running, innermost first."""
    frame: FrameType | None = sys._getframe()
    for _ in range(_DEEPEST):
        if frame is None:
            return
        yield frame.f_code.co_filename
        frame = frame.f_back
