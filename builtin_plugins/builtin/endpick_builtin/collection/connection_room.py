"""How many connections to servers all sources together may have open, so that gateways and probes have descriptors left."""

from __future__ import annotations

import resource
from typing import Protocol

_SHARE = 3 / 8
"""Of the limit of open files, for the connections over which pages are fetched; as much is for the publishers of KV events."""


def descriptors_for_feeds() -> int:
    """How many of the files that the process may open one kind of feed may have."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 2**31 - 1 if limit == resource.RLIM_INFINITY else int(limit * _SHARE)


class Keeper(Protocol):
    """Keeps connections for later."""

    def close_idle(self) -> bool:
        """Close one that is not in use, and `leave` the room for it; False where there is none."""


class ConnectionRoom:
    """Counts connections. Where there are as many as may be, those that are kept unused make room, those unused for long first."""

    def __init__(self, most: int | None = None) -> None:
        """For so many, by default `descriptors_for_feeds`."""
        self._most = most
        self._taken = 0
        self._keepers: dict[Keeper, None] = {}

    def enter(self, keeper: Keeper) -> bool:
        """Take the place of a connection about to be opened; False where all are in use."""
        self._keepers.setdefault(keeper)
        most = descriptors_for_feeds() if self._most is None else self._most
        if self._taken >= most and not any(each.close_idle() for each in (keeper, *self._keepers)):
            return False
        self._taken += 1
        return True

    def leave(self) -> None:
        """A connection is closed."""
        self._taken -= 1

    def forget(self, keeper: Keeper) -> None:
        """It has no connections any more."""
        self._keepers.pop(keeper, None)


ROOM = ConnectionRoom()
"""Of the process: descriptors are the process's, too."""
