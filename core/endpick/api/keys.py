"""The data keys that endpick defines itself: what model servers report, and what its own producers know of a request."""

from __future__ import annotations

from dataclasses import dataclass, field

from endpick.api.data import DataKey, Scope

_METRICS = "core-metrics-extractor"


@dataclass(frozen=True, slots=True)
class LoraAdapters:
    """LoRA adapters as one model server last reported them."""

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    max_adapters: int = 0
    """How many adapters fit at once; 0 when unknown."""


WAITING_QUEUE_SIZE = DataKey(
    "waiting-queue-size",
    float,
    doc="Requests waiting in the model server's queue (count, 0 or more).",
    default_producer=_METRICS,
)
RUNNING_REQUESTS_SIZE = DataKey(
    "running-requests-size",
    float,
    doc="Requests the model server is working on (count, 0 or more).",
    default_producer=_METRICS,
)
KV_CACHE_USAGE = DataKey("kv-cache-usage", float, doc="Share of the KV cache in use (0 to 1).", default_producer=_METRICS)
CACHE_BLOCK_SIZE = DataKey("cache-block-size", float, doc="Tokens per KV-cache block as the engine reports it.", default_producer=_METRICS)
CACHE_NUM_BLOCKS = DataKey("cache-num-blocks", float, doc="KV-cache blocks of the engine as it reports them.", default_producer=_METRICS)
LORA_ADAPTERS = DataKey(
    "lora-adapters", LoraAdapters, doc="LoRA adapters running and waiting, and how many fit.", default_producer=_METRICS
)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a model server's `/v1/models`."""

    id: str
    parent: str = ""
    """The base model of a LoRA adapter; empty for a base model."""


SERVED_MODELS: DataKey[tuple[ServedModel, ...]] = DataKey(
    "served-models",
    tuple,
    doc="The models and LoRA adapters a model server says it serves, in its own order.",
    default_producer="models-data-extractor",
)

INFLIGHT_REQUESTS = DataKey(
    "inflight-requests",
    float,
    doc="Requests this endpick has sent to the endpoint that have not ended (count).",
    default_producer="inflight-load-producer",
)
INFLIGHT_TOKENS = DataKey(
    "inflight-tokens",
    float,
    doc="Estimated prompt tokens of the requests in flight to the endpoint (count).",
    default_producer="inflight-load-producer",
)

PREFIX_MATCH_BLOCKS = DataKey(
    "prefix-match-blocks",
    float,
    Scope.CANDIDATE,
    doc="Leading blocks of the prompt that the endpoint probably holds in its prefix cache (count).",
    default_producer="approx-prefix-cache-producer",
)


@dataclass(frozen=True, slots=True)
class PrefixBlocks:
    """How one request's prompt was cut into blocks for prefix matching."""

    total_blocks: int
    block_size_tokens: int
    hashes: tuple[int, ...] = field(default=(), repr=False)


PREFIX_BLOCKS = DataKey(
    "prefix-blocks",
    PrefixBlocks,
    Scope.REQUEST,
    doc="The blocks of the request's prompt: how many, of what size.",
    default_producer="approx-prefix-cache-producer",
)
