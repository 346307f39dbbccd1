"""Factories of pools, requests, waiting requests and values for tests."""

from __future__ import annotations

import dataclasses
import enum
import math
import operator
import typing
from bisect import insort
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from random import Random
from types import UnionType
from typing import Any

import numpy as np

from endpick.api import keys
from endpick.api.data import AnyKey, DataKey
from endpick.api.endpoint import Column, Endpoint, Generation
from endpick.api.endpoints import Endpoints
from endpick.api.flow_control import FairnessPolicy, SortKey, WaitingRequest
from endpick.api.metrics import MetricsPage
from endpick.api.request import InferenceRequest, Prompt
from endpick.api.scheduling import ProfileRunResult, ScoredEndpoints
from endpick.data.table import EndpointTable

BUILT_IN_KEYS: tuple[AnyKey, ...] = tuple(value for value in vars(keys).values() if isinstance(value, DataKey))

SERVER_PORT = 8000


def make_pool(
    columns: Mapping[AnyKey, Sequence[object]] | int = 3,
    *,
    labels: Sequence[Mapping[str, str]] = (),
    pool: Mapping[AnyKey, object] | None = None,
    keys: Iterable[AnyKey] = (),
    clock: Callable[[], float] = lambda: 0.0,
) -> EndpointTable:
    """Make a table of endpoints, with values as if collectors had written them.

    The endpoints are `default/e0`, `default/e1`, … at 10.0.0.1:8000, 10.0.0.2:8000 and so on. `make_pool(...).view()` returns the
    `Endpoints`.

    Args:
        columns: One value per endpoint for each data key, None for not reported; or the number of endpoints.
        labels: Labels of the endpoints, in order; the remaining endpoints have none.
        pool: Values of scope `POOL`.
        keys: Further keys that may be written later.
        clock: Monotonic seconds; the time of all writes.

    Raises:
        ValueError: Columns have different lengths.
    """
    values = {} if isinstance(columns, int) else columns
    sizes = {len(column) for column in values.values()}
    if len(sizes) > 1:
        raise ValueError(f"columns have different lengths: {sorted(sizes)}")
    size = columns if isinstance(columns, int) else next(iter(sizes), 0)
    table = EndpointTable(clock, (*BUILT_IN_KEYS, *values, *(pool or {}), *keys))
    table.replace_all(make_endpoint(number, labels[number] if number < len(labels) else {}) for number in range(size))
    for key, column in values.items():
        for endpoint, value in zip(table.generation.endpoints, column, strict=True):
            if value is not None:
                table.write(key, endpoint, value)
    for key, value in (pool or {}).items():
        table.write_pool(key, value)
    return table


def make_endpoint(number: int, labels: Mapping[str, str] | None = None) -> Endpoint:
    """Make the endpoint `default/e<number>`, at its own address."""
    address = f"10.{number // 62_500}.{number // 250 % 250}.{number % 250 + 1}"
    return Endpoint(f"default/e{number}", address, SERVER_PORT, labels or {})


def unprotected(generation: Generation) -> Generation:
    """A copy with writable arrays, to detect writes."""
    columns = {name: Column(column.values.copy(), column.written_at.copy()) for name, column in generation.columns.items()}
    return Generation(generation.endpoints, columns, dict(generation.pool), generation.clock, dict(generation.pool_written_at))


def make_request(
    prompt: str | tuple[str, ...] = "Say something about endpoints.",
    *,
    model: str = "base",
    headers: Mapping[str, str] | None = None,
    id: str = "request-1",  # noqa: A002 - as the request's field
    path: str = "/v1/chat/completions",
    streaming: bool = False,
    max_output_tokens: int | None = None,
    priority: int = 0,
    fairness_id: str = "default-flow",
    cache_salt: str = "",
    received_at: float = 0.0,
    method: str = "POST",
) -> InferenceRequest:
    """Make a request as plugins see it; every argument has a default.

    A tuple of prompts makes a batch. The payload is a chat request with these prompts.
    """
    texts = tuple(text.encode() for text in ((prompt,) if isinstance(prompt, str) else prompt))
    return InferenceRequest(
        id=id,
        model=model,
        incoming_model=model,
        path=path,
        headers=dict(headers or {}),
        prompt=Prompt(lambda: texts),
        streaming=streaming,
        max_output_tokens=max_output_tokens,
        priority=priority,
        fairness_id=fairness_id,
        cache_salt=cache_salt,
        size_bytes=sum(map(len, texts)),
        method=method,
        received_at=received_at,
        payload={"model": model, "messages": [{"role": "user", "content": text.decode()} for text in texts]},
    )


def varied_requests() -> tuple[InferenceRequest, ...]:
    """Make requests with different prompts, models, lengths, priorities and headers."""
    return (
        make_request(),
        make_request((), model=""),
        make_request("word " * 5_000, model="a", id="request-2", streaming=True, max_output_tokens=64),
        make_request(("one", "two"), id="request-3", priority=-1, fairness_id="tenant-a", cache_salt="salt"),
        make_request("", id="request-4", priority=9, headers={"x-session-id": "s-1", "x-tenant": "acme", "authorization": "Bearer t"}),
        make_request((), id="request-5", model="", method="GET", path="/v1/models"),
    )


def runs_of(profiles: Iterable[str], endpoints: Endpoints, failed: Container[str] = ()) -> dict[str, ProfileRunResult]:
    """Make a run of each profile: it picked two endpoints, or none if it is in `failed`."""
    scored = ScoredEndpoints(endpoints, np.linspace(1.0, 0.1, len(endpoints)))
    picked = ProfileRunResult("", scored.take(range(min(2, len(endpoints)))), scored)
    unpicked = ProfileRunResult("", None, failure="no endpoints available for the given request")
    return {name: dataclasses.replace(unpicked if name in failed else picked, profile=name) for name in profiles}


_BLOCKS = 16

_MAKERS: Mapping[str, Callable[[Random], object]] = {
    keys.WAITING_QUEUE_SIZE.name: lambda random: float(random.randrange(20)),
    keys.RUNNING_REQUESTS_SIZE.name: lambda random: float(random.randrange(20)),
    keys.KV_CACHE_USAGE.name: lambda random: random.random(),
    keys.CACHE_BLOCK_SIZE.name: lambda _: 16.0,
    keys.CACHE_NUM_BLOCKS.name: lambda random: float(random.randrange(1000, 5000)),
    keys.LORA_ADAPTERS.name: lambda random: keys.LoraAdapters(frozenset(random.sample(("a", "b", "c"), 2)), frozenset(), 4),
    keys.SERVED_MODELS.name: lambda _: (keys.ServedModel("base"), keys.ServedModel("a", "base")),
    keys.INFLIGHT_REQUESTS.name: lambda random: float(random.randrange(10)),
    keys.INFLIGHT_TOKENS.name: lambda random: float(random.randrange(5000)),
    keys.PREFIX_MATCH_BLOCKS.name: lambda random: float(random.randrange(_BLOCKS + 1)),
    keys.PREFIX_BLOCKS.name: lambda _: keys.PrefixBlocks(_BLOCKS, 64, tuple(range(_BLOCKS))),
    keys.UNCACHED_REQUEST_TOKENS.name: lambda random: float(random.randrange(5000)),
    keys.TOKENIZED_PROMPT.name: lambda random: (keys.PromptTokens(np.arange(random.randrange(1, 2000), dtype=np.uint32)),),
    keys.SESSION_ID.name: lambda random: f"session-{random.randrange(4)}",
    keys.AGENT_IDENTITY.name: lambda random: f"agent-{random.randrange(4)}",
    keys.PEER_ENDPOINT.name: lambda _: Endpoint("default/peer", "192.0.2.1", SERVER_PORT),
    keys.TOPOLOGY.name: lambda random: keys.Topology(f"host-{random.randrange(4)}", "rack", "zone", "region"),
    keys.PREDICTED_TTFT.name: lambda random: random.random(),
    keys.PREDICTED_TPOT.name: lambda random: random.random() / 20,
    keys.TTFT_HEADROOM.name: lambda random: random.random() - 0.5,
    keys.TPOT_HEADROOM.name: lambda random: (random.random() - 0.5) / 20,
    keys.ENDPOINT_HEALTH.name: lambda random: keys.EndpointHealth(random.choice(list(keys.HealthState))),
    keys.MEDIA_ITEMS.name: lambda random: random.randrange(3),
    keys.MEDIA_MATCHED.name: lambda random: float(random.randrange(3)),
}


def value_of(key: AnyKey, random: Random, samples: Mapping[AnyKey, Sequence[object]]) -> object:
    """One of the author's samples, else a plausible value (0 to 1 for unknown keys), else None."""
    name = getattr(key, "shared_name", key.name)
    given = next((values for sampled, values in samples.items() if sampled.name in (key.name, name)), ())
    if given:
        return random.choice(given)
    if name in _MAKERS:
        return _MAKERS[name](random)
    if key.is_number:
        return random.random()
    if issubclass(key.type, enum.Enum):
        return random.choice(list[object](key.type))
    try:
        return key.type()
    except Exception:
        return None


_PAGES = (
    b"",
    b"\x00\xff\xfe binary \x80",
    b"<html><body>502 Bad Gateway</body></html>",
    b'# HELP x\n# TYPE x gauge\nx{a="b" 1\nx}{ 1\nx NaN\nx +Inf\nx 1 2 3\n',
)
_GARBAGE: Mapping[type, tuple[object, ...]] = {
    MetricsPage: tuple(MetricsPage(page) for page in _PAGES),
    bool: (True, False),
    int: (0, -1, 2**63),
    float: (math.nan, -math.inf, -1.0, 0.0),
    str: ("", "\ufffd\x00", "x" * 10_000),
    bytes: _PAGES,
    object: (object(), None),
    type(None): (None,),
}
_CONCRETE: Mapping[object, type] = {Mapping: dict, Sequence: list, Iterable: list}


def garbage_of(kind: type) -> tuple[object, ...]:
    """Return meaningless payloads of this type, such as empty text; () for an unknown type."""
    return tuple(_of_type(kind))


def _of_type(kind: object) -> Iterator[object]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, UnionType):
        for alternative in arguments:
            yield from _of_type(alternative)
    elif origin is typing.Literal:
        yield from arguments
    elif origin is not None:
        yield from _of_type(_CONCRETE.get(origin, origin))
    elif isinstance(kind, type):
        yield from _of_class(kind)


def _of_class(kind: type) -> Iterator[object]:
    if kind in _GARBAGE:
        yield from _GARBAGE[kind]
    elif dataclasses.is_dataclass(kind):
        yield from _dataclasses_of(kind)
    elif issubclass(kind, enum.Enum):
        yield from kind
    else:
        try:
            yield kind()
        except Exception:
            return


def _dataclasses_of(kind: type) -> Iterator[object]:
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, TypeError):
        return
    fields = [field for field in dataclasses.fields(kind) if field.init]
    choices = {field.name: tuple(_of_type(hints[field.name])) for field in fields}
    if not all(choices.values()):
        return
    for number in range(max(map(len, choices.values()), default=1)):
        try:
            yield kind(**{name: values[number % len(values)] for name, values in choices.items()})
        except Exception:  # noqa: S112 - a type that refuses nonsense by itself needs no test with it
            continue


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
    """Make a waiting request, as ordering and fairness policies see it.

    `flow` is the fairness id. `request` replaces the request that the factory makes.
    """
    asked = make_request(fairness_id=flow, id=f"{flow}-{arrival}") if request is None else request
    return WaitingRequest(asked, size_bytes, arrival, enqueued_at, ttl_seconds, key)


class FakeFlow:
    """A `Flow` for tests: the waiting requests of one fairness id, in order."""

    def __init__(self, flow_id: str) -> None:
        self.id = flow_id
        self.waiting: list[WaitingRequest] = []

    @property
    def head(self) -> WaitingRequest | None:
        """The request that the flow dispatches next, or None if it is empty."""
        return self.waiting[0] if self.waiting else None

    @property
    def size_bytes(self) -> int:
        """Total size in bytes of the flow's waiting requests."""
        return sum(request.size_bytes for request in self.waiting)

    def __len__(self) -> int:
        return len(self.waiting)


class FakeBand:
    """A `Band` for tests, which notifies the fairness policy as flow control does."""

    def __init__(self, policy: FairnessPolicy[Any], priority: int = 0, call: Callable[..., object] = operator.call) -> None:
        """Make an empty band for a policy; `call` calls a method of the policy with arguments."""
        self._policy = policy
        self._priority = priority
        self._call = call
        self._flows: dict[str, FakeFlow] = {}
        self._private: dict[str, object] = {}

    @property
    def priority(self) -> int:
        """The priority of the band's requests."""
        return self._priority

    @property
    def flows(self) -> Collection[FakeFlow]:
        """Every flow with waiting requests, in the order in which they became non-empty."""
        return self._flows.values()

    def flow(self, flow_id: str) -> FakeFlow | None:
        """Return the flow of a fairness id; None if it is empty."""
        return self._flows.get(flow_id)

    @property
    def private(self) -> dict[str, object]:
        """The policy's state for this band, as in `Band.private`."""
        return self._private

    def add(self, waiting: WaitingRequest) -> None:
        """Enqueue a request in the flow of its fairness id, sorted by `key` and `arrival`.

        Calls `flow_changed` of the policy if the flow has a new head.
        """
        flow = self._flows.setdefault(waiting.request.fairness_id, FakeFlow(waiting.request.fairness_id))
        before = flow.head
        insort(flow.waiting, waiting, key=lambda entry: (entry.key, entry.arrival))
        if flow.head is not before:
            self._call(self._policy.flow_changed, self, flow)

    def choose(self) -> object:
        """Return the policy's choice, unchecked, without dispatching it."""
        return self._call(self._policy.choose, self)

    def dispatch_head(self, flow: FakeFlow) -> WaitingRequest:
        """Dispatch the head of a flow, and return it.

        Calls `dispatched`, then `flow_changed` of the policy.
        """
        waiting = self._without_head(flow)
        self._call(self._policy.dispatched, self, flow, waiting)
        self._call(self._policy.flow_changed, self, flow)
        return waiting

    def drop_head(self, flow: FakeFlow) -> WaitingRequest:
        """Remove the head of a flow and return it, as if its client disconnects.

        Calls `flow_changed` of the policy.
        """
        waiting = self._without_head(flow)
        self._call(self._policy.flow_changed, self, flow)
        return waiting

    def serve(self) -> WaitingRequest | None:
        """Dispatch the head of the flow that the policy chooses, and return it; None for no choice.

        Raises:
            ValueError: The choice is not a flow of the band.
        """
        chosen = self.choose()
        if chosen is None:
            return None
        if not isinstance(chosen, FakeFlow) or self._flows.get(chosen.id) is not chosen:
            raise ValueError(f"chosen was {chosen!r}, which is no flow of the band")
        return self.dispatch_head(chosen)

    def _without_head(self, flow: FakeFlow) -> WaitingRequest:
        waiting = flow.waiting.pop(0)
        if not flow.waiting:
            del self._flows[flow.id]
        return waiting
