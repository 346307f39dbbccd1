"""`inflight-load-producer`: counts the requests and tokens in flight at each endpoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Final, TypeAlias

import msgspec
import numpy as np
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field

from endpick.api import (
    CycleState,
    DataProducer,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    LabelLimit,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    Subscriptions,
    UpstreamHeaders,
)
from endpick.api.fleet import LearntState
from endpick.api.keys import (
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    OUTPUT_LENGTH,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TOKENIZED_PROMPT,
    UNCACHED_REQUEST_TOKENS,
    OutputLength,
    PrefixBlocks,
    PromptTokens,
)
from endpick.api.plugin import MAX_DUMPED, ignored
from endpick_builtin.camel_parameters import CamelParameters

_Flow: TypeAlias = tuple[str, int]  # fairness id and priority
_LABELS = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")


@dataclass(slots=True)
class _Sum:
    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class _Load:
    endpoint: Endpoint
    requests: int = 0
    tokens: int = 0
    flows: dict[_Flow, _Sum] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Charge:
    load: _Load
    flow: _Flow
    requests: int
    prompt_tokens: int
    output_tokens: int


class _LoadLedger:
    def __init__(self, publish: Callable[[_Load], None]) -> None:
        self._publish = publish
        self._loads: dict[str, _Load] = {}
        self._label = LabelLimit()

    def load_of(self, endpoint: Endpoint) -> _Load:
        return self._loads.get(endpoint.name) or _Load(endpoint)

    def loads(self) -> Iterable[_Load]:
        return self._loads.values()

    def charge(self, endpoint: Endpoint, flow: _Flow, prompt_tokens: int, output_tokens: int) -> _Charge:
        load = self._loads.setdefault(endpoint.name, _Load(endpoint))
        charge = _Charge(load, (self._label(flow[0]), flow[1]), 1, prompt_tokens, output_tokens)
        self._add(charge, 1, prompt_tokens + output_tokens)
        return charge

    def release_prompt(self, charge: _Charge) -> None:
        tokens, charge.prompt_tokens = charge.prompt_tokens, 0
        self._add(charge, 0, -tokens)

    def release(self, charge: _Charge) -> None:
        requests, tokens = charge.requests, charge.prompt_tokens + charge.output_tokens
        charge.requests = charge.prompt_tokens = charge.output_tokens = 0
        self._add(charge, -requests, -tokens)

    def forget(self, name: str) -> None:
        self._loads.pop(name, None)

    def _add(self, charge: _Charge, requests: int, tokens: int) -> None:
        load = charge.load
        if self._loads.get(load.endpoint.name) is not load:
            return  # released already, or the endpoint has left
        load.requests += requests
        load.tokens += tokens
        self._publish(load)
        of_flow = load.flows.setdefault(charge.flow, _Sum())
        of_flow.requests += requests
        of_flow.tokens += tokens
        if not of_flow.requests:
            del load.flows[charge.flow]
        if not load.requests:
            del self._loads[load.endpoint.name]


class _InflightGauges(Collector):
    def __init__(self, producer_name: str, ledger: _LoadLedger) -> None:
        self._producer_name = producer_name
        self._ledger = ledger

    def describe(self) -> Iterator[GaugeMetricFamily]:
        return iter(_families())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        requests, tokens = _families()
        for load in self._ledger.loads():
            namespace, _, name = load.endpoint.name.rpartition("/")
            for (fairness_id, priority), of_flow in load.flows.items():
                labels = (name, namespace, self._producer_name, fairness_id, str(priority))
                requests.add_metric(labels, of_flow.requests)
                tokens.add_metric(labels, of_flow.tokens)
        yield from (requests, tokens)


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("llm_d_epp_inflight_requests", "Requests in flight to an endpoint.", labels=_LABELS),
        GaugeMetricFamily("llm_d_epp_inflight_tokens", "Estimated tokens that an endpoint still has to process.", labels=_LABELS),
    )


def prompt_tokens(request: InferenceRequest, tokenized: tuple[PromptTokens, ...] | None) -> int:
    """Return the prompt's tokens as a token-producer counted them, or bytes / 4."""
    if tokenized:
        return sum(len(prompt.token_ids) for prompt in tokenized)
    return request.prompt.estimated_tokens or (request.size_bytes + 3) // 4


def uncached_tokens(tokens: int, blocks: PrefixBlocks | None, matched_blocks: FloatArray) -> FloatArray:
    """Return (total - matched) * block size + max(0, tokens - total * block size)."""
    if blocks is None:
        return np.full(len(matched_blocks), float(tokens))
    size, total = blocks.block_size_tokens, blocks.total_blocks
    missing = total - np.minimum(np.floor(np.fmax(matched_blocks, 0.0)), total)
    return missing * size + float(max(0, tokens - total * size))


_OUTPUT_TOKENS = {OutputLength.LONG: 4096, OutputLength.SHORT: 100, OutputLength.UNKNOWN: 1000}


def output_tokens(length: OutputLength | None, *limits: int | None) -> int:
    """Estimate output tokens from the expected length, capped by the limits."""
    return min([_OUTPUT_TOKENS[length or OutputLength.UNKNOWN], *(limit for limit in limits if limit is not None)])


class InflightLoadParameters(CamelParameters):
    """Sets how the tokens of a request are estimated."""

    add_estimated_output_tokens: Annotated[bool, Field(description="Count estimated output tokens as well.")] = False
    output_ratio: Annotated[float | None, ignored("outputRatio", "remove it; `outlen-bucket` decides the estimate")] = None
    max_estimated_output_tokens: Annotated[int | None, Field(ge=0, description="Maximum estimate of output tokens.")] = None
    prefix_match_info_producer_name: Annotated[str, Field(description="Producer of prefix matches; empty if there is only one.")] = ""
    sync_cross_replica_state: Annotated[bool, Field(description="Share the counts with other pickers, if there is a state store.")] = True


_Loads: TypeAlias = dict[str, tuple[int, int]]  # requests and tokens, by endpoint
_FULL_SECONDS: Final = 1.0  # between messages with the load of every endpoint, in case one was lost
_encode: Final = msgspec.msgpack.encode
_read_loads: Final = msgspec.msgpack.Decoder(tuple[bool, _Loads]).decode


class _RemoteLoad:
    """The load that other pickers have in flight, by picker and endpoint."""

    def __init__(self) -> None:
        self._by_origin: dict[str, _Loads] = {}

    def on(self, name: str) -> tuple[int, int]:
        loads = [by_endpoint[name] for by_endpoint in self._by_origin.values() if name in by_endpoint]
        return sum([requests for requests, _ in loads]), sum([tokens for _, tokens in loads])

    def update(self, origin: str, is_all: bool, loads: _Loads) -> Collection[str]:
        """Replace a picker's load (`is_all`) or part of it; returns the endpoints that may have changed."""
        gone = self._by_origin.pop(origin, {}) if is_all else {}
        known = self._by_origin.setdefault(origin, {})
        for name, load in loads.items():
            if load[0]:
                known[name] = load
            else:
                known.pop(name, None)
        return gone.keys() | loads.keys()

    def drop(self, origin: str) -> Collection[str]:
        return self._by_origin.pop(origin, {}).keys()


class InflightLoadProducer(
    DataProducer[InflightLoadParameters],
    PreRequest[InflightLoadParameters],
    ResponseObserver[InflightLoadParameters],
    LearntState,
):
    """Maintains `inflight-requests` and `inflight-tokens`, and the uncached prompt tokens at each candidate.

    A request counts at the first endpoint of every profile that picked one: its uncached prompt tokens there and, with
    `addEstimatedOutputTokens`, output tokens: 4096 if `outlen-bucket` expects LONG, 100 if SHORT, else 1000, at most the client's limit and
    maxEstimatedOutputTokens. The first response chunk releases the prompt tokens, and everything at endpoints other than the primary's; the
    end of the request the rest.

    Uncached tokens of t tokens in n blocks of size b, m of them cached: (n - m) * b + max(0, t - n * b); t without a prefix producer. t
    comes from a `token-producer`, or is bytes / 4.
    """

    consumes_optional = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS, TOKENIZED_PROMPT, OUTPUT_LENGTH)
    produces = (INFLIGHT_REQUESTS, INFLIGHT_TOKENS, UNCACHED_REQUEST_TOKENS)

    @classmethod
    def subscriptions(cls, parameters: InflightLoadParameters) -> Subscriptions:
        producer = parameters.prefix_match_info_producer_name
        prefix = (PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer), TOKENIZED_PROMPT)
        length = (OUTPUT_LENGTH,) if parameters.add_estimated_output_tokens else ()
        return Subscriptions((), (*prefix, *length), cls.produces)

    def __init__(self, name: str, parameters: InflightLoadParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._ledger = _LoadLedger(self._publish)
        self._others = _RemoteLoad()
        self._changed: set[str] = set()  # endpoints whose load changed since the last message
        self._full_sent_at = -math.inf
        self._known: object = None
        if context.registry is not None:
            context.registry.register(_InflightGauges(name, self._ledger))

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        if endpoints.pool_members is not self._known:
            self._known = endpoints.pool_members
            for endpoint in endpoints.pool_members:
                self._write(self._ledger.load_of(endpoint))
        tokens = prompt_tokens(request, state.get(TOKENIZED_PROMPT))
        uncached = uncached_tokens(tokens, state.get(self._blocks), state.column(self._matches, endpoints))
        state.put_column(UNCACHED_REQUEST_TOKENS, endpoints, uncached)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        parameters, blocks, prompt = self.parameters, state.get(self._blocks), prompt_tokens(request, state.get(TOKENIZED_PROMPT))
        output, flow = 0, (request.fairness_id, request.priority)
        if parameters.add_estimated_output_tokens:
            output = output_tokens(state.get(OUTPUT_LENGTH), request.max_output_tokens, parameters.max_estimated_output_tokens)
        charges: dict[str, _Charge] = {}
        for profile, run in result.runs.items():
            if run.picked is not None:
                first = run.picked.take([0])
                uncached = uncached_tokens(prompt, blocks, state.column(self._matches, first))[0]
                charges[profile] = self._ledger.charge(first.members[0], flow, int(uncached), output)
        state.private.update(charges=charges, primary=result.primary)

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        for profile, charge in _charges(state).items():
            if profile == state.private["primary"]:
                self._ledger.release_prompt(charge)
            else:
                self._ledger.release(charge)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        for charge in _charges(state).values():
            self._ledger.release(charge)

    def snapshot(self) -> Iterable[bytes]:
        return ()  # nothing but requests in flight

    def restore(self, part: bytes) -> None:
        """Do nothing: snapshots are empty."""

    def drain_deltas(self) -> bytes:
        if not self.parameters.sync_cross_replica_state:
            return b""
        now = self.context.clock()
        is_all = now - self._full_sent_at >= _FULL_SECONDS
        loads = {load.endpoint.name: (load.requests, load.tokens) for load in self._ledger.loads()}
        changed, self._changed = self._changed, set()
        if not changed and not (is_all and loads):
            return b""
        if is_all:
            self._full_sent_at = now
            return _encode((True, loads))
        return _encode((False, {name: loads.get(name, (0, 0)) for name in changed}))

    def apply(self, deltas: bytes, origin: str) -> None:
        is_all, loads = _read_loads(deltas)
        self._write_named(self._others.update(origin, is_all, loads))

    def origin_gone(self, origin: str) -> None:
        self._write_named(self._others.drop(origin))

    def dump_state(self) -> object:
        loads = {load.endpoint.name: {"requests": load.requests, "tokens": load.tokens} for load in self._ledger.loads()}
        return {"total": len(loads), "endpoints": dict(islice(sorted(loads.items()), MAX_DUMPED))}

    def endpoint_removed(self, name: str) -> None:
        self._ledger.forget(name)
        if self.context.is_shared:
            self._changed.add(name)

    def _publish(self, load: _Load) -> None:
        if self.context.is_shared and self.parameters.sync_cross_replica_state:
            self._changed.add(load.endpoint.name)
        self._write(load)

    def _write(self, load: _Load) -> None:
        columns = self.context.columns
        if columns is not None:
            requests, tokens = self._others.on(load.endpoint.name)
            columns.set(INFLIGHT_REQUESTS, float(load.requests + requests), load.endpoint)
            columns.set(INFLIGHT_TOKENS, float(load.tokens + tokens), load.endpoint)

    def _write_named(self, names: Collection[str]) -> None:
        if self.context.columns is not None:
            for endpoint in self.context.columns.endpoints().pool_members:
                if endpoint.name in names:
                    self._write(self._ledger.load_of(endpoint))


def _charges(state: CycleState) -> dict[str, _Charge]:
    charges: dict[str, _Charge] = state.private.get("charges", {})  # type: ignore[assignment]
    return charges
