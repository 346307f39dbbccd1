"""The search for garbage while requests are served: in short parts, and in full where that is short as well, or may help."""

from __future__ import annotations

import gc
import time
from typing import Final

from endpick.requests.memory import MemoryAccount

_COLLECTED_AT = 10_000
"""So many new objects are searched for garbage. A request under way has about a hundred, which are freed when it is over: with Python's
own 700 the collector would look at those of seven requests that overlap, again and again, and find nothing."""
_YOUNG_COLLECTIONS = 2
"""What has outlived one search is searched a second time after so many more. With Python's own ten, that was a hundred thousand objects
where thousands of requests wait, and took 41 ms at once; each object is searched as often either way."""
_MOST_YOUNG = _COLLECTED_AT * (_YOUNG_COLLECTIONS + 1)
"""More objects than that Python has searched before they are so many, unless its count misses them."""
_OLD_COLLECTIONS = 40
"""A full search comes no sooner than with Python's own ten and ten."""
_NEVER = 2**31 - 1

_LITTLE_BYTES: Final = 16 * 1024 * 1024
"""Held for requests: some eight thousand streams on which nothing comes, or seventy thousand blocks of a prefix index."""
_NEED_SECONDS = 600.0
_MUCH_BYTES: Final = 64 * 1024 * 1024
_MUCH_SHARE: Final = 2
"""One part of so many of what is held: so wrong the account may be by itself."""
_SHARE = 0.001
"""Of the time, for full searches: a plugin may hold much that it does not speak of."""


def collect_rarely() -> None:
    """Have the garbage collector pass over all that there is now, look at what comes later now and then, and never at all of it.

    Called at the end of the start: what that made lives as long as the process, and to visit it would be a tenth of a request's CPU.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECTED_AT, _YOUNG_COLLECTIONS, _NEVER)
    gc.enable()


class FullSearches:
    """Looks for garbage among all that has lived for long, which Python would do by itself whenever a quarter has been added.

    A full search looks at each object: it took 0.5 s beside 168,000 open streams, and 0.27 s beside a full prefix index. So there is one
    only while little is held, and where garbage may be the reason: where memory is short though what is accounted for does not say why, or
    where much has become resident since the last one that is not accounted for.
    """

    def __init__(self, account: MemoryAccount) -> None:
        self._account = account
        self._next = self._next_in_need = 0.0
        self._least_bytes: int | None = None
        """That were resident and not accounted for at any time since the last full search."""

    def look(self, now: float) -> None:
        """Search if it is time; called ten times a second, with `now` in monotonic seconds."""
        self._search_young()
        account = self._account
        unaccounted = account.unaccounted_bytes
        least = unaccounted if self._least_bytes is None else min(self._least_bytes, unaccounted)
        self._least_bytes = least
        if account.held_bytes <= _LITTLE_BYTES:
            if now >= self._next and gc.get_count()[2] > _OLD_COLLECTIONS:
                self._search(now)
        elif now >= self._next_in_need:
            has_grown = unaccounted - least > _MUCH_BYTES + account.held_bytes // _MUCH_SHARE
            if has_grown or account.is_unexplained:
                self._next_in_need = now + _NEED_SECONDS
                self._search(now)

    def _search_young(self) -> None:
        """Search what is young once there is much of it, however little of it Python has counted.

        Python counts what is made less what is freed. Where new objects take the place of old ones, as where thousands of watches are told
        something, nothing is left of that count, and all of them are searched at once when it grows again: 24,000 watches took 0.3 s.
        """
        # Within one call of C: between two lines another thread could go on with a tuple that it is making, which fails while a list of
        # all objects refers to it as well.
        if sum(map(len, map(gc.get_objects, (0, 1)))) > _MOST_YOUNG:
            gc.collect(1)

    def _search(self, now: float) -> None:
        began = time.thread_time()
        gc.collect()
        self._least_bytes = None
        self._next = now + (time.thread_time() - began) / _SHARE
