"""The traceback of an exception as text: no more of it than a person could read, and nothing of it that is not looked at with care.

Python's own formats all of a chain of 20,000 causes, which takes more than a second, opens whatever file the code says it was compiled
from, which may be a pipe, and asks the exception and its class, which may answer with code of the plugin.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from types import CodeType, FrameType, TracebackType
from typing import cast

from endpick.files import open_regular
from endpick.host.failures import CALL_FAILURES, kind_of, message_of

MOST_PROBLEMS = 10
"""Exceptions of one text: causes, contexts and members of groups together."""
FIRST_FRAMES, LAST_FRAMES = 15, 25
"""Of each traceback; those between are counted."""
MOST_NOTES = 10
_FOUND_FRAMES = 500
"""As many of the first and of the last are looked through for those of a plugin: more than Python nests by default."""
_DEEPEST = 40
"""Frames of the stack of a thread, the innermost ones."""
_LONGEST_LINE = 1000
_MOST_SOURCE_BYTES = 2 * 1024 * 1024
"""Read of all files together for one text."""

_CAUSE_OF = "The above exception was the direct cause of the following exception:"
_CONTEXT_OF = "During handling of the above exception, another exception occurred:"

# Asked of Python itself: the class of an exception may have attributes of these names.
_cause = cast("Callable[[BaseException], BaseException | None]", BaseException.__dict__["__cause__"].__get__)
_context = cast("Callable[[BaseException], BaseException | None]", BaseException.__dict__["__context__"].__get__)
_hides_context = cast("Callable[[BaseException], bool]", BaseException.__dict__["__suppress_context__"].__get__)
_members = cast("Callable[[BaseException], tuple[BaseException, ...]]", BaseExceptionGroup.__dict__["exceptions"].__get__)
traceback_of = cast("Callable[[BaseException], TracebackType | None]", BaseException.__dict__["__traceback__"].__get__)
"""Where an exception was raised."""

ExceptionInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def for_log(problem: BaseException) -> ExceptionInfo:
    """What to give a logger as `exc_info`; of an exception by itself it would read an attribute."""
    return type(problem), problem, traceback_of(problem)


def traceback_text(problem: BaseException) -> str:
    """The exception with what led to it, innermost first as in Python, and without an end of line."""
    return "\n".join(_Text().of(problem))


def stack_text(frame: FrameType) -> str:
    """Where a thread is, its innermost frames, innermost last as in Python, and without an end of line."""
    sources = _Sources()
    innermost: list[FrameType] = []
    each: FrameType | None = frame
    while each is not None and len(innermost) < _DEEPEST:
        innermost.append(each)
        each = each.f_back
    return "\n".join(line for each in reversed(innermost) for line in sources.place_lines(each.f_code, each.f_lineno or 0))


def frames_of(problem: BaseException, skipped: tuple[str, ...] = ()) -> tuple[traceback.FrameSummary, ...]:
    """The first and the last frames of an exception, innermost last, without those of files whose names begin so."""
    sources = _Sources()
    frames, _ = _bounded(
        (each for each in _walked(problem) if not _file_of(each).startswith(skipped or "\0")), _FOUND_FRAMES, _FOUND_FRAMES
    )
    return tuple(sources.summary(each) for each in frames)


class _Text:
    """Lines of one text."""

    def __init__(self) -> None:
        self._left = MOST_PROBLEMS
        self._seen: set[int] = set()
        self._sources = _Sources()

    def of(self, problem: BaseException) -> Iterator[str]:
        """The lines of an exception and of what led to it."""
        chain: list[tuple[BaseException, str]] = []
        each: BaseException | None = problem
        link = ""
        while each is not None and id(each) not in self._seen and self._left:
            self._seen.add(id(each))
            self._left -= 1
            chain.append((each, link))
            each, link = _led_to(each)
        if each is not None:
            yield "(what led to this is left out)"
        for shown, after in reversed(chain):
            yield from self._one(shown)
            if after:
                yield from ("", after, "")

    def _one(self, problem: BaseException) -> Iterator[str]:
        frames, left_out = _bounded(_walked(problem))
        if frames:
            yield "Traceback (most recent call last):"
        for number, frame in enumerate(frames):
            if left_out and number == FIRST_FRAMES:
                yield f"  ({left_out} more frames)"
            yield from self._sources.place_lines(frame.tb_frame.f_code, frame.tb_lineno or 0)
        yield f"{kind_of(problem)}: {message_of(problem)}"
        yield from _notes_of(problem)
        if issubclass(type(problem), BaseExceptionGroup):
            yield from self._of_members(_members(problem))

    def _of_members(self, members: tuple[BaseException, ...]) -> Iterator[str]:
        shown = 0
        while shown < len(members) and self._left:
            yield from (f"  | {line}" for line in self.of(members[shown]))
            shown += 1
        if shown < len(members):
            yield f"  | ({len(members) - shown} more exceptions)"


class _Sources:
    """Lines of source files, each of which is read once."""

    def __init__(self) -> None:
        self._left = _MOST_SOURCE_BYTES
        self._lines: dict[str, list[bytes]] = {}

    def summary(self, frame: TracebackType) -> traceback.FrameSummary:
        """A frame with its line, as far as that can be read."""
        return self._place(frame.tb_frame.f_code, frame.tb_lineno or 0)

    def _place(self, code: CodeType, number: int) -> traceback.FrameSummary:
        file, name = str.__str__(code.co_filename), str.__str__(code.co_name)
        return traceback.FrameSummary(file[:_LONGEST_LINE], number, name[:_LONGEST_LINE], lookup_line=False, line=self._line(file, number))

    def place_lines(self, code: CodeType, number: int) -> Iterator[str]:
        """A place in the code as lines of text."""
        summary = self._place(code, number)
        yield f'  File "{summary.filename}", line {summary.lineno}, in {summary.name}'
        if summary.line:
            yield f"    {summary.line}"

    def _line(self, file: str, number: int) -> str:
        if file not in self._lines:
            self._lines[file] = self._read(file)
        lines = self._lines[file]
        return lines[number - 1][:_LONGEST_LINE].decode("utf-8", "replace").strip() if 0 < number <= len(lines) else ""

    def _read(self, file: str) -> list[bytes]:
        """All lines; none of a file that is long or no file, as that is where code may say it was compiled from."""
        try:
            with open_regular(file) as opened:
                content = opened.read(self._left + 1)
        except (OSError, ValueError):
            return []
        if len(content) > self._left:
            return []
        self._left -= len(content)
        return content.splitlines()


def _led_to(problem: BaseException) -> tuple[BaseException | None, str]:
    """What led to an exception, and how."""
    cause = _cause(problem)
    if cause is not None:
        return cause, _CAUSE_OF
    return (None, "") if _hides_context(problem) else (_context(problem), _CONTEXT_OF)


def _walked(problem: BaseException) -> Iterator[TracebackType]:
    entry = traceback_of(problem)
    while entry is not None:
        yield entry
        entry = entry.tb_next


def _bounded(
    entries: Iterable[TracebackType], first_frames: int = FIRST_FRAMES, last_frames: int = LAST_FRAMES
) -> tuple[list[TracebackType], int]:
    """The first and the last, and how many are between them."""
    walk = iter(entries)
    first = list(islice(walk, first_frames))
    last: deque[TracebackType] = deque(maxlen=last_frames)
    count = 0
    for entry in walk:
        last.append(entry)
        count += 1
    return [*first, *last], count - len(last)


def _file_of(entry: TracebackType) -> str:
    return str.__str__(entry.tb_frame.f_code.co_filename)


def _notes_of(problem: BaseException) -> list[str]:
    try:
        notes = getattr(problem, "__notes__", None)
    except CALL_FAILURES:  # a class may answer for its objects
        return []
    if type(notes) is not list:
        return []
    return [note[:_LONGEST_LINE] for note in notes[:MOST_NOTES] if type(note) is str]
