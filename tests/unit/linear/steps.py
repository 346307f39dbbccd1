"""Counts steps, which are the same on every machine: those of a pattern, and those of a function."""

from __future__ import annotations

import gc
import re
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from types import FrameType
from typing import Any

_SPACE, _DIGIT, _WORD = re.compile(r"\s", re.ASCII), re.compile(r"\d", re.ASCII), re.compile(r"\w", re.ASCII)
_CATEGORIES = {
    op.CATEGORY_SPACE: (_SPACE, True),
    op.CATEGORY_NOT_SPACE: (_SPACE, False),
    op.CATEGORY_DIGIT: (_DIGIT, True),
    op.CATEGORY_NOT_DIGIT: (_DIGIT, False),
    op.CATEGORY_WORD: (_WORD, True),
    op.CATEGORY_NOT_WORD: (_WORD, False),
}


class Matcher:
    """A backtracking matcher that tries what `re` tries, in its order, and counts each attempt. `re` is faster by a constant factor."""

    def __init__(self, pattern: re.Pattern[Any], text: str | bytes) -> None:
        self._tree = parser.parse(pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
        self._flags = pattern.flags
        self._text = list(text) if isinstance(text, bytes) else [ord(character) for character in text]
        self.steps = 0

    def match(self, at: int = 0) -> int | None:
        """Where the match that begins at `at` ends."""
        return next(self._sequence(self._tree, at), None)

    def fullmatch(self) -> int | None:
        """The length of the text if all of it matches."""
        return next((end for end in self._sequence(self._tree, 0) if end == len(self._text)), None)

    def search(self, at: int = 0) -> int | None:
        """Where the first match that begins at `at` or later ends."""
        return next((end for start in range(at, len(self._text) + 1) if (end := self.match(start)) is not None), None)

    def finditer(self) -> list[int]:
        """Where matches end, none of them empty, as `finditer`, `findall`, `sub` and `split` look for them."""
        ends: list[int] = []
        while (end := self.search(ends[-1] if ends else 0)) is not None:
            ends.append(end)
        return ends

    def _sequence(self, items: Sequence[Any], at: int, first: int = 0) -> Iterator[int]:
        if first == len(items):
            yield at
            return
        for end in self._item(*items[first], at):
            yield from self._sequence(items, end, first + 1)

    def _item(self, code: Any, argument: Any, at: int) -> Iterator[int]:
        self.steps += 1
        if code in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            if at < len(self._text) and self._is_one(code, argument, self._text[at]):
                yield at + 1
        elif code is op.AT:
            if self._is_at(argument, at):
                yield at
        elif code is op.SUBPATTERN:
            yield from self._sequence(argument[-1], at)
        elif code is op.BRANCH:
            for branch in argument[1]:
                yield from self._sequence(branch, at)
        elif code is op.MAX_REPEAT:
            yield from self._greedy(*argument, at)
        elif code is op.MIN_REPEAT:
            yield from self._lazy(*argument, at)
        elif code is op.POSSESSIVE_REPEAT:
            yield from self._first(self._greedy(*argument, at))
        elif code is op.ATOMIC_GROUP:
            yield from self._first(self._sequence(argument, at))
        elif code in (op.ASSERT, op.ASSERT_NOT):
            direction, tree = argument
            start = at if direction > 0 else at - tree.getwidth()[0]
            if (start >= 0 and next(self._sequence(tree, start), None) is not None) is (code is op.ASSERT):
                yield at
        else:
            raise NotImplementedError(f"{code}: teach this matcher about it")

    @staticmethod
    def _first(ends: Iterator[int]) -> Iterator[int]:
        for end in ends:
            yield end
            return

    def _greedy(self, low: int, high: int, body: Sequence[Any], at: int) -> Iterator[int]:
        if len(body) == 1 and body[0][0] in (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN):
            end = at
            while end - at < high and next(self._item(*body[0], end), None) is not None:
                end += 1
            for place in range(end, at + low - 1, -1):
                self.steps += 1
                yield place
            return
        if high:
            for end in self._sequence(body, at):
                if end > at or low:
                    yield from self._greedy(max(low - 1, 0), high if high is op.MAXREPEAT else high - 1, body, end)
        if not low:
            yield at

    def _lazy(self, low: int, high: int, body: Sequence[Any], at: int) -> Iterator[int]:
        ends, count = iter([at]), 0
        while (end := next(ends, None)) is not None and count <= high:
            if count >= low:
                yield end
            ends, count = self._sequence(body, end), count + 1

    def _is_one(self, code: Any, argument: Any, found: int) -> bool:
        if code is op.ANY:
            return bool(self._flags & re.DOTALL) or found != ord("\n")
        cases = {found, *map(ord, (chr(found).lower() + chr(found).upper())[:2])} if self._flags & re.IGNORECASE else {found}
        if code is op.IN:
            negated = argument[0][0] is op.NEGATE
            return any(self._is_in(item, case) for item in argument[negated:] for case in cases) is not negated
        return (argument in cases) is (code is op.LITERAL)

    @staticmethod
    def _is_in(item: tuple[Any, Any], found: int) -> bool:
        code, argument = item
        if code is op.RANGE:
            return bool(argument[0] <= found <= argument[1])
        if code is op.CATEGORY:
            pattern, expected = _CATEGORIES[argument]
            return (pattern.match(chr(found)) is not None) is expected
        return bool(argument == found)

    def _is_at(self, where: Any, at: int) -> bool:
        text, multiline = self._text, self._flags & re.MULTILINE
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return at == 0 or bool(multiline and where is op.AT_BEGINNING and text[at - 1] == ord("\n"))
        if where in (op.AT_END, op.AT_END_STRING):
            return at == len(text) or (where is op.AT_END and text[at:] == [ord("\n")]) or bool(multiline and text[at] == ord("\n"))
        before, after = (0 <= place < len(text) and _WORD.match(chr(text[place])) is not None for place in (at - 1, at))
        return (before is not after) is (where is op.AT_BOUNDARY)


def steps_of(run: Callable[[], object]) -> int:
    """Lines of Python that run, and calls of functions in C."""
    steps = 0

    def line(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return line

    def call(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal steps
        steps += event == "c_call"

    tracing, profiling, collects = sys.gettrace(), sys.getprofile(), gc.isenabled()
    gc.disable()  # what it calls would count
    sys.settrace(line)
    sys.setprofile(call)
    try:
        run()
    finally:
        sys.settrace(tracing)
        sys.setprofile(profiling)
        if collects:
            gc.enable()
    return steps


def peak_of(run: Callable[[], object]) -> int:
    """Bytes of memory that are in use at once."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


class Counted(bytes):
    """Bytes that count how many of them are looked at or copied: functions in C hide that."""

    looked_at = 0

    def find(self, part: Any, start: int = 0, stop: int | None = None) -> int:  # type: ignore[override]
        stop = len(self) if stop is None else stop
        found = super().find(part, start, stop)
        self.looked_at += (stop if found < 0 else found) - start
        return found

    def rfind(self, part: Any, start: int = 0, stop: int | None = None) -> int:  # type: ignore[override]
        stop = len(self) if stop is None else stop
        found = super().rfind(part, start, stop)
        self.looked_at += stop - max(found, start)
        return found

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.looked_at += len(found) if isinstance(found, bytes) else 1
        return found
