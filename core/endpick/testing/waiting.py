"""Requests that wait, flows and bands as policies of flow control see them, made up for tests."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection
from typing import Any

from endpick.api import InferenceRequest
from endpick.api.flow_control import FairnessPolicy, SortKey, WaitingRequest
from endpick.testing.made_up import make_request

TTL_SECONDS = 60.0


def make_waiting(
    flow: str = "default-flow",
    *,
    key: SortKey = (),
    arrival: int = 0,
    enqueued_at: float = 0.0,
    ttl_seconds: float = TTL_SECONDS,
    size_bytes: int = 100,
    request: InferenceRequest | None = None,
) -> WaitingRequest:
    """A request that waits in a flow; every value can be chosen, none has to be."""
    asked = make_request(fairness_id=flow, id=f"{flow}-{arrival}") if request is None else request
    return WaitingRequest(asked, size_bytes, arrival, enqueued_at, ttl_seconds, key)


class MadeUpFlow:
    """The waiting requests of one fairness id, in order."""

    def __init__(self, flow_id: str) -> None:
        self._id = flow_id
        self.waiting: list[WaitingRequest] = []

    @property
    def id(self) -> str:
        """The fairness id."""
        return self._id

    @property
    def head(self) -> WaitingRequest | None:
        """What is served next."""
        return self.waiting[0] if self.waiting else None

    @property
    def size_bytes(self) -> int:
        """Bytes of all its requests."""
        return sum(each.size_bytes for each in self.waiting)

    def __len__(self) -> int:
        return len(self.waiting)


def _directly(method: Callable[..., object], *arguments: object) -> object:
    return method(*arguments)


class MadeUpBand:
    """The flows of one priority, and a policy that chooses among them; told what the host tells it."""

    def __init__(self, policy: FairnessPolicy[Any], priority: int = 0, call: Callable[..., object] = _directly) -> None:
        """Begin empty.

        Args:
            policy: Whom to ask and to tell.
            priority: Of all its requests.
            call: Calls a method of the policy.
        """
        self._policy = policy
        self._priority = priority
        self._call = call
        self._flows: dict[str, MadeUpFlow] = {}
        self._private: dict[str, object] = {}

    @property
    def priority(self) -> int:
        """The priority."""
        return self._priority

    @property
    def flows(self) -> Collection[MadeUpFlow]:
        """Every flow in which something waits."""
        return self._flows.values()

    def flow(self, flow_id: str) -> MadeUpFlow | None:
        """The flow of a fairness id."""
        return self._flows.get(flow_id)

    @property
    def private(self) -> dict[str, object]:
        """What the policy keeps."""
        return self._private

    def add(self, waiting: WaitingRequest) -> None:
        """A request begins to wait."""
        flow = self._flows.setdefault(waiting.request.fairness_id, MadeUpFlow(waiting.request.fairness_id))
        before = flow.head
        insort(flow.waiting, waiting, key=lambda each: (each.key, each.arrival))
        if flow.head is not before:
            self._call(self._policy.flow_changed, self, flow)

    def choose(self) -> object:
        """What the policy answers."""
        return self._call(self._policy.choose, self)

    def let_go(self, flow: MadeUpFlow) -> WaitingRequest:
        """The head of a flow is served."""
        waiting = self._without_head(flow)
        self._call(self._policy.dispatched, self, flow, waiting)
        self._call(self._policy.flow_changed, self, flow)
        return waiting

    def give_up(self, flow: MadeUpFlow) -> WaitingRequest:
        """The client of a flow's head leaves."""
        waiting = self._without_head(flow)
        self._call(self._policy.flow_changed, self, flow)
        return waiting

    def serve(self) -> WaitingRequest | None:
        """Have the policy choose and let the head go; None when nothing is chosen.

        Raises:
            ValueError: the policy chose what is no flow of the band.
        """
        chosen = self.choose()
        if chosen is None:
            return None
        if not isinstance(chosen, MadeUpFlow) or self._flows.get(chosen.id) is not chosen:
            raise ValueError(f"chosen was {chosen!r}, which is no flow of the band")
        return self.let_go(chosen)

    def _without_head(self, flow: MadeUpFlow) -> WaitingRequest:
        waiting = flow.waiting.pop(0)
        if not flow.waiting:
            del self._flows[flow.id]
        return waiting
