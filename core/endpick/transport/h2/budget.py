"""Allowances that abuse exhausts and good traffic does not: rates per connection, memory per server."""

from __future__ import annotations

from endpick.extproc.memory import MemoryBudget
from endpick.transport.h2.faults import ErrorCode, H2ConnectionError

__all__ = ["MemoryBudget", "RateBudget"]


class RateBudget:
    """A token bucket that looks at the time only once it seems empty, so at worst it lets two bursts pass for one."""

    __slots__ = ("_burst", "_filled_at", "_left", "_per_second")

    def __init__(self, burst: int, per_second: float, now: float) -> None:
        self._burst = float(burst)
        self._left = float(burst)
        self._per_second = per_second
        self._filled_at = now

    def spend(self, now: float) -> bool:
        """Take one; False if there is none."""
        if self._left < 1.0:
            self._left = min(self._burst, self._left + (now - self._filled_at) * self._per_second)
            self._filled_at = now
            if self._left < 1.0:
                return False
        self._left -= 1.0
        return True

    def require(self, now: float, what: str, counter: str) -> None:
        """Take one.

        Args:
            now: monotonic seconds.
            what: what the client sends too many of, in words.
            counter: the field of `TransportCounters` that tells.

        Raises:
            H2ConnectionError: there is none.
        """
        if not self.spend(now):
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, f"too many {what}", counter)
