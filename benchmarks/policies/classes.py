"""Routing policies of others, as plugins: what `predicted-latency` is compared with."""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b

import numpy as np

from endpick.api import (
    CycleState,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    Picker,
    PluginContext,
    PreRequest,
    ResponseEnd,
    ResponseObserver,
    SchedulingResult,
    ScoredEndpoints,
    Scorer,
    ScoringState,
    UpstreamHeaders,
)
from endpick.api.keys import INFLIGHT_REQUESTS, INFLIGHT_TOKENS, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, UNCACHED_REQUEST_TOKENS


class RoundRobinPicker(Picker[Parameters]):
    """The endpoints in turn."""

    uses_scores = False

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._next = 0

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        self._next += 1
        return scored.take([self._next % len(scored.scores)])


class PowerOfTwoPicker(Picker[Parameters]):
    """The less loaded of two endpoints drawn at random."""

    uses_scores = False
    consumes = (INFLIGHT_REQUESTS,)

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        load = np.nan_to_num(scored.endpoints[INFLIGHT_REQUESTS])
        drawn = self.context.random.sample(range(len(load)), min(2, len(load)))
        return scored.take([min(drawn, key=load.__getitem__)])


class LeastRequestsPicker(Picker[Parameters]):
    """The endpoint with the fewest requests in flight; ties at random."""

    uses_scores = False
    consumes = (INFLIGHT_REQUESTS,)

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        load = np.nan_to_num(scored.endpoints[INFLIGHT_REQUESTS])
        return scored.take([self.context.random.choice((load == load.min()).nonzero()[0].tolist())])


class SessionHashPicker(Picker[Parameters]):
    """Rendezvous hashing of the session; without one, of the second 2 KiB of the prompt, because many traces share the first."""

    uses_scores = False

    def pick(self, request: InferenceRequest, scored: ScoredEndpoints, state: ScoringState) -> Endpoints:
        session = request.headers.get("x-session-id", "").encode() or (request.prompt.texts or (b"",))[0][2048:4096]
        ranks = [blake2b(endpoint.name.encode() + session, digest_size=8).digest() for endpoint in scored.endpoints.members]
        return scored.take([ranks.index(max(ranks))])


class SglangScorer(Scorer[Parameters], PreRequest[Parameters]):
    """SGLang's cache-aware policy with its defaults.

    While the most loaded endpoint has 64 requests more than the least loaded, and 1.5 times as many, the least loaded one; else the best
    match if that is over 0.3 of the prompt, else the endpoint that was sent the fewest tokens.
    """

    consumes = (INFLIGHT_REQUESTS, PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS)
    consumes_optional = (UNCACHED_REQUEST_TOKENS,)

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._sent: Counter[str] = Counter()

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        load = np.nan_to_num(endpoints[INFLIGHT_REQUESTS])
        blocks = state.get(PREFIX_BLOCKS)
        match = np.nan_to_num(state.column(PREFIX_MATCH_BLOCKS, endpoints))
        if load.max() - load.min() > 64 and load.max() > 1.5 * load.min():
            best = load == load.min()
        elif blocks is not None and blocks.total_blocks and match.max() > 0.3 * blocks.total_blocks:
            best = match == match.max()
        else:
            sent = np.array([self._sent[endpoint.name] for endpoint in endpoints.members])
            best = sent == sent.min()
        return best.astype(float)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        picked = result.runs[result.primary].picked
        if picked is not None:
            missing = np.nan_to_num(state.column(UNCACHED_REQUEST_TOKENS, picked))
            self._sent[picked.members[0].name] += int(missing[0])


class DynamoScorer(Scorer[Parameters], PreRequest[Parameters], ResponseObserver[Parameters]):
    """Dynamo's KV router at temperature 0: the least (blocks to prefill, with those in flight) + (blocks of open requests)."""

    consumes = (INFLIGHT_TOKENS, PREFIX_BLOCKS, UNCACHED_REQUEST_TOKENS)

    def __init__(self, name: str, parameters: Parameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._open: Counter[str] = Counter()

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        blocks = state.get(PREFIX_BLOCKS)
        size = 64 if blocks is None else blocks.block_size_tokens
        prefill = (np.nan_to_num(endpoints[INFLIGHT_TOKENS]) + np.nan_to_num(state.column(UNCACHED_REQUEST_TOKENS, endpoints))) / size
        decode = np.array([self._open[endpoint.name] for endpoint in endpoints.members], float)
        return 1 / (1 + prefill + decode)

    def before_request(self, request: InferenceRequest, result: SchedulingResult, headers: UpstreamHeaders, state: CycleState) -> None:
        picked, blocks = result.runs[result.primary].picked, state.get(PREFIX_BLOCKS)
        if picked is not None and blocks is not None:
            state.private["open"] = picked.members[0].name, blocks.total_blocks
            self._open[picked.members[0].name] += blocks.total_blocks

    def response_ended(self, request: InferenceRequest, end: ResponseEnd, state: CycleState) -> None:
        sent = state.private.pop("open", None)
        if isinstance(sent, tuple):
            self._open[sent[0]] -= sent[1]


class StickyScorer(Scorer[Parameters]):
    """The best match until 16,384 prompt tokens more are in flight there than at the least loaded endpoint, then that."""

    consumes = (INFLIGHT_TOKENS, PREFIX_MATCH_BLOCKS)

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray:
        load = np.nan_to_num(endpoints[INFLIGHT_TOKENS])
        match = np.nan_to_num(state.column(PREFIX_MATCH_BLOCKS, endpoints))
        allowed = load <= load.min() + 16_384
        rank = np.where(allowed, match, -1.0) - load / (load.max() + 1.0) / 2
        return (rank == rank.max()).astype(float)
