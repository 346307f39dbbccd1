"""The data keys that endpick defines itself: what model servers report, and what its own producers know of a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from endpick.api.data import DataKey, Scope
from endpick.api.endpoint import Endpoint
from endpick.api.request import Modality

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
GPU_UTILIZATION = DataKey(
    "GPUUtilization",
    float,
    doc="Share of the time in which the endpoint's busiest GPU works (0 to 1).",
    default_producer="dcgm-extractor",
)
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
UNCACHED_REQUEST_TOKENS = DataKey(
    "uncached-request-tokens",
    float,
    Scope.CANDIDATE,
    doc="Prompt tokens of this request that the endpoint has probably not cached, and would have to work on (count).",
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
    """How one request's prompt was cut into blocks for prefix matching.

    Attributes:
        total_blocks: Of all prompts of the request.
        block_size_tokens: Tokens in a block; the last one may have fewer.
        hashes: Of each block, in a chain: two prompts with an equal hash are equal up to that block.
    """

    total_blocks: int
    block_size_tokens: int
    hashes: Sequence[int] = field(default=(), repr=False)


PREFIX_BLOCKS = DataKey(
    "prefix-blocks",
    PrefixBlocks,
    Scope.REQUEST,
    doc="The blocks of the request's prompt: how many, of what size.",
    default_producer="approx-prefix-cache-producer",
)

_PRECISE = "precise-prefix-cache-producer"
PREFIX_CACHED_BLOCKS = DataKey(
    "prefix-cached-blocks",
    float,
    Scope.CANDIDATE,
    doc="Leading blocks of the prompt that the endpoint's engine says it holds, in whatever memory (count).",
    default_producer=_PRECISE,
)
PREFIX_HOST_BLOCKS = DataKey(
    "prefix-host-blocks",
    float,
    Scope.CANDIDATE,
    doc="Of the leading blocks that an endpoint holds, those in memory beside its device's, such as the CPU's (count).",
    default_producer=_PRECISE,
)
PREFIX_MATCH_SHARE = DataKey(
    "prefix-match-share",
    float,
    Scope.CANDIDATE,
    doc="Share of the prompt's blocks that the endpoint's engine says it holds, weighted by tier of memory (0 to 1).",
    default_producer=_PRECISE,
)


@dataclass(frozen=True, slots=True)
class MediaPlace:
    """Where media stand among the tokens of a prompt.

    Attributes:
        modality: What they are.
        identifier: The same for equal content: a hash, in hexadecimal digits, or what the tokenizer's server calls it.
        offset: Position of the first token that stands for them.
        length: How many tokens stand for them.
    """

    modality: Modality
    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """One prompt as tokens.

    Attributes:
        token_ids: Unsigned integers of 32 bits, shape `(tokens,)`; not to be written to.
        media: The media among them, by offset.
    """

    token_ids: npt.NDArray[np.uint32]
    media: tuple[MediaPlace, ...] = ()


TOKENIZED_PROMPT: DataKey[tuple[PromptTokens, ...]] = DataKey(
    "tokenized-prompt",
    tuple,
    Scope.REQUEST,
    doc="The request's prompts as token ids: those of a tokenizer, or four bytes of text each where there is none.",
    default_producer="token-producer",
    has_substitute=True,  # `Prompt.estimated_tokens`
)
SESSION_ID = DataKey(
    "session-id",
    str,
    Scope.REQUEST,
    doc="Which session of a client the request belongs to, as a header or cookie says.",
    default_producer="session-id-producer",
)
AGENT_IDENTITY = DataKey(
    "agent-identity",
    str,
    Scope.REQUEST,
    doc="Which session of a coding agent the request belongs to, as one of its headers says.",
)
PEER_ENDPOINT = DataKey(
    "peer-endpoint",
    Endpoint,
    Scope.REQUEST,
    doc="The endpoint that an earlier stage of a disaggregated request was given.",
)


@dataclass(frozen=True, slots=True)
class Topology:
    """Where an endpoint runs; empty where not known."""

    hostname: str = ""
    rack: str = ""
    zone: str = ""
    region: str = ""


TOPOLOGY = DataKey("topology", Topology, doc="Host, rack, zone and region an endpoint runs in.", default_producer="topology-extractor")

_PREDICTOR = "predicted-latency-producer"
PREDICTED_TTFT = DataKey(
    "predicted-ttft",
    float,
    Scope.CANDIDATE,
    doc="Time to the first token that is expected of the endpoint (seconds).",
    default_producer=_PREDICTOR,
)
PREDICTED_TPOT = DataKey(
    "predicted-tpot",
    float,
    Scope.CANDIDATE,
    doc="Time for each further token that is expected of the endpoint (seconds).",
    default_producer=_PREDICTOR,
)
TTFT_HEADROOM = DataKey(
    "ttft-headroom",
    float,
    Scope.CANDIDATE,
    doc="How far the expected time to the first token stays below what the request asked for (seconds; negative: it does not).",
    default_producer=_PREDICTOR,
)
TPOT_HEADROOM = DataKey(
    "tpot-headroom",
    float,
    Scope.CANDIDATE,
    doc="How far the expected time for each further token stays below what the request asked for (seconds; negative: it does not).",
    default_producer=_PREDICTOR,
)

_ENCODER_CACHE = "mm-embeddings-cache-producer"
MEDIA_ITEMS = DataKey(
    "media-items",
    int,
    Scope.REQUEST,
    doc="Different media in the request's prompts (count).",
    default=0,
    default_producer=_ENCODER_CACHE,
)
MEDIA_MATCHED = DataKey(
    "media-matched",
    float,
    Scope.CANDIDATE,
    doc="Media of the request whose embeddings the endpoint probably holds (count).",
    default_producer=_ENCODER_CACHE,
)

MULTICLUSTER_QUEUE_SIZE = DataKey(
    "llm-d.ai/multicluster-queue-size",
    float,
    doc="Mean queue of the model servers behind an endpoint that stands for a whole cluster (count, 0 or more).",
)
MULTICLUSTER_KV_CACHE_USAGE = DataKey(
    "llm-d.ai/multicluster-kv-cache-utilization",
    float,
    doc="Mean share of the KV cache in use at the model servers behind an endpoint that stands for a whole cluster (0 to 1).",
)
