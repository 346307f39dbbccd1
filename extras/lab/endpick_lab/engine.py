"""A pure model of a vLLM engine: continuous batching, chunked prefill, KV blocks, preemption and LoRA slots."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from random import Random

from endpick_lab.caches import AdapterSlots, BlockPool, BlockWatcher
from endpick_lab.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """The lengths and block hashes of a prompt, which determine timing and caching."""

    id: str
    prompt_tokens: int
    output_tokens: int
    block_hashes: tuple[int, ...] = ()  # chained, of each full block of the prompt and, if known, the answer; others are not shared
    adapter: str | None = None
    transferred_tokens: int = 0  # leading prompt tokens from another engine: they take blocks but no time

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"request {self.id!r} needs at least one prompt token and one output token")


@dataclass(frozen=True, slots=True)
class Token:
    """Token number `index` of a request, available from `time`."""

    time: float
    request_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Follows the last `Token` of a request, at the same time."""

    time: float
    request_id: str
    usage: TokenUsage


Event = Token | Finished


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """Token counts of a finished request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # found in the prefix cache at the first admission


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """State and totals of an engine."""

    running: int
    waiting: int
    kv_cache_usage: float  # 0 to 1; blocks that are only cached count as free
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]
    prompt_tokens: int  # of requests with a first token
    generated_tokens: int
    prefix_cache_queried_tokens: int
    prefix_cache_hit_tokens: int
    preemptions: int
    finished: int
    aborted: int


class Engine:
    """Computes when each token of each request appears.

    It has no clock: every call passes seconds from any origin, never decreasing. The number of calls to `advance` does not affect events.
    A request submitted at the time of the last `advance` misses a step that starts then.
    """

    def __init__(
        self, settings: EngineSettings, random: Random | None = None, watcher: BlockWatcher | None = None, *, every_token: bool = True
    ) -> None:
        """`random` is for jitter.

        Without `every_token`, only first tokens are events, and steps that only decode are computed at once; exact if no request knows the
        hashes of its answer.
        """
        self.settings = settings
        self._every_token = every_token
        self._random = random or Random(0)  # noqa: S311 - repeatable by design
        self._pool = BlockPool(settings.kv_blocks, watcher)
        self._adapters = AdapterSlots(settings.max_loras)
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []
        self._alive: dict[str, Sequence] = {}
        self._step: _Step | None = None
        self._now = float("-inf")
        self._prompt_tokens = self._generated_tokens = self._queried_tokens = self._hit_tokens = 0
        self._preemptions = self._finished = self._aborted = 0

    def submit(self, request: GenerationRequest, now: float) -> None:
        """Queue a request. Raises ValueError for a used id, a too long request, an adapter without `max_loras`, or a past `now`."""
        self._move_clock(now)
        if request.id in self._alive:
            raise ValueError(f"request id {request.id!r} is already in use")
        if request.prompt_tokens + request.output_tokens > self.settings.max_model_len:
            raise ValueError(f"request {request.id!r} is longer than max_model_len={self.settings.max_model_len}")
        if request.adapter is not None and not self.settings.max_loras:
            raise ValueError(f"request {request.id!r} needs adapter {request.adapter!r}, but max_loras is 0")
        sequence = self._alive[request.id] = Sequence(request, now, transferred=request.transferred_tokens)
        self._waiting.append(sequence)
        self._cut_step(now)

    def next_event_time(self) -> float | None:
        """Return the time of the next event, not in the past; None while idle."""
        due = self._due()
        return None if due is None else max(due, self._now)

    def advance(self, now: float) -> list[Event]:
        """Return the events up to and including `now`, in order."""
        self._move_clock(now)
        events: list[Event] = []
        while (time := self._due()) is not None and time <= now:
            if self._step is not None:
                self._finish_step(self._step, events)
            self._step = self._start_step(time)
        return events

    def abort(self, request_id: str, now: float) -> bool:
        """Remove a request; False if it has ended. Call `advance(now)` first, or its events before `now` are lost."""
        self._move_clock(now)
        sequence = self._alive.pop(request_id, None)
        if sequence is None:
            return False
        self._cut_step(now)
        if sequence in self._running:
            self._running.remove(sequence)
            self._free(sequence)
        else:
            self._waiting.remove(sequence)
        sequence.ended = True
        self._aborted += 1
        return True

    @property
    def load(self) -> tuple[int, int, float]:
        """Waiting requests, running requests, and KV cache usage from 0 to 1, as of the last `advance`."""
        return len(self._waiting), len(self._running), self._pool.in_use / self._pool.capacity

    def metrics(self, now: float) -> EngineMetrics:
        """Return the state and totals as of the last `advance`."""
        self._move_clock(now)
        return EngineMetrics(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_cache_usage=self._pool.in_use / self._pool.capacity,
            running_adapters=self._adapters.in_use,
            waiting_adapters=tuple(sorted({s.request.adapter for s in self._waiting if s.request.adapter is not None})),
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            prefix_cache_queried_tokens=self._queried_tokens,
            prefix_cache_hit_tokens=self._hit_tokens,
            preemptions=self._preemptions,
            finished=self._finished,
            aborted=self._aborted,
        )

    def expected_first_token_seconds(self, request: GenerationRequest) -> float:
        """Estimate the seconds to the first token: the prefill of all requests ahead, and its own."""
        tokens = sum(sequence.pending for sequence in self._running if sequence.pending > 1)
        tokens += sum(self._missing_tokens(sequence.request) for sequence in self._waiting) + self._missing_tokens(request)
        steps = -(-tokens // self.settings.max_num_batched_tokens)
        timing = self.settings.timing
        decode = timing.step_seconds(prefill_tokens=0, sequences=len(self._running) + 1, adapter_loads=0)
        return tokens * timing.prefill_seconds_per_token + steps * decode

    def _missing_tokens(self, request: GenerationRequest) -> int:
        shareable = (request.prompt_tokens - 1) // self.settings.block_size
        return request.prompt_tokens - len(self._pool.match(request.block_hashes[:shareable])) * self.settings.block_size

    def _due(self) -> float | None:
        if self._step is not None:
            return self._step.end
        return self._waiting[0].arrival if self._waiting else None

    def _move_clock(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time went back from {self._now} to {now}")
        self._now = now

    def _start_step(self, now: float) -> _Step | None:
        preemptions = self._preemptions
        chunks = self._continue_running()
        loads = self._admit_waiting(now, chunks) if self._preemptions == preemptions else 0
        if not chunks:
            return None
        timing = self.settings.timing
        prefill_tokens = sum(tokens for sequence, tokens in chunks if tokens > 1 or not sequence.generated)
        seconds = timing.step_seconds(prefill_tokens=prefill_tokens, sequences=len(chunks), adapter_loads=loads)
        if timing.jitter:
            seconds *= 1 + timing.jitter * (2 * self._random.random() - 1)
        is_alone = self._every_token or timing.jitter or self._preemptions != preemptions
        repeats = 1 if is_alone else self._repeats_of(chunks, now)
        return _Step(now, seconds, chunks, repeats)

    def _repeats_of(self, chunks: list[tuple[Sequence, int]], now: float) -> int:
        repeats, blocks, size = self.settings.max_model_len, 0, self.settings.block_size
        if self._waiting and (self._waiting[-1].arrival > now or self._may_admit(self._waiting[0], len(chunks))):
            return 1
        for sequence, _ in chunks:
            if sequence.pending > 1 or not sequence.generated:
                return 1
            repeats = min(repeats, sequence.request.output_tokens - sequence.generated)
        if len(chunks) < len(self._running):
            return 1
        for sequence, _ in chunks:
            blocks += max(0, -(-(sequence.computed + repeats) // size) - len(sequence.blocks))
        return repeats if blocks <= self._pool.idle else 1

    def _may_admit(self, waiting: Sequence, decoding: int) -> bool:
        """True if its first chunk fits once its cached prefix is evicted."""
        tokens = min(waiting.pending, self.settings.max_num_batched_tokens - decoding)
        return len(self._running) < self.settings.max_num_seqs and self._pool.idle >= -(-tokens // self.settings.block_size)

    def _cut_step(self, now: float) -> None:
        step = self._step
        if step is not None and step.repeats > 1:
            step.repeats = min(step.repeats, int((now - step.start) / step.seconds) + 1)

    def _continue_running(self) -> list[tuple[Sequence, int]]:
        chunks: list[tuple[Sequence, int]] = []
        budget, size = self.settings.max_num_batched_tokens, self.settings.block_size
        while budget and len(chunks) < len(self._running):
            sequence = self._running[len(chunks)]
            tokens = min(sequence.pending, budget)
            if sequence.computed + tokens <= len(sequence.blocks) * size or self._extend(sequence, tokens):
                chunks.append((sequence, tokens))
                budget -= tokens
            else:
                self._preempt_youngest()
        return chunks

    def _admit_waiting(self, now: float, chunks: list[tuple[Sequence, int]]) -> int:
        """Returns the number of loaded adapters.

        Sequences overtake those that lack an adapter slot, but not those that lack KV blocks, or long prompts would starve.
        """
        budget = self.settings.max_num_batched_tokens - sum(tokens for _, tokens in chunks)
        loads = 0
        passed_over: list[Sequence] = []
        while self._waiting and budget and len(self._running) < self.settings.max_num_seqs:
            sequence = self._waiting[0]
            if sequence.arrival > now:
                break
            adapter = sequence.request.adapter
            if adapter is not None and not self._adapters.has_room_for(adapter):
                passed_over.append(self._waiting.popleft())
                continue
            tokens = self._allocate(sequence, budget)
            if not tokens:
                break
            if adapter is not None:
                loads += self._adapters.acquire(adapter)
            self._running.append(self._waiting.popleft())
            chunks.append((sequence, tokens))
            budget -= tokens
        self._waiting.extendleft(reversed(passed_over))
        return loads

    def _allocate(self, sequence: Sequence, budget: int) -> int:
        """Returns the tokens of its first chunk; 0 if it does not fit.

        The last token is computed even if cached, because its result is the next token.
        """
        block_size = self.settings.block_size
        shareable = (sequence.pending - 1) // block_size
        shared = self._pool.match(sequence.request.block_hashes[:shareable])
        cached = len(shared) * block_size
        computed = max(cached, min(sequence.transferred, sequence.pending - 1))
        tokens = min(sequence.pending - computed, budget)
        blocks = self._pool.claim(shared, -(-(computed + tokens) // block_size) - len(shared))
        if blocks is None:
            return 0
        sequence.blocks, sequence.computed, sequence.published = blocks, computed, len(shared)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached
            self._queried_tokens += sequence.request.prompt_tokens
            self._hit_tokens += cached
        return tokens

    def _extend(self, sequence: Sequence, tokens: int) -> bool:
        missing = -(-(sequence.computed + tokens) // self.settings.block_size) - len(sequence.blocks)
        if missing <= 0:
            return True
        blocks = self._pool.claim((), missing)
        if blocks is None:
            return False
        sequence.blocks += blocks
        return True

    def _preempt_youngest(self) -> None:
        sequence = self._running.pop()
        self._free(sequence)
        sequence.computed = sequence.published = sequence.transferred = 0
        self._waiting.appendleft(sequence)
        self._preemptions += 1

    def _free(self, sequence: Sequence) -> None:
        self._pool.release(sequence.blocks)
        sequence.blocks = []
        if sequence.request.adapter is not None:
            self._adapters.release(sequence.request.adapter)

    def _finish_step(self, step: _Step, events: list[Event]) -> None:
        has_ended = False
        repeats = step.repeats
        for sequence, _ in step.chunks if repeats > 1 else ():
            if not sequence.ended:
                self._extend(sequence, repeats)  # all of them, before one ends and frees its blocks
                self._generate(sequence, repeats - 1)
        for sequence, tokens in step.chunks:
            if sequence.ended:
                continue
            sequence.computed += tokens * repeats
            if sequence.published < len(sequence.request.block_hashes):
                self._publish_full_blocks(sequence)
            if sequence.computed == sequence.request.prompt_tokens + sequence.generated:
                self._sample(sequence, step.end, events)
                has_ended |= sequence.ended
        if has_ended:
            self._running = [sequence for sequence in self._running if not sequence.ended]

    def _publish_full_blocks(self, sequence: Sequence) -> None:
        hashes = sequence.request.block_hashes
        full = min(sequence.computed // self.settings.block_size, len(hashes))
        for index in range(sequence.published, full):
            self._pool.publish(sequence.blocks[index], hashes[index])
        sequence.published = max(sequence.published, full)

    def _sample(self, sequence: Sequence, time: float, events: list[Event]) -> None:
        request = sequence.request
        if self._every_token or not sequence.generated:
            events.append(Token(time, request.id, sequence.generated))
        if not sequence.generated:
            self._prompt_tokens += request.prompt_tokens
        self._generate(sequence, 1)
        if sequence.generated == request.output_tokens:
            usage = TokenUsage(request.prompt_tokens, request.output_tokens, sequence.cached_tokens or 0)
            events.append(Finished(time, request.id, usage))
            sequence.ended = True
            self._free(sequence)
            del self._alive[request.id]
            self._finished += 1

    def _generate(self, sequence: Sequence, tokens: int) -> None:
        sequence.generated += tokens
        self._generated_tokens += tokens


@dataclass(slots=True, eq=False)
class Sequence:
    """The progress and the KV blocks of one request."""

    request: GenerationRequest
    arrival: float
    generated: int = 0
    computed: int = 0  # tokens in the cache
    published: int = 0  # leading blocks offered to the prefix index
    blocks: list[int] = field(default_factory=list)
    cached_tokens: int | None = None
    transferred: int = 0  # tokens from another engine, kept in a preemption
    ended: bool = False

    @property
    def pending(self) -> int:
        """Tokens to compute before the next is sampled: 1 while decoding."""
        return self.request.prompt_tokens + self.generated - self.computed


@dataclass(slots=True)
class _Step:
    start: float
    seconds: float
    chunks: list[tuple[Sequence, int]]
    repeats: int

    @property
    def end(self) -> float:
        return self.start + self.seconds * self.repeats
