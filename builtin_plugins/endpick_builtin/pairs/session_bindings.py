"""Which endpoint serves which session: a bounded memory that forgets sessions which are not seen any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from endpick_builtin.recency import Recency

LONGEST_ID = 128
"""A longer id is kept as its hash: clients choose ids, and must not fill the memory with them."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The endpoint of a session."""

    endpoint: str
    last_seen: float


class SessionBindings:
    """Sessions with the names of their endpoints, least recently seen first.

    A binding counts until its session was not seen for the time to live. Those that are over are removed in sweeps, each of which looks at
    no more than it removes and one; where there are too many sessions, the one that was not seen for longest gives way.
    """

    def __init__(self, ttl_seconds: float, sweep_seconds: float, most: int, clock: Callable[[], float]) -> None:
        """`most` sessions at most."""
        self._ttl = ttl_seconds
        self._sweep_every = sweep_seconds
        self._most = most
        self._clock = clock
        self._next_sweep = clock() + sweep_seconds
        self._bindings: Recency[str, Binding] = Recency()
        self.displaced = 0
        """Sessions that gave way to others."""

    def __len__(self) -> int:
        return len(self._bindings)

    def endpoint_of(self, session: str) -> str | None:
        """Name of the endpoint that serves the session; None when it has none."""
        binding = self._bindings.get(_kept(session))
        return None if binding is None or self._clock() - binding.last_seen > self._ttl else binding.endpoint

    def bind(self, session: str, endpoint: str) -> None:
        """The session was seen, and this endpoint serves it from now on."""
        now, key = self._clock(), _kept(session)
        if now >= self._next_sweep:
            self._sweep(now)
        self._bindings.use(key, Binding(endpoint, now))
        self.displaced += sum(1 for _ in self._bindings.beyond(self._most))

    def _sweep(self, now: float) -> None:
        self._next_sweep = now + self._sweep_every
        for _ in self._bindings.older(lambda binding: now - binding.last_seen > self._ttl):
            pass


def _kept(session: str) -> str:
    if len(session) <= LONGEST_ID:
        return session
    return blake2b(session.encode("utf-8", "surrogatepass"), digest_size=LONGEST_ID // 4).hexdigest()
