"""What endpoints tell of themselves beside being polled, such as their load in an answer: when, so that polls need not ask for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable


class Told:
    """When each endpoint last told each key by itself: the writes of keys that are `DataKey.beside_others`."""

    __slots__ = ("_clock", "_times", "any", "now")

    def __init__(self, clock: Callable[[], float]) -> None:
        """With monotonic seconds."""
        self._clock = clock
        self.now = clock
        """The moment from which on what an endpoint tells is newer than what it is asked for now."""
        self._times: dict[str, dict[str, float]] = {}
        self.any = False
        """Whether an endpoint has ever told something: where none does, a write need not look further."""

    def note(self, endpoint: str, key: str) -> None:
        """The endpoint has told the key just now."""
        self._times.setdefault(endpoint, {})[key] = self._clock()
        self.any = True

    def is_later(self, endpoint: str, key: str, since: float) -> bool:
        """Whether it has told the key after that moment."""
        return self._times.get(endpoint, {}).get(key, -math.inf) > since

    def are_fresh(self, endpoint: str, keys: Iterable[str], within_seconds: float) -> bool:
        """Whether it has told each of these keys within so many seconds."""
        times = self._times.get(endpoint)
        if times is None:
            return False
        since = self._clock() - within_seconds
        return all(times.get(key, -math.inf) >= since for key in keys)

    def forget(self, endpoint: str) -> None:
        """The endpoint has left, or is another server now."""
        self._times.pop(endpoint, None)
        self.any = bool(self._times)
