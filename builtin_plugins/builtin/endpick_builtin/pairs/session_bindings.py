"""Which endpoint serves which session: a bounded memory that forgets sessions which are not seen any more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from endpick_builtin.recency import FORGOTTEN_AT_ONCE, Recency, kept_id

_BINDING_BYTES = 330
"""With an id as long as it may be: 214 for one of 25 characters."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The endpoint of a session."""

    endpoint: str
    last_seen: float


class SessionBindings:
    """Sessions with the names of their endpoints, least recently seen first.

    A binding counts until its session was not seen for the time to live. Those that are over are removed in sweeps, each of which looks at
    no more than it removes and one, and leaves the rest to the next call where there are thousands; where there are too many sessions, the
    one that was not seen for longest gives way.
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

    @property
    def size_bytes(self) -> int:
        """About what they take."""
        return len(self._bindings) * _BINDING_BYTES

    def halve(self) -> bool:
        """Forget some of the half that was not seen for longest; whether there are more of it, for which it is to be called again."""
        return self._bindings.halve()

    def endpoint_of(self, session: str) -> str | None:
        """Name of the endpoint that serves the session; None when it has none."""
        binding = self._bindings.get(kept_id(session))
        return None if binding is None or self._clock() - binding.last_seen > self._ttl else binding.endpoint

    def bind(self, session: str, endpoint: str) -> None:
        """The session was seen, and this endpoint serves it from now on."""
        now, key = self._clock(), kept_id(session)
        if now >= self._next_sweep:
            self._sweep(now)
        self._bindings.use(key, Binding(endpoint, now))
        self.displaced += sum(1 for _ in self._bindings.beyond(self._most))

    def _sweep(self, now: float) -> None:
        over = self._bindings.older(lambda binding: now - binding.last_seen > self._ttl)
        if sum(1 for _ in islice(over, FORGOTTEN_AT_ONCE)) < FORGOTTEN_AT_ONCE:
            self._next_sweep = now + self._sweep_every
