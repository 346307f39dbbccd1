"""`burst-prefix-cache-producer`: keeps requests together that come at once with the same prompt, before any cache knows it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from endpick.api import (
    PREFIX_BLOCKS,
    PREFIX_MATCH_BLOCKS,
    RUNNING_REQUESTS_SIZE,
    TOKENIZED_PROMPT,
    CycleState,
    DataProducer,
    Endpoints,
    FloatArray,
    InferenceRequest,
    Limit,
    Limits,
    Parameters,
    PluginContext,
    PrefixBlocks,
    Stability,
)
from endpick.api.fast_metrics import Distributions
from endpick_builtin.producers.burst_groups import Member, assigned
from endpick_builtin.producers.prompt_blocks import BYTES_PER_TOKEN, block_hashes, chain_root

MOST_BLOCKS = 2048
"""Blocks of a prompt that are looked at where `maxPrefixTokensToMatch` does not say."""
_LONG_PROMPT = Limit(
    "MOST_BLOCKS",
    f"a prompt was looked at in part: it has more than {MOST_BLOCKS} blocks (MOST_BLOCKS); raise blockSizeTokens, or set "
    "maxPrefixTokensToMatch",
)
_FULL_WINDOW = Limit(
    "maxBatchSize", "a window of requests ended early: it held as many as maxBatchSize allows; raise it, or shorten windowDurationMs"
)
_STEPS_PER_ENDPOINT = 3
_LONG_WINDOW = Limit(
    "maxSteps",
    "a window of requests ended early: to place them would take more steps than maxSteps allows, one for each block of their prompts and "
    "three for each endpoint; raise maxSteps or blockSizeTokens, or shorten windowDurationMs",
)
GRACE_SECONDS = 0.3
"""How much longer than the window a request waits at most."""
_SIZE_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class BurstPrefixParameters(Parameters):
    """What counts as a burst, and how it is spread."""

    window_duration_ms: Annotated[
        int, Field(alias="windowDurationMs", gt=0, le=10_000, description="Time in milliseconds from a burst's first request to its last.")
    ] = 100
    max_per_replica: Annotated[
        int, Field(alias="maxPerReplica", ge=-1, description="Requests with the same prompt at one endpoint; -1 (and 0): all of them.")
    ] = -1
    block_size_tokens: Annotated[int, Field(alias="blockSizeTokens", gt=0, le=1 << 20, description="Tokens per block.")] = 64
    max_prefix_tokens_to_match: Annotated[
        int, Field(alias="maxPrefixTokensToMatch", ge=0, description=f"Tokens of a prompt to look at; 0: {MOST_BLOCKS} blocks.")
    ] = 0
    min_colocate_blocks: Annotated[
        int,
        Field(alias="minColocateBlocks", ge=0, description="Leading blocks that bring different prompts together; 0: only equal ones are."),
    ] = 0
    max_batch_size: Annotated[
        int, Field(alias="maxBatchSize", ge=-1, description="Requests that end the window at once; -1 (and 0): no limit.")
    ] = 1000
    max_steps: Annotated[
        int,
        Field(
            alias="maxSteps",
            gt=0,
            description="Steps of placing a window that end it at once: one for each block of its prompts, and three for each endpoint and "
            "request. All requests wait while they are taken, 40 ms for 200,000.",
        ),
    ] = 200_000
    balance_by: Annotated[
        Literal["requests", "tokens"], Field(alias="balanceBy", description="What an endpoint's load in the burst is counted in.")
    ] = "requests"


@dataclass(slots=True)
class _Waiting:
    """One request of the window that is open."""

    member: Member
    running: dict[str, float]
    placed: asyncio.Future[str | None]


class BurstPrefixCacheProducer(DataProducer[BurstPrefixParameters]):
    """Place requests that come within one window together, so that what they have in common is worked on once.

    Every request waits for the window to end. Those with equal prompts are a group; with `minColocateBlocks`, so is a prompt that
    shares that many leading blocks with another one. A group goes to one endpoint, or `maxPerReplica` of it to each (see
    `burst_groups`). A request that is placed finds all its blocks at its endpoint and 0 elsewhere; any other finds 0 everywhere, and
    the other scorers decide. An endpoint that has not reported how much it runs counts as idle.
    """

    stability = Stability.EXPERIMENTAL
    consumes_optional = (TOKENIZED_PROMPT, RUNNING_REQUESTS_SIZE)
    produces = (PREFIX_MATCH_BLOCKS, PREFIX_BLOCKS)

    def __init__(self, name: str, parameters: BurstPrefixParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self.timeout_seconds = parameters.window_duration_ms / 1000 + GRACE_SECONDS
        self._window: list[_Waiting] = []
        self._steps = 0
        """That placing what waits in the window takes."""
        self._most_steps = parameters.max_steps
        self._end: asyncio.TimerHandle | None = None
        self._limits = Limits(context, (_LONG_PROMPT, _FULL_WINDOW, _LONG_WINDOW))
        told = "Requests in one window of burst-prefix-cache-producer."
        self._sizes = Distributions("endpick_burst_prefix_window_requests", told, (), _SIZE_BUCKETS, context.registry).labels()

    async def stop(self) -> None:
        """End the window that is open."""
        self._flush()

    async def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        """Wait for the window to end, and leave where the request was placed."""
        size = self.parameters.block_size_tokens
        hashes = self._hashes(request, state)
        endpoint = await self._placed(hashes, request, endpoints) if hashes else None
        state.put(PREFIX_BLOCKS, PrefixBlocks(len(hashes), size, hashes))
        matched: FloatArray = np.zeros(len(endpoints))
        if endpoint is not None:
            matched[[each.name for each in endpoints].index(endpoint)] = len(hashes)
        state.put_column(PREFIX_MATCH_BLOCKS, endpoints, matched)

    def _hashes(self, request: InferenceRequest, state: CycleState) -> tuple[int, ...]:
        parameters, tokens = self.parameters, state.get(TOKENIZED_PROMPT)
        size = parameters.block_size_tokens
        limit = parameters.max_prefix_tokens_to_match // size or 1 if parameters.max_prefix_tokens_to_match else MOST_BLOCKS
        most = limit * size + 1  # one token more than counts, so that a longer prompt still shows
        texts = request.prompt.texts if tokens is None else [prompt.token_ids[:most].tobytes() for prompt in tokens]
        if not parameters.max_prefix_tokens_to_match and any(len(text) > limit * size * BYTES_PER_TOKEN for text in texts):
            self._limits.acted(_LONG_PROMPT, about=request.id)
        root = chain_root(request.model, request.cache_salt)
        return tuple(block for text in texts for block in block_hashes(text, root, size, limit))

    async def _placed(self, hashes: tuple[int, ...], request: InferenceRequest, endpoints: Endpoints) -> str | None:
        names = [endpoint.name for endpoint in endpoints]
        running = dict(zip(names, np.fmax(np.nan_to_num(endpoints[RUNNING_REQUESTS_SIZE]), 0.0).tolist(), strict=True))
        weight = float(len(hashes) * self.parameters.block_size_tokens) if self.parameters.balance_by == "tokens" else 1.0
        loop = asyncio.get_running_loop()
        waiting = _Waiting(Member(hashes, frozenset(names), weight), running, loop.create_future())
        self._window.append(waiting)
        if self._end is None:
            self._end = loop.call_later(self.parameters.window_duration_ms / 1000, self._flush)
        self._steps += len(hashes) + _STEPS_PER_ENDPOINT * len(names)
        if len(self._window) == self.parameters.max_batch_size:
            self._limits.acted(_FULL_WINDOW)
            self._flush()
        elif self._steps > self._most_steps:
            self._limits.acted(_LONG_WINDOW)
            self._flush()
        return await waiting.placed

    def _flush(self) -> None:
        """End the window, and tell its requests where they were placed; those that were given up meanwhile do not count."""
        window, self._window = [one for one in self._window if not one.placed.done()], []
        self._steps = 0
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not window:
            return
        self._sizes.observe(len(window))
        running = {name: requests for one in window for name, requests in one.running.items()}
        places = assigned(
            [one.member for one in window],
            running,
            max_per_replica=self.parameters.max_per_replica,
            min_colocate_blocks=self.parameters.min_colocate_blocks,
        )
        for one, place in zip(window, places, strict=True):
            one.placed.set_result(place)
