"""`burst-prefix-cache-producer`: places simultaneous requests with common prompts together, before any cache holds them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from endpick.api import (
    RUNNING_REQUESTS_SIZE,
    CycleState,
    DataProducer,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Parameters,
    PluginContext,
    Stability,
)
from endpick.api.fast_metrics import Distributions
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, PrefixBlocks
from endpick_builtin.producers.burst_groups import Member, assigned
from endpick_builtin.producers.prompt_blocks import block_hashes, chain_root

MAX_BLOCKS = 2048
MAX_STEPS = 200_000
"""Bounds the work of one window to 40 ms."""
GRACE_SECONDS = 0.3
_STEPS_PER_ENDPOINT = 3
_SIZE_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class BurstPrefixParameters(Parameters):
    """Window, grouping and balance of bursts."""

    window_duration_ms: Annotated[
        int, Field(alias="windowDurationMs", gt=0, le=10_000, description="Length of the window in milliseconds, from its first request.")
    ] = 100
    max_per_replica: Annotated[
        int, Field(alias="maxPerReplica", ge=-1, description="Requests with the same prompt per endpoint; -1 and 0: no limit.")
    ] = -1
    block_size_tokens: Annotated[int, Field(alias="blockSizeTokens", gt=0, le=1 << 20, description="Tokens per block.")] = 64
    max_prefix_tokens_to_match: Annotated[
        int, Field(alias="maxPrefixTokensToMatch", ge=0, description=f"Maximum tokens compared per prompt; 0: {MAX_BLOCKS} blocks.")
    ] = 0
    min_colocate_blocks: Annotated[
        int,
        Field(alias="minColocateBlocks", ge=0, description="Common leading blocks that bring different prompts together; 0: none do."),
    ] = 0
    max_batch_size: Annotated[
        int, Field(alias="maxBatchSize", ge=-1, description="Requests that end the window at once; -1 and 0: no limit.")
    ] = 1000
    balance_by: Annotated[
        Literal["requests", "tokens"], Field(alias="balanceBy", description="Unit of an endpoint's load within the burst.")
    ] = "requests"


@dataclass(slots=True)
class _Waiting:
    member: Member
    running: dict[str, float]
    placed: asyncio.Future[str | None]


class BurstPrefixCacheProducer(DataProducer[BurstPrefixParameters]):
    """Places requests of one window together, so that a common prefix is computed once.

    Every request waits for the end of the window. Requests with equal prompts form a group; with `minColocateBlocks`, so does a prompt
    that shares that many leading blocks with another one. A group goes to one endpoint, or in parts of `maxPerReplica` to several. A
    placed request matches all its blocks at its endpoint and 0 elsewhere; others match 0 everywhere, and the other scorers decide.
    Endpoints that have not reported running requests count as idle.
    """

    stability = Stability.EXPERIMENTAL
    consumes_optional = (TOKENIZED_PROMPT, RUNNING_REQUESTS_SIZE)
    produces = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)

    def __init__(self, name: str, parameters: BurstPrefixParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.timeout_seconds = parameters.window_duration_ms / 1000 + GRACE_SECONDS
        self._window: list[_Waiting] = []
        self._steps = 0
        self._end: asyncio.TimerHandle | None = None
        text = "Requests in one window of burst-prefix-cache-producer."
        self._sizes = Distributions("endpick_burst_prefix_window_requests", text, (), _SIZE_BUCKETS, context.registry).labels()

    async def stop(self) -> None:
        """End the window."""
        self._flush()

    async def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Wait for the end of the window."""
        hashes = self._hashes(request, state)
        endpoint = await self._placed(hashes, endpoints) if hashes else None
        state.put(PREFIX_BLOCKS, PrefixBlocks(len(hashes), self.parameters.block_size_tokens, hashes))
        matched: FloatArray = np.zeros(len(endpoints))
        if endpoint is not None:
            matched[[each.name for each in endpoints].index(endpoint)] = len(hashes)
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, matched)

    def _hashes(self, request: InferenceRequest, state: CycleState) -> tuple[int, ...]:
        parameters, tokens = self.parameters, state.get(TOKENIZED_PROMPT)
        size = parameters.block_size_tokens
        limit = parameters.max_prefix_tokens_to_match // size or 1 if parameters.max_prefix_tokens_to_match else MAX_BLOCKS
        texts = request.prompt.texts if tokens is None else [prompt.token_ids[: limit * size].tobytes() for prompt in tokens]
        root = chain_root(request.model, request.cache_salt)
        return tuple(block for text in texts for block in block_hashes(text, root, size, limit))

    async def _placed(self, hashes: tuple[int, ...], endpoints: Endpoints) -> str | None:
        names = [endpoint.name for endpoint in endpoints]
        running = dict(zip(names, np.fmax(np.nan_to_num(endpoints[RUNNING_REQUESTS_SIZE]), 0.0).tolist(), strict=True))
        weight = float(len(hashes) * self.parameters.block_size_tokens) if self.parameters.balance_by == "tokens" else 1.0
        loop = asyncio.get_running_loop()
        waiting = _Waiting(Member(hashes, frozenset(names), weight), running, loop.create_future())
        self._window.append(waiting)
        self._steps += len(hashes) + _STEPS_PER_ENDPOINT * len(names)
        if self._end is None:
            self._end = loop.call_later(self.parameters.window_duration_ms / 1000, self._flush)
        if len(self._window) == self.parameters.max_batch_size or self._steps > MAX_STEPS:
            self._flush()
        return await waiting.placed

    def _flush(self) -> None:
        window, self._window = [one for one in self._window if not one.placed.done()], []
        self._steps = 0
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not window:
            return
        self._sizes.observe(len(window))
        places = assigned(
            [one.member for one in window],
            {name: requests for one in window for name, requests in one.running.items()},
            max_per_replica=self.parameters.max_per_replica,
            min_colocate_blocks=self.parameters.min_colocate_blocks,
        )
        for one, place in zip(window, places, strict=True):
            one.placed.set_result(place)
