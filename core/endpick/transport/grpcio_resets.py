"""Which connections end too many streams before their answer, where a library tells of streams one by one and late."""

from __future__ import annotations

import time
from typing import Final

from endpick.transport.h2.errors import RateBudget
from endpick.transport.limits import Limits

__all__ = ["Resets"]

_FEW: Final = 128
_FEW_PER_SECOND: Final = 10.0
"""A connection may have so many in any case, so that others from its address do not end it."""
_MOST_SITES: Final = 4096


class Resets:
    """Counts them by connection, and by address, since a connection that was ended is soon made again."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._of_sites: dict[str, RateBudget] = {}
        self._of_peers: dict[str, tuple[RateBudget, RateBudget]] = {}
        """What each connection may have as long as its address has not used up its own, and what it may have in any case."""

    def may_be(self, peer: str, site: str) -> bool:
        """Count one more of this connection; False when it is one too many."""
        now = time.monotonic()
        if peer not in self._of_peers:
            self._of_peers[peer] = self._usual(now), RateBudget(_FEW, _FEW_PER_SECOND, now)
        if site not in self._of_sites:
            if len(self._of_sites) >= _MOST_SITES:
                self._of_sites.clear()
            self._of_sites[site] = self._usual(now)
        own, few = self._of_peers[peer]
        is_own, is_of_site, is_few = own.spend(now), self._of_sites[site].spend(now), few.spend(now)
        return is_own and (is_of_site or is_few)

    def forget(self, peer: str) -> None:
        """The connection is gone."""
        self._of_peers.pop(peer, None)

    def _usual(self, now: float) -> RateBudget:
        return RateBudget(self._limits.unanswered_resets_burst, self._limits.unanswered_resets_per_second, now)
