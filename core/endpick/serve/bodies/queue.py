"""The bodies that wait for the helper process: bounded, and each client's turn comes however many bodies another one sends."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from endpick.api.request import Rejection
from endpick.requests.large import BodyRead, LargeBody, ParserFailed
from endpick.requests.model import Refused

Answer = BodyRead | Rejection | ParserFailed | Refused

MOST_WAITING = 256


@dataclass(eq=False, slots=True)
class Waiting:
    """A body and whom to tell what became of it."""

    large: LargeBody
    answer: asyncio.Future[Answer]
    limit: asyncio.Timeout | None = field(default=None)
    """Set while it is being parsed."""


class FairQueue:
    """First in, first out among the bodies of one fairness id; round robin among fairness ids."""

    def __init__(self, most_bytes: int) -> None:
        """`most_bytes` may wait together; a single body always may."""
        self._most_bytes = most_bytes
        self._lanes: OrderedDict[str, deque[Waiting]] = OrderedDict()
        self.bytes = 0
        self.bodies = 0

    def push(self, waiting: Waiting) -> bool:
        """Take a body in; False when there is no room for it."""
        size = len(waiting.large.body)
        if self.bodies and (self.bodies >= MOST_WAITING or self.bytes + size > self._most_bytes):
            return False
        self._lanes.setdefault(waiting.large.fairness_id, deque()).append(waiting)
        self._count(1, size)
        return True

    def pop(self) -> Waiting | None:
        """The body whose turn it is; None when none waits."""
        if not self._lanes:
            return None
        fairness_id, lane = self._lanes.popitem(last=False)
        waiting = lane.popleft()
        if lane:
            self._lanes[fairness_id] = lane
        self._count(-1, -len(waiting.large.body))
        return waiting

    def remove(self, waiting: Waiting) -> None:
        """Forget a body whose client has gone; nothing happens when it has left the queue."""
        lane = self._lanes.get(waiting.large.fairness_id)
        if lane is None or waiting not in lane:
            return
        lane.remove(waiting)
        if not lane:
            del self._lanes[waiting.large.fairness_id]
        self._count(-1, -len(waiting.large.body))

    def _count(self, bodies: int, size: int) -> None:
        self.bodies += bodies
        self.bytes += size
