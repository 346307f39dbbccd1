"""`burst-prefix-cache-producer`: places simultaneous requests together."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
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
    PluginContext,
    Stability,
)
from endpick.api.fast_metrics import Distributions
from endpick.api.keys import PREFIX_BLOCKS, PREFIX_MATCH_BLOCKS, TOKENIZED_PROMPT, PrefixBlocks
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.prompt_blocks import block_hashes, chain_root


@dataclass(frozen=True, slots=True)
class Member:
    """One request of a burst, with chained block hashes."""

    hashes: tuple[int, ...]
    candidates: frozenset[str]
    weight: float = 1.0


def units_of(members: Sequence[Member], min_colocate_blocks: int) -> list[list[int]]:
    """Return the groups to place, as positions of members: equal prompts, then single ones, longest first.

    Single prompts share at least `min_colocate_blocks` leading blocks with another; there are none if that is 0.
    """
    equal: dict[tuple[int, ...], list[int]] = {}
    for position, member in enumerate(members):
        if member.hashes:
            equal.setdefault(member.hashes, []).append(position)
    groups = [group for group in equal.values() if len(group) > 1]
    singles: list[list[int]] = []
    if min_colocate_blocks > 0:
        beginnings = Counter(member.hashes[min_colocate_blocks - 1] for member in members if len(member.hashes) >= min_colocate_blocks)
        singles = [
            group
            for hashes, group in equal.items()
            if len(group) == 1 and len(hashes) >= min_colocate_blocks and beginnings[hashes[min_colocate_blocks - 1]] > 1
        ]
    longest_first = [sorted(units, key=lambda unit: -len(members[unit[0]].hashes)) for units in (groups, singles)]
    return longest_first[0] + longest_first[1]


def assigned(
    members: Sequence[Member], running: Mapping[str, float], *, max_per_replica: int = -1, min_colocate_blocks: int = 0
) -> list[str | None]:
    """Assign an endpoint to each member; None without a group, or an endpoint that its whole group may use.

    `max_per_replica` splits a group; once every endpoint has a part, the rest is spread singly. The first part goes to the endpoint with
    the longest common prefix of at least `min_colocate_blocks`, among endpoints below the fair share, ceil(total load / endpoints); others
    go to endpoints without a part. Ties: load, running requests, name.
    """
    answer: list[str | None] = [None] * len(members)
    units = units_of(members, min_colocate_blocks)
    names = frozenset[str]().union(*(member.candidates for member in members))
    placed = sum(members[position].weight for unit in units for position in unit)
    burst = _Burst(sorted(names), running, min_colocate_blocks, math.ceil(placed / len(names)) if names else 0)
    for unit in units:
        common = frozenset[str].intersection(*(members[position].candidates for position in unit))
        size = max_per_replica if max_per_replica > 0 else len(unit)
        hashes = members[unit[0]].hashes
        unused, start = common, 0
        while common and start < len(unit):
            part = unit[start : start + (size if unused else 1)]
            chosen = (burst.sharing(common, hashes) if not start else None) or burst.least_loaded(unused or common)
            unused -= {chosen}
            start += len(part)
            burst.loads[chosen] += sum(members[position].weight for position in part)
            for position in part:
                answer[position] = chosen
        burst.place(common - unused, hashes)
    return answer


class _Burst:
    def __init__(self, names: Sequence[str], running: Mapping[str, float], min_colocate_blocks: int, fair_share: int) -> None:
        self.loads = dict.fromkeys(names, 0.0)
        self._bits = {name: 1 << place for place, name in enumerate(names)}
        self._names = names
        self._holders: dict[int, int] = {}  # endpoints by block, as bits
        self._running = running
        self._min_colocate_blocks = min_colocate_blocks
        self._fair_share = fair_share

    def place(self, names: Collection[str], hashes: Sequence[int]) -> None:
        bits = sum(map(self._bits.__getitem__, names))
        if bits and self._min_colocate_blocks > 0:
            holders = self._holders
            for block in hashes:
                holders[block] = holders.get(block, 0) | bits

    def sharing(self, names: Collection[str], hashes: Sequence[int]) -> str | None:
        if self._min_colocate_blocks <= 0:
            return None
        found, shared = 0, 0
        still = sum(self._bits[name] for name in names if self.loads[name] < self._fair_share)
        for block in hashes:
            still &= self._holders.get(block, 0)
            if not still:
                break
            found = still
            shared += 1
        return min(self._named(found), key=self._rank, default=None) if shared >= self._min_colocate_blocks else None

    def _named(self, bits: int) -> Iterator[str]:
        while bits:
            lowest = bits & -bits
            yield self._names[lowest.bit_length() - 1]
            bits ^= lowest

    def least_loaded(self, names: Collection[str]) -> str:
        return min(names, key=self._rank)

    def _rank(self, name: str) -> tuple[float, float, str]:
        return self.loads[name], self._running.get(name, 0.0), name


MAX_BLOCKS = 2048
MAX_STEPS = 200_000  # at most 40 ms per window
GRACE_SECONDS = 0.3
_STEPS_PER_ENDPOINT = 3
_SIZE_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class BurstPrefixParameters(CamelParameters):
    """Sets the window, the grouping and the balance of bursts."""

    window_duration_ms: Annotated[
        int, Field(gt=0, le=10_000, description="Length of the window in milliseconds, from its first request.")
    ] = 100
    max_per_replica: Annotated[int, Field(ge=-1, description="Requests with the same prompt per endpoint; -1 and 0: no limit.")] = -1
    block_size_tokens: Annotated[int, Field(gt=0, le=1 << 20, description="Tokens per block.")] = 64
    max_prefix_tokens_to_match: Annotated[int, Field(ge=0, description=f"Maximum tokens compared per prompt; 0: {MAX_BLOCKS} blocks.")] = 0
    min_colocate_blocks: Annotated[
        int, Field(ge=0, description="Common leading blocks that bring different prompts together; 0: none do.")
    ] = 0
    max_batch_size: Annotated[int, Field(ge=-1, description="Requests that end the window at once; -1 and 0: no limit.")] = 1000
    balance_by: Annotated[Literal["requests", "tokens"], Field(description="Unit of an endpoint's load within the burst.")] = "requests"


@dataclass(slots=True)
class _Waiting:
    member: Member
    running: dict[str, float]
    placed: asyncio.Future[str | None]


class BurstPrefixCacheProducer(DataProducer[BurstPrefixParameters]):
    """Places requests of one window together, so that a common prefix is computed once.

    Requests wait for the end of the window. Equal prompts form a group, with `minColocateBlocks` also prompts that share that many leading
    blocks. A group goes to one endpoint, or in parts of `maxPerReplica` to several. A placed request matches all its blocks there; other
    matches are 0.
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
        self._flush()

    async def produce(self, request: InferenceRequest, endpoints: Endpoints, state: CycleState) -> None:
        hashes = self._hashes(request, state)
        endpoint = await self._placed(hashes, endpoints) if hashes else None
        state.put(PREFIX_BLOCKS, PrefixBlocks(len(hashes), self.parameters.block_size_tokens, hashes))
        matched: FloatArray = np.zeros(len(endpoints))
        if endpoint is not None:
            matched[[candidate.name for candidate in endpoints].index(endpoint)] = len(hashes)
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
        window, self._window = [waiting for waiting in self._window if not waiting.placed.done()], []
        self._steps = 0
        if self._end is not None:
            self._end.cancel()
            self._end = None
        if not window:
            return
        self._sizes.observe(len(window))
        places = assigned(
            [waiting.member for waiting in window],
            {name: requests for waiting in window for name, requests in waiting.running.items()},
            max_per_replica=self.parameters.max_per_replica,
            min_colocate_blocks=self.parameters.min_colocate_blocks,
        )
        for waiting, place in zip(window, places, strict=True):
            waiting.placed.set_result(place)
