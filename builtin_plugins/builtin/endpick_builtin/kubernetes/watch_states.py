"""The life of one watch: the states it can be in, and what follows when a list or a watch ends in this way or that."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from random import Random
from types import MappingProxyType

from endpick_builtin.kubernetes.patience import Patience


class WatchState(StrEnum):
    """What is being done about one collection."""

    LISTING = "listing"
    """Everything is asked for."""
    WATCHING = "watching"
    """Changes since the last known version are followed."""
    BEFORE_LIST = "before-list"
    """Waiting, then everything is asked for."""
    BEFORE_WATCH = "before-watch"
    """Waiting, then changes are followed from where they were lost."""


class Outcome(StrEnum):
    """How a list, a watch or a wait ended."""

    LISTED = "listed"
    """The list is complete."""
    ENDED = "ended"
    """The server ended the watch at its time, and had spoken on it: the version is fresh."""
    QUIET = "quiet"
    """The server ended the watch at its time without a word, as it may when nothing happens."""
    SILENT = "silent"
    """It was the last of several such watches, or one went on beyond its time: whether anything has changed is unknown."""
    EXPIRED = "expired"
    """410 Gone, as the status of the answer or inside the stream: the server no longer knows the version."""
    BROKEN = "broken"
    """No connection, a connection cut, or an answer that is an error: what is known may still be continued."""
    MALFORMED = "malformed"
    """The server sent what is no event: what was lost with it is unknown."""
    ABSENT = "absent"
    """404: the server has no such collection, for example because the custom resource is not installed."""
    ELAPSED = "elapsed"
    """The wait is over."""


_LISTING, _WATCHING = WatchState.LISTING, WatchState.WATCHING
_BEFORE_LIST, _BEFORE_WATCH = WatchState.BEFORE_LIST, WatchState.BEFORE_WATCH

TRANSITIONS: Mapping[tuple[WatchState, Outcome], WatchState] = MappingProxyType(
    {
        (_LISTING, Outcome.LISTED): _WATCHING,
        (_LISTING, Outcome.EXPIRED): _BEFORE_LIST,
        (_LISTING, Outcome.BROKEN): _BEFORE_LIST,
        (_LISTING, Outcome.MALFORMED): _BEFORE_LIST,
        (_LISTING, Outcome.ABSENT): _BEFORE_LIST,
        (_WATCHING, Outcome.ENDED): _WATCHING,
        (_WATCHING, Outcome.QUIET): _WATCHING,
        (_WATCHING, Outcome.SILENT): _LISTING,
        (_WATCHING, Outcome.EXPIRED): _BEFORE_LIST,
        (_WATCHING, Outcome.BROKEN): _BEFORE_WATCH,
        (_WATCHING, Outcome.MALFORMED): _BEFORE_LIST,
        (_WATCHING, Outcome.ABSENT): _BEFORE_LIST,
        (_BEFORE_LIST, Outcome.ELAPSED): _LISTING,
        (_BEFORE_WATCH, Outcome.ELAPSED): _WATCHING,
    }
)
"""Every outcome that a state can have, and the state after it."""


class Pauses:
    """How long to wait after each failure: twice as long each time, and never all pickers at the same time."""

    def __init__(self, random: Random, patience: Patience, longest_seconds: float) -> None:
        """`longest_seconds`: between two attempts while the server answers with errors."""
        self._random = random
        self._patience = patience
        self._longest_seconds = longest_seconds
        self._expiries = self._answers = self._silences = 0

    def progressed(self) -> None:
        """The server has answered as it should: the next failure is the first again."""
        self._expiries = self._answers = self._silences = 0

    def after(self, outcome: Outcome, retry_after_seconds: float, *, answered: bool) -> float:
        """Seconds to wait now.

        Args:
            outcome: Of what failed.
            retry_after_seconds: What the server asked for; 0 where it did not.
            answered: Whether there was an HTTP status. Asking where nothing answers costs little, and a server may be back.
        """
        patience = self._patience
        if outcome is Outcome.ABSENT:
            wait = patience.absent_pause_seconds
        elif outcome is Outcome.EXPIRED:
            # A server that was restarted has forgotten the version, and has changes to tell: first it is asked at once.
            wait = min(self._longest_seconds, self._doubled(self._expiries - 1)) if self._expiries else 0.0
            self._expiries += 1
        elif answered:
            wait = self._after_answer()
            self._answers += 1
        else:
            wait = min(self._longest_seconds, patience.unanswered_pause_seconds, self._doubled(self._silences))
            self._silences += 1
            self._answers = 0  # who answers after this is another server, which may be starting
        return max(wait * self._random.uniform(0.5, 1.0), min(retry_after_seconds, patience.longest_retry_after_seconds))

    def _after_answer(self) -> float:
        quick = self._patience.quick_pause_seconds
        beyond = self._answers - self._patience.quick_failures
        if beyond < 0:
            return min(self._longest_seconds, quick, self._doubled(self._answers))
        return min(self._longest_seconds, 2.0 * quick * 2.0 ** min(beyond, 16))

    def _doubled(self, times: int) -> float:
        # 2**16 first pauses are more than any limit: larger exponents would only grow the number.
        return self._patience.first_pause_seconds * 2.0 ** min(times, 16)
