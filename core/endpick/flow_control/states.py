"""The life of a request that flow control holds: its states, what moves it from one to the next, and how each end is counted."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum


class EntryState(IntEnum):
    """Where a request stands."""

    ARRIVED = 0
    """It has been offered, and is in no queue."""
    WAITING = 1
    """It is in the queue of its flow."""
    LET_GO = 2
    """It goes to a model server, or at least to those who look for one."""
    REFUSED = 3
    """Its client is told that it was not served."""
    LEFT = 4
    """Its client is gone."""


class EntryEvent(IntEnum):
    """What happens to a request."""

    PASSED = 0
    """There was room, and no reason to wait."""
    QUEUED = 1
    CHOSEN = 2
    """It was its turn."""
    NO_ROOM = 3
    """Its queue is full, or was made smaller by a reload."""
    EXPIRED = 4
    """It waited too long."""
    CLIENT_LEFT = 5
    SHUT_DOWN = 6
    """The process ends."""
    SHED = 7
    """The process is short of memory."""


TRANSITIONS: Mapping[tuple[EntryState, EntryEvent], EntryState] = {
    (EntryState.ARRIVED, EntryEvent.PASSED): EntryState.LET_GO,
    (EntryState.ARRIVED, EntryEvent.QUEUED): EntryState.WAITING,
    (EntryState.ARRIVED, EntryEvent.NO_ROOM): EntryState.REFUSED,
    (EntryState.ARRIVED, EntryEvent.SHUT_DOWN): EntryState.REFUSED,
    (EntryState.WAITING, EntryEvent.CHOSEN): EntryState.LET_GO,
    (EntryState.WAITING, EntryEvent.NO_ROOM): EntryState.REFUSED,
    (EntryState.WAITING, EntryEvent.EXPIRED): EntryState.REFUSED,
    (EntryState.WAITING, EntryEvent.SHUT_DOWN): EntryState.REFUSED,
    (EntryState.WAITING, EntryEvent.SHED): EntryState.REFUSED,
    (EntryState.WAITING, EntryEvent.CLIENT_LEFT): EntryState.LEFT,
}
"""What is not here cannot happen: LET_GO, REFUSED and LEFT are final, so that no request is answered twice."""


class Outcome(StrEnum):
    """How a request ended, in the words of llm-d's metrics."""

    DISPATCHED = "Dispatched"
    REJECTED_CAPACITY = "RejectedCapacity"
    REJECTED_NO_ENDPOINTS = "RejectedNoEndpoints"
    EVICTED_TTL = "EvictedTTL"
    EVICTED_NO_ENDPOINTS = "EvictedNoEndpoints"
    EVICTED_CONTEXT_CANCELLED = "EvictedContextCancelled"
    EVICTED_OTHER = "EvictedOther"
    NOT_YET_FINALIZED = "NotYetFinalized"
    """Of a request that has begun to wait: in the metric of how long that took."""


_OUTCOMES: Mapping[EntryEvent, tuple[Outcome, Outcome]] = {
    EntryEvent.PASSED: (Outcome.DISPATCHED, Outcome.DISPATCHED),
    EntryEvent.CHOSEN: (Outcome.DISPATCHED, Outcome.DISPATCHED),
    EntryEvent.NO_ROOM: (Outcome.REJECTED_CAPACITY, Outcome.REJECTED_NO_ENDPOINTS),
    EntryEvent.EXPIRED: (Outcome.EVICTED_TTL, Outcome.EVICTED_NO_ENDPOINTS),
    EntryEvent.CLIENT_LEFT: (Outcome.EVICTED_CONTEXT_CANCELLED, Outcome.EVICTED_CONTEXT_CANCELLED),
    EntryEvent.SHUT_DOWN: (Outcome.EVICTED_OTHER, Outcome.EVICTED_OTHER),
    EntryEvent.SHED: (Outcome.EVICTED_OTHER, Outcome.EVICTED_OTHER),
}


def outcome_of(event: EntryEvent, pool_is_empty: bool) -> Outcome:
    """How an end is counted; some are the pool's fault if it has no endpoints.

    Raises:
        KeyError: the event ends nothing.
    """
    return _OUTCOMES[event][pool_is_empty]
