"""Fairness policies without parameters: the best request of a band wherever it waits, and one flow after the other."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from heapq import heapify, heappop, heappush
from itertools import count
from typing import cast

from endpick.api import Band, FairnessPolicy, Flow, Parameters, SortKey, WaitingRequest

_STATE = "state"
_SLACK = 64


class _Heads:
    """The first request of every flow in a heap. What has changed since it was put there is passed over when it comes up."""

    __slots__ = ("_number", "heap")

    def __init__(self, band: Band) -> None:
        self._number = count()
        self.heap: list[tuple[SortKey, int, int, Flow]] = []
        self.rebuild(band)

    def rebuild(self, band: Band) -> None:
        """Every head of the band as it is now, and nothing else."""
        self.heap = [(head.key, head.arrival, next(self._number), flow) for flow in band.flows if (head := flow.head) is not None]
        heapify(self.heap)

    def add(self, flow: Flow, head: WaitingRequest) -> None:
        """A flow has a new head."""
        heappush(self.heap, (head.key, head.arrival, next(self._number), flow))

    def best(self) -> Flow | None:
        """The flow with the best head; None when none has one."""
        heap = self.heap
        while heap:
            _, arrival, _, flow = heap[0]
            head = flow.head
            if head is not None and head.arrival == arrival:
                return flow
            heappop(heap)
        return None


class GlobalStrictFairness(FairnessPolicy[Parameters]):
    """Serve the best request of a band, whichever flow it waits in.

    Best is what the band's ordering policy puts first, and of equals what came first: with `fcfs-ordering-policy` the band is one queue. A
    flow with many requests gets as many turns. Costs the logarithm of the number of flows.
    """

    def choose(self, band: Band) -> Flow | None:
        """See the class."""
        heads = self._heads(band)
        best = heads.best()
        if best is None and band.flows:
            heads.rebuild(band)
            best = heads.best()
        return best

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """Keep the new head."""
        head = flow.head
        heads = self._heads(band)
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
    """The flows of a band in the order of their ids, and which of them was served last."""

    __slots__ = ("ids", "known", "last")

    def __init__(self, band: Band) -> None:
        self.ids = sorted(flow.id for flow in band.flows)
        self.known = set(self.ids)
        self.last: str | None = None

    def add(self, flow_id: str) -> None:
        """A flow has something waiting."""
        if flow_id not in self.known:
            self.known.add(flow_id)
            insort(self.ids, flow_id)

    def remove(self, flow_id: str) -> None:
        """A flow has nothing waiting any more."""
        if flow_id in self.known:
            self.known.discard(flow_id)
            del self.ids[bisect_left(self.ids, flow_id)]

    def next(self) -> str | None:
        """The first after the one that was served last, wherever that has gone; None without flows."""
        if not self.ids:
            return None
        position = 0 if self.last is None else bisect_right(self.ids, self.last)
        return self.ids[position if position < len(self.ids) else 0]


class RoundRobinFairness(FairnessPolicy[Parameters]):
    """Serve the flows of a band in turn, in the order of their ids.

    Each turn is one request, whatever its size. A flow that comes takes its place among the others, and one that has gone does not change
    whose turn it is. The order begins with the smallest id, as text.
    """

    def choose(self, band: Band) -> Flow | None:
        """See the class."""
        ring = self._ring(band)
        while (flow_id := ring.next()) is not None:
            flow = band.flow(flow_id)
            if flow is not None:
                return flow
            ring.remove(flow_id)
        return None

    def flow_changed(self, band: Band, flow: Flow) -> None:
        """The flow has come, or gone."""
        ring = self._ring(band)
        if flow.head is None:
            ring.remove(flow.id)
        else:
            ring.add(flow.id)

    def dispatched(self, band: Band, flow: Flow, waiting: WaitingRequest) -> None:
        """It has had its turn."""
        self._ring(band).last = flow.id

    def _ring(self, band: Band) -> _Ring:
        ring = band.private.get(_STATE)
        if ring is None:
            ring = band.private[_STATE] = _Ring(band)
        return cast("_Ring", ring)
