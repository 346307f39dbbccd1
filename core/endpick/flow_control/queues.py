"""The queues: the waiting requests of one flow in order, and the flows of one priority."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from endpick.api.flow_control import SortKey, WaitingRequest
from endpick.flow_control.calls import Fairness, Ordering
from endpick.flow_control.states import TRANSITIONS, EntryEvent, EntryState

put = object.__setattr__
"""Changes a field of an `Entry`; for the host."""

_FEW_GONE = 16
"""So many places in a heap may belong to requests that are gone, whatever its size."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry(WaitingRequest):
    """A request that flow control holds: an entry in queues, without a task or a timer of its own.

    Policies are shown this very object, so only `put` changes it.

    Attributes:
        told: Called once, with the event that ended its waiting; not when its client left.
        state: Where it stands.
        flow: Where it waits; None before and after.
        band: As `flow`.
    """

    told: Callable[[Entry, EntryEvent], None] | None = None
    state: EntryState = EntryState.ARRIVED
    flow: FlowQueue | None = None
    band: BandQueue | None = None

    def enter(self, event: EntryEvent) -> None:
        """Go to the state that follows.

        Raises:
            KeyError: nothing follows; a bug in endpick.
        """
        put(self, "state", TRANSITIONS[self.state, event])


class FlowQueue:
    """The waiting requests of one fairness id in one band: the `Flow` that policies see.

    A heap of keys, and the entries beside it: one that leaves from the middle is gone at once, and only its key stays until it comes to
    the top, or until there are more such keys than others.
    """

    __slots__ = ("_entries", "_heap", "_id", "_size_bytes")

    def __init__(self, flow_id: str) -> None:
        self._id = flow_id
        self._size_bytes = 0
        self._entries: dict[int, Entry] = {}
        self._heap: list[tuple[SortKey, int]] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def id(self) -> str:
        """See `Flow`."""
        return self._id

    @property
    def size_bytes(self) -> int:
        """See `Flow`."""
        return self._size_bytes

    @property
    def head(self) -> Entry | None:
        """See `Flow`; the top of the heap is never one that is gone."""
        return self._entries[self._heap[0][1]] if self._heap else None

    def add(self, entry: Entry) -> bool:
        """Put an entry where its key belongs; True if it is the head now."""
        self._entries[entry.arrival] = entry
        self._size_bytes += entry.size_bytes
        heappush(self._heap, (entry.key, entry.arrival))
        return self._heap[0][1] == entry.arrival

    def remove(self, entry: Entry) -> bool:
        """Take an entry out, wherever it stands; True if it was the head."""
        del self._entries[entry.arrival]
        self._size_bytes -= entry.size_bytes
        heap = self._heap
        if heap[0][1] == entry.arrival:
            heappop(heap)
            while heap and heap[0][1] not in self._entries:
                heappop(heap)
            return True
        if len(heap) - len(self._entries) > max(_FEW_GONE, len(self._entries)):
            self._heap = [place for place in heap if place[1] in self._entries]
            heapify(self._heap)
        return False


@dataclass(frozen=True, slots=True)
class BandRules:
    """What holds for the requests of a priority.

    Attributes:
        max_bytes: How many bytes may wait.
        max_requests: How many requests may wait.
        fairness: Chooses among its flows.
        ordering: Orders each of them.
    """

    max_bytes: int
    max_requests: int
    fairness: Fairness
    ordering: Ordering

    def has_policies_of(self, other: BandRules) -> bool:
        """Whether what waits stands in the same order under both."""
        return self.fairness.plugin is other.fairness.plugin and self.ordering.plugin is other.ordering.plugin


class BandQueue:
    """The flows of one priority: the `Band` that policies see. A flow in which nothing waits is forgotten at once."""

    __slots__ = ("_flows", "_idle_since", "_is_unknown", "_priority", "_private", "_rules", "_size_bytes", "_unshown", "_waiting")

    def __init__(self, priority: int, rules: BandRules, now: float) -> None:
        self._priority = priority
        self._rules = rules
        self._private: dict[str, object] = {}
        self._is_unknown = False
        self._unshown: list[str] | None = None
        self._size_bytes = 0
        self._idle_since = now
        self._flows: dict[str, FlowQueue] = {}
        self._waiting: OrderedDict[int, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def priority(self) -> int:
        """See `Band`."""
        return self._priority

    @property
    def private(self) -> dict[str, object]:
        """See `Band`."""
        return self._private

    @property
    def is_unknown(self) -> bool:
        """Whether it has changed without its fairness policy, which was left out."""
        return self._is_unknown

    def missed(self) -> None:
        """The fairness policy was not told of a change: what it keeps about the band is void."""
        self._is_unknown = True
        self._unshown = None
        self._private = {}

    def next_unknown(self) -> FlowQueue | None:
        """A flow of which the policy is to be told; None once it was told of all, and the band is no longer unknown."""
        if self._unshown is None:
            self._unshown = list(reversed(self._flows))
        while self._unshown:
            flow = self._flows.get(self._unshown.pop())
            if flow is not None:
                return flow
        self._is_unknown = False
        self._unshown = None
        return None

    @property
    def rules(self) -> BandRules:
        """What holds for its requests."""
        return self._rules

    @property
    def size_bytes(self) -> int:
        """Bytes of all its waiting requests."""
        return self._size_bytes

    @property
    def idle_since(self) -> float:
        """When a request of this priority came or went last."""
        return self._idle_since

    @property
    def flows(self) -> Collection[FlowQueue]:
        """See `Band`."""
        return self._flows.values()

    def flow(self, flow_id: str) -> FlowQueue | None:
        """See `Band`."""
        return self._flows.get(flow_id)

    @property
    def oldest(self) -> Entry | None:
        """Which entry came first; None while nothing waits."""
        return next(iter(self._waiting.values()), None)

    @property
    def newest(self) -> Entry | None:
        """Which entry came last; None while nothing waits."""
        return next(reversed(self._waiting.values()), None)

    def entries(self) -> list[Entry]:
        """All of them, in the order in which they came."""
        return list(self._waiting.values())

    def has_room_for(self, size_bytes: int) -> bool:
        """Whether one more request of that size may wait; exactly at a limit it may."""
        rules = self.rules
        return self.size_bytes + size_bytes <= rules.max_bytes and len(self._waiting) < rules.max_requests

    @property
    def is_over(self) -> bool:
        """Whether more wait than the rules allow, as after a reload that lowered them."""
        return self.size_bytes > self.rules.max_bytes or len(self._waiting) > self.rules.max_requests

    def follow(self, rules: BandRules) -> None:
        """Go on with other rules, which have the policies of those before them."""
        self._rules = rules

    def add(self, entry: Entry) -> None:
        """Have an entry wait; entries are added in the order in which they came."""
        put(entry, "key", self.rules.ordering.key(entry))
        flow_id = entry.request.fairness_id
        flow = self._flows.get(flow_id)
        if flow is None:
            flow = self._flows[flow_id] = FlowQueue(flow_id)
        put(entry, "flow", flow)
        put(entry, "band", self)
        self._waiting[entry.arrival] = entry
        self._size_bytes += entry.size_bytes
        if flow.add(entry):
            self.rules.fairness.flow_changed(self, flow)

    def remove(self, entry: Entry) -> FlowQueue:
        """Take an entry out; the flow that it has left."""
        flow = entry.flow
        assert flow is not None
        put(entry, "flow", None)
        put(entry, "band", None)
        del self._waiting[entry.arrival]
        self._size_bytes -= entry.size_bytes
        headed = flow.remove(entry)
        if not flow:
            del self._flows[flow.id]
        if headed:
            self.rules.fairness.flow_changed(self, flow)
        return flow

    def choose(self) -> Entry | None:
        """Which entry goes next, as the policies say; None for none of this band now."""
        chosen = self.rules.fairness.choose(self)
        if isinstance(chosen, str):
            return self._flows[chosen].head
        return None if chosen is None else self.oldest


# Policies read them, and may not change them: what they would change is the queues themselves.
