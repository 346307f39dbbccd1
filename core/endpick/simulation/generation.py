"""What goes into the engine and what comes out of it: requests, events, usage, metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to answer, as far as timing and caching can tell: lengths and block hashes, no text."""

    id: str
    prompt_tokens: int
    """At least 1."""
    output_tokens: int
    """How many tokens the answer will have; at least 1."""
    block_hashes: tuple[int, ...] = ()
    """Chained hash of each full block of the prompt and, as far as known, of the answer. Blocks beyond are never shared."""
    adapter: str | None = None
    """LoRA adapter that the request asks for; None for the base model."""

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(f"request {self.id!r} needs at least one prompt token and one output token")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a finished request, counted as the OpenAI API counts them."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    """Prompt tokens that were in the prefix cache when the request was first admitted."""


@dataclass(frozen=True, slots=True)
class Token:
    """The request's token `index` (0 is the first) exists from `time` on."""

    time: float
    request_id: str
    index: int


@dataclass(frozen=True, slots=True)
class Finished:
    """The request has all its tokens; follows its last `Token` at the same time."""

    time: float
    request_id: str
    usage: Usage


Event = Token | Finished


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """State and totals of an engine at one moment, enough for every metric a router reads."""

    running: int
    waiting: int
    kv_cache_usage: float
    """0 to 1; blocks that are only cached count as free."""
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]
    prompt_tokens: int
    """Prompt tokens of all requests that got their first token."""
    generated_tokens: int
    prefix_cache_queried_tokens: int
    prefix_cache_hit_tokens: int
    preemptions: int
    finished: int
    aborted: int
