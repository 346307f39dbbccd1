"""Fairness policies without parameters: one sorted queue for a whole band, and round robin."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush
from itertools import count
from typing import cast

from endpick.api import Parameters
from endpick.api.flow_control import Band, FairnessPolicy, Flow, SortKey, WaitingRequest

_STATE = "state"
_SLACK = 64


class _Heads:
    """The heads of all flows in a heap. Stale places are skipped when they reach the top."""

    __slots__ = ("_number", "heap")

    def __init__(self, band: Band) -> None:
        self._number = count()
        self.heap: list[tuple[SortKey, int, int, Flow]] = []
        self.rebuild(band)

    def rebuild(self, band: Band) -> None:
        """Start again with the current heads."""
        self.heap = [(head.key, head.arrival, next(self._number), flow) for flow in band.flows if (head := flow.head) is not None]
        heapify(self.heap)

    def add(self, flow: Flow, head: WaitingRequest) -> None:
        """Add the new head of a flow."""
        heappush(self.heap, (head.key, head.arrival, next(self._number), flow))

    def best(self) -> Flow | None:
        """The flow with the first head."""
        heap = self.heap
        while heap:
            _, arrival, _, flow = heap[0]
            head = flow.head
            if head is not None and head.arrival == arrival:
                return flow
            heappop(heap)
        return None


class GlobalStrictFairness(FairnessPolicy[Parameters]):
    """Serves the first request of a band, whichever flow it is in.

    The first is the one that the band's ordering policy puts first; equal keys are served in order of arrival. With `fcfs-ordering-policy`
    the band is a single queue, so a flow with many requests is served more often. Cost: logarithmic in the number of flows.
    """

    def choose(self, band: Band) -> Flow | None:
        """See the class."""
        return self._heads(band).best()

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """Note the new head."""
        head, heads = flow.head, self._heads(band)
        if head is not None:
            heads.add(flow, head)
            if len(heads.heap) > 2 * len(band.flows) + _SLACK:
                heads.rebuild(band)

    def _heads(self, band: Band) -> _Heads:
        heads = band.private.get(_STATE)
        if heads is None:
            heads = band.private[_STATE] = _Heads(band)
        return cast("_Heads", heads)


class _Ring:
    """The flows of a band in the order of their ids, and the last one served."""

    __slots__ = ("ids", "known", "last")

    def __init__(self, band: Band) -> None:
        self.ids = sorted(flow.id for flow in band.flows)
        self.known = set(self.ids)
        self.last: str | None = None

    def add(self, flow_id: str) -> None:
        """Insert a flow."""
        if flow_id not in self.known:
            self.known.add(flow_id)
            insort(self.ids, flow_id)

    def remove(self, flow_id: str) -> None:
        """Remove a flow."""
        if flow_id in self.known:
            self.known.discard(flow_id)
            del self.ids[bisect_left(self.ids, flow_id)]

    def next(self) -> str | None:
        """The first id after the last one served, which may be gone; None without flows."""
        if not self.ids:
            return None
        position = 0 if self.last is None else bisect_right(self.ids, self.last)
        return self.ids[position if position < len(self.ids) else 0]


class RoundRobinFairness(FairnessPolicy[Parameters]):
    """Serves the flows of a band one after the other, in the order of their ids.

    Each serves one request, whatever its size. Flows that come and go do not change the position of the others. The order starts with the
    smallest id, compared as text.
    """

    def choose(self, band: Band) -> Flow | None:
        """See the class."""
        flow_id = self._ring(band).next()
        return None if flow_id is None else band.flow(flow_id)

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """Insert or remove the flow."""
        ring = self._ring(band)
        if flow.head is None:
            ring.remove(flow.id)
        else:
            ring.add(flow.id)

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        """Continue after this flow."""
        self._ring(band).last = flow.id

    def _ring(self, band: Band) -> _Ring:
        ring = band.private.get(_STATE)
        if ring is None:
            ring = band.private[_STATE] = _Ring(band)
        return cast("_Ring", ring)
