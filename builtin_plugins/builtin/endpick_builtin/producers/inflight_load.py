"""`inflight-load-producer`: counts what this picker has sent to each endpoint and what has not come back yet."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, TypeAlias

import numpy as np
from prometheus_client.metrics_core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import Field

from endpick.api import (
    INFLIGHT_REQUESTS,
    INFLIGHT_TOKENS,
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    TOKENIZED_PROMPT,
    UNCACHED_REQUEST_TOKENS,
    CycleState,
    DataProducer,
    Endpoint,
    Endpoints,
    FloatArray,
    InferenceRequest,
    LabelLimit,
    Parameters,
    PluginContext,
    PrefixBlocks,
    PreRequest,
    PromptTokens,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    Subscriptions,
    UpstreamHeaders,
    ignored,
)

Flow: TypeAlias = tuple[str, int]
"""Whose traffic it is, and how important: fairness id and priority."""


MOST_FLOWS = 2000
"""Combinations of endpoint, fairness id and priority that are told apart while requests of them are in flight. Clients choose ids."""
_OTHER = "other"


@dataclass(slots=True)
class Sum:
    """What is in flight of one flow to one endpoint."""

    requests: int = 0
    tokens: int = 0


@dataclass(slots=True)
class Load:
    """What is in flight to one endpoint, in all and by flow."""

    endpoint: Endpoint
    requests: int = 0
    tokens: int = 0
    flows: dict[Flow, Sum] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Charge:
    """One request's part of a load; worth nothing once released."""

    load: Load
    flow: Flow
    requests: int
    prompt_tokens: int
    output_tokens: int


class LoadLedger:
    """Loads of all endpoints that have any. An endpoint that left takes its load with it: releasing what it was charged changes nothing."""

    def __init__(self, publish: Callable[[Load], None]) -> None:
        """`publish` is called with each load that changed, and with an empty one when an account is closed."""
        self._publish = publish
        self._loads: dict[str, Load] = {}
        self._flows = 0
        """Of all loads."""
        self._label = LabelLimit()

    def load_of(self, endpoint: Endpoint) -> Load:
        """The endpoint's load; an empty one, not kept, when nothing is in flight."""
        return self._loads.get(endpoint.name) or Load(endpoint)

    def loads(self) -> Iterable[Load]:
        """Those of endpoints of the pool to which something is in flight."""
        return self._loads.values()

    def charge(self, endpoint: Endpoint, flow: Flow, prompt_tokens: int, output_tokens: int) -> Charge:
        """One more request is on its way to the endpoint."""
        load = self._loads.setdefault(endpoint.name, Load(endpoint))
        flow = self._label(flow[0]), flow[1]
        if flow not in load.flows:
            if self._flows >= MOST_FLOWS:
                flow = _OTHER, flow[1]
            if flow not in load.flows:
                load.flows[flow] = Sum()
                self._flows += 1
        charge = Charge(load, flow, 1, prompt_tokens, output_tokens)
        self._add(charge, 1, prompt_tokens + output_tokens)
        return charge

    def release_prompt(self, charge: Charge) -> None:
        """The prompt has been worked on."""
        tokens, charge.prompt_tokens = charge.prompt_tokens, 0
        self._add(charge, 0, -tokens)

    def release(self, charge: Charge) -> None:
        """The request is over; a second time changes nothing."""
        requests, tokens = charge.requests, charge.prompt_tokens + charge.output_tokens
        charge.requests = charge.prompt_tokens = charge.output_tokens = 0
        self._add(charge, -requests, -tokens)

    def forget(self, name: str) -> None:
        """The endpoint has left."""
        load = self._loads.pop(name, None)
        if load is not None:
            self._flows -= len(load.flows)

    def _add(self, charge: Charge, requests: int, tokens: int) -> None:
        load = charge.load
        load.requests += requests
        load.tokens += tokens
        if not self._counts(load):
            return
        self._publish(load)
        of_flow = load.flows.get(charge.flow)
        if of_flow is not None:
            of_flow.requests += requests
            of_flow.tokens += tokens
            if not of_flow.requests:
                del load.flows[charge.flow]
                self._flows -= 1
        if not load.requests:
            del self._loads[load.endpoint.name]

    def _counts(self, load: Load) -> bool:
        """False once its endpoint has left, even if another one has taken the name."""
        return self._loads.get(load.endpoint.name) is load


LABELS = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")


class InflightGauges(Collector):
    """Requests and tokens in flight by endpoint, fairness id and priority; a combination is there while it has requests: `MOST_FLOWS`."""

    def __init__(self, producer_name: str, ledger: LoadLedger) -> None:
        self._producer_name = producer_name
        self._ledger = ledger

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without samples."""
        return iter(_families())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Both families as they are now; called by the registry."""
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
        GaugeMetricFamily("llm_d_epp_inflight_requests", "Requests sent to an endpoint that have not come back.", labels=LABELS),
        GaugeMetricFamily("llm_d_epp_inflight_tokens", "Estimated tokens that an endpoint is still working on.", labels=LABELS),
    )


def prompt_tokens(request: InferenceRequest, tokenized: tuple[PromptTokens, ...] | None) -> int:
    """Tokens of all prompts as a token-producer counted them.

    Without one, four bytes per token of the prompt or, when no parser could read one, of the body.
    """
    if tokenized:
        return sum(len(prompt.token_ids) for prompt in tokenized)
    return request.prompt.estimated_tokens or (request.size_bytes + 3) // 4


def uncached_tokens(tokens: int, blocks: PrefixBlocks | None, matched_blocks: FloatArray) -> FloatArray:
    """Prompt tokens that are not cached where so many blocks matched: unmatched blocks, and what lies beyond all blocks.

    (total - matched) * block size + max(0, tokens - total * block size); of the last block, which may be short, all tokens count.
    """
    if blocks is None:
        return np.full(len(matched_blocks), float(tokens))
    size, total = blocks.block_size_tokens, blocks.total_blocks
    missing = total - np.minimum(np.floor(np.fmax(matched_blocks, 0.0)), total)
    return missing * size + float(max(0, tokens - total * size))


def output_tokens(prompt: int, ratio: float, *limits: int | None) -> int:
    """Tokens of the answer: in proportion to the prompt, a half rounded up, and no more than any of the limits there are."""
    return min([math.floor(prompt * ratio + 0.5), *(limit for limit in limits if limit is not None)])


class InflightLoadParameters(Parameters):
    """How the tokens of a request are estimated."""

    add_estimated_output_tokens: Annotated[
        bool, Field(alias="addEstimatedOutputTokens", description="Count the tokens that the answer will probably have, too.")
    ] = False
    output_ratio: Annotated[float, Field(alias="outputRatio", ge=0.0, description="Tokens of the answer per token of the prompt.")] = 1.5
    max_estimated_output_tokens: Annotated[
        int | None, Field(alias="maxEstimatedOutputTokens", ge=0, description="No answer is estimated to be longer.")
    ] = None
    prefix_match_info_producer_name: Annotated[
        str, Field(alias="prefixMatchInfoProducerName", description="Instance that knows which tokens are cached; empty for the only one.")
    ] = ""
    sync_cross_replica_state: Annotated[bool, ignored("syncCrossReplicaState", "remove it; each picker counts what it sent itself")] = True


class InflightLoadProducer(
    DataProducer[InflightLoadParameters], PreRequest[InflightLoadParameters], ResponseObserver[InflightLoadParameters]
):
    """Keep the columns `inflight-requests` and `inflight-tokens` up to date, and say what each candidate has not cached of a prompt.

    A request counts for the first endpoint of every profile that picked one, with the prompt tokens that are not cached there (and, if
    asked for, min(prompt * outputRatio, the client's limit, maxEstimatedOutputTokens) tokens of the answer). Its prompt tokens, and all of
    it at endpoints other than the primary's, are released with the first piece of the answer, the rest when the request ends, however it
    ends. An endpoint to which nothing was sent has 0.

    Not cached of a prompt of t tokens in n blocks of size b, m of them cached: (n - m) * b + max(0, t - n * b); all t of them where no
    producer knows of blocks. t is what a `token-producer` in the configuration counts, else a quarter of the prompt's bytes.
    """

    consumes_optional = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS, TOKENIZED_PROMPT)
    produces = (INFLIGHT_REQUESTS, INFLIGHT_TOKENS, UNCACHED_REQUEST_TOKENS)

    @classmethod
    def subscriptions(cls, parameters: InflightLoadParameters) -> Subscriptions:
        """The prefix matches, as the named producer finds them."""
        producer = parameters.prefix_match_info_producer_name
        prefix = (PREFIX_MATCH_BLOCKS.from_producer(producer), PREFIX_BLOCKS.from_producer(producer), TOKENIZED_PROMPT)
        return Subscriptions((), prefix, cls.produces)

    def __init__(self, name: str, parameters: InflightLoadParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._matches = PREFIX_MATCH_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._blocks = PREFIX_BLOCKS.from_producer(parameters.prefix_match_info_producer_name)
        self._ledger = LoadLedger(self._publish)
        self._known: object = None
        if context.registry is not None:
            context.registry.register(InflightGauges(name, self._ledger))

    def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Give endpoints that are new in the pool their 0, and say what the request is to each candidate."""
        if endpoints.pool_members is not self._known:
            self._known = endpoints.pool_members
            for endpoint in endpoints.pool_members:
                self._publish(self._ledger.load_of(endpoint))
        tokens = prompt_tokens(request, state.get(TOKENIZED_PROMPT))
        uncached = uncached_tokens(tokens, state.get(self._blocks), state.column(self._matches, endpoints))
        state.put_column(UNCACHED_REQUEST_TOKENS, endpoints, uncached)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        """Charge the endpoints that will work on the request."""
        parameters, blocks, prompt = self.parameters, state.get(self._blocks), prompt_tokens(request, state.get(TOKENIZED_PROMPT))
        output, flow = 0, (request.fairness_id, request.priority)
        if parameters.add_estimated_output_tokens:
            output = output_tokens(prompt, parameters.output_ratio, request.max_output_tokens, parameters.max_estimated_output_tokens)
        charges: dict[str, Charge] = {}
        for profile, run in result.runs.items():
            if run.picked is not None:
                first = run.picked.take([0])
                uncached = uncached_tokens(prompt, blocks, state.column(self._matches, first))[0]
                charges[profile] = self._ledger.charge(first.members[0], flow, int(uncached), output)
        state.private.update(charges=charges, primary=result.primary)

    def first_chunk(self, request: InferenceRequest, state: CycleState) -> None:
        """The prompt has been worked on, and the endpoint that prepared it for the primary's endpoint is done."""
        for profile, charge in _charges(state).items():
            if profile == state.private["primary"]:
                self._ledger.release_prompt(charge)
            else:
                self._ledger.release(charge)

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        """Release what is left."""
        for charge in _charges(state).values():
            self._ledger.release(charge)

    def endpoint_removed(self, name: str) -> None:
        """Forget its load."""
        self._ledger.forget(name)

    def _publish(self, load: Load) -> None:
        columns = self.context.columns
        if columns is not None:
            columns.set(INFLIGHT_REQUESTS, float(load.requests), load.endpoint)
            columns.set(INFLIGHT_TOKENS, float(load.tokens), load.endpoint)


def _charges(state: CycleState) -> dict[str, Charge]:
    charges = state.private.get("charges", {})
    assert isinstance(charges, dict)
    return charges
