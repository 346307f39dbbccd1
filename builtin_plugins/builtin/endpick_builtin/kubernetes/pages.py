"""Takes a page of a list apart, object by object, so that the event loop has its turns however many objects a server puts into one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from time import perf_counter
from typing import TypeAlias

import orjson

JSONMapping: TypeAlias = dict[str, object]

MOST_ITEM_BYTES = 2 * 1024 * 1024
"""Of one object, unless `maxObjectBytes` says otherwise; etcd takes none beyond 1.5 MiB, and JSON is longer than what it keeps."""
_LONG_ITEM_BYTES = 128 * 1024
"""An object of more takes a turn to find its end, and another one to be read."""
MOST_BRACKETS = 65_536
"""Of one object, and of what stands around all of them; a Pod has some hundred."""
_BRACKETS_PER_TURN = 1024
TURN_SECONDS = 0.002
"""After which everything else has a turn."""
REST_PER_TURN = 3
"""So many times as long as a turn took the next one waits: others get most of the time, however long a list is."""
_TO_BRACKET = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+"){0,8192}+([{}\[\]])?', re.DOTALL)
"""Up to a bracket that is not within a text, or over so many texts that everything else is to have a turn. It never tries again, so that
it takes a time proportional to what it passes over."""
_ITEMS = re.compile(rb'"items"[ \t\r\n]*:[ \t\r\n]*\[\Z')
_BETWEEN = b" \t\r\n,"
_OPENING = b"{["


class PageError(ValueError):
    """It is no page of a list; the message says why."""


class LongObjectError(PageError):
    """An object, or what stands around all of them, is longer than one may be."""


def objects_of(raw: bytes | bytearray, most_bytes: int = MOST_ITEM_BYTES) -> Iterator[JSONMapping | None]:
    """The objects under `items`, one at a time, and last what stands around them; None now and then, for a turn in the middle of one.

    Raises:
        PageError: it is no page of a list.
        LongObjectError: an object, or what stands around all of them, has more bytes than `most_bytes`.
    """
    depth = position = after = begin = brackets = 0
    """`begin` is where the present object began, `brackets` are those since, and `after` is behind the last one."""
    items_begin = items_end = 0
    match, size = _TO_BRACKET.match, len(raw)
    while found := match(raw, position, min(size, begin + most_bytes)):
        if found.end() == position:
            break
        position = found.end()
        if found[1] is None:
            yield None
            continue
        passed, after = after, position
        brackets += 1
        if not brackets % _BRACKETS_PER_TURN:
            if brackets >= MOST_BRACKETS:
                raise PageError(f"an object has more than {MOST_BRACKETS} brackets")
            yield None
        in_items = items_begin and not items_end
        if raw[position - 1] in _OPENING:
            if depth == 1 and not items_begin and _ITEMS.search(raw, passed, position):
                items_begin = begin = position
            elif depth == 2 and in_items:
                _require_nothing(raw[passed : position - 1])
                begin, brackets = position - 1, 0
            depth += 1
            continue
        depth -= 1
        if depth == 2 and in_items:
            if position - begin > _LONG_ITEM_BYTES:
                yield None
            yield _object(raw[begin:position])
            begin, brackets = position, 0
        elif depth == 1 and in_items:
            _require_nothing(raw[passed : position - 1])
            items_end = begin = position - 1
    if size - begin > most_bytes:
        raise LongObjectError(f"an object, or what stands around all of them, is longer than {most_bytes} bytes")
    if items_begin and not items_end:
        raise PageError("it is cut short")
    yield _object(raw[:items_begin] + raw[items_end:] if items_begin else raw)


class Pace:
    """Rests between many short steps, by how long all of them took since the last rest.

    Tasks that share it rest one after the other: ten watches that send without an end leave others as much of the time as one does.
    """

    def __init__(self) -> None:
        self._took_seconds = 0.0
        self._rested_at = 0.0
        """Until then, by `perf_counter`, those that share it rest."""

    async def rest(self, began: float) -> None:
        """After a step that began then, by `perf_counter`: everything else has its turn if steps took long enough by now."""
        now = perf_counter()
        self._took_seconds += now - began
        if self._took_seconds > TURN_SECONDS:
            took, self._took_seconds = self._took_seconds, 0.0
            self._rested_at = max(now, self._rested_at) + took * REST_PER_TURN
            await asyncio.sleep(self._rested_at - now)


async def take_apart(
    raw: bytes | bytearray, take: Callable[[JSONMapping], None], pace: Pace, most_bytes: int = MOST_ITEM_BYTES
) -> JSONMapping:
    """Hand over the objects of a page, with turns for everything else between them; returns what stands around them.

    Args:
        raw: The page.
        take: Gets the objects.
        pace: When everything else has its turn.
        most_bytes: Of one object.

    Raises:
        PageError: see `objects_of`.
    """
    began = perf_counter()
    last: JSONMapping | None = None
    for item in objects_of(raw, most_bytes):
        if item is not None:
            if last is not None:
                take(last)
            last = item
        await pace.rest(began)
        began = perf_counter()
    assert last is not None, "what stands around the objects comes last"
    return last


def _require_nothing(between: bytes | bytearray) -> None:
    if between.strip(_BETWEEN):
        raise PageError("its items are no objects")


def _object(raw: bytes | bytearray) -> JSONMapping:
    try:
        content = orjson.loads(raw)
    except orjson.JSONDecodeError as problem:
        raise PageError(f"it is not JSON: {problem}") from problem
    if not isinstance(content, dict):
        raise PageError("it is no JSON object")
    return content
