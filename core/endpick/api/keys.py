"""endpick's own data keys: reports of model servers, and results of built-in producers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from endpick.api.data import DataKey, Scope
from endpick.api.endpoint import Endpoint
from endpick.api.request import Modality

_METRICS = "core-metrics-extractor"


@dataclass(frozen=True, slots=True)
class LoraAdapters:
    """The LoRA adapters of one model server; the value of `LORA_ADAPTERS`.

    Attributes:
        running: Adapters of running requests.
        waiting: Adapters of waiting requests.
        max_adapters: Number of adapters that fit at once; 0 if unknown.
    """

    running: frozenset[str] = frozenset()
    waiting: frozenset[str] = frozenset()
    max_adapters: int = 0


WAITING_QUEUE_SIZE = DataKey(
    "waiting-queue-size",
    float,
    doc="Requests in the model server's queue (count).",
    default_producer=_METRICS,
)
RUNNING_REQUESTS_SIZE = DataKey(
    "running-requests-size",
    float,
    doc="Requests the model server is processing (count).",
    default_producer=_METRICS,
)
KV_CACHE_USAGE = DataKey("kv-cache-usage", float, doc="Share of the KV cache in use (0 to 1).", default_producer=_METRICS)
CACHE_BLOCK_SIZE = DataKey("cache-block-size", float, doc="Tokens per KV-cache block.", default_producer=_METRICS)
CACHE_NUM_BLOCKS = DataKey("cache-num-blocks", float, doc="KV-cache blocks of the engine (count).", default_producer=_METRICS)
GPU_UTILIZATION = DataKey(
    "GPUUtilization",
    float,
    doc="Utilization of the endpoint's busiest GPU (0 to 1).",
    default_producer="dcgm-extractor",
)
LORA_ADAPTERS = DataKey("lora-adapters", LoraAdapters, doc="LoRA adapters running and waiting, and the maximum.", default_producer=_METRICS)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One entry of a model server's `/v1/models`; an item of `SERVED_MODELS`.

    Attributes:
        id: Name of the model or the LoRA adapter.
        parent: Base model of a LoRA adapter; else empty.
    """

    id: str
    parent: str = ""


SERVED_MODELS: DataKey[tuple[ServedModel, ...]] = DataKey(
    "served-models",
    tuple,
    doc="Models and LoRA adapters the server lists, in its order.",
    default_producer="models-data-extractor",
)

INFLIGHT_REQUESTS = DataKey(
    "inflight-requests",
    float,
    doc="Requests from this picker to the endpoint that have not ended (count).",
    default_producer="inflight-load-producer",
)
UNCACHED_REQUEST_TOKENS = DataKey(
    "uncached-request-tokens",
    float,
    Scope.CANDIDATE,
    doc="Prompt tokens of this request the endpoint has probably not cached (count).",
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
    doc="Leading prompt blocks probably in the endpoint's prefix cache (count).",
    default_producer="approx-prefix-cache-producer",
)


@dataclass(frozen=True, slots=True)
class PrefixBlocks:
    """The blocks of a request's prompts, for prefix matching; the value of `PREFIX_BLOCKS`.

    Attributes:
        total_blocks: Number of blocks of all prompts.
        block_size_tokens: Tokens per block; the last one may have fewer.
        hashes: One per block, chained: equal hashes mean equal prompts up to that block.
        fingerprints: Without `hashes`: 8 bytes for each block of each prompt, equal for equal blocks as long as the process runs.
    """

    total_blocks: int
    block_size_tokens: int
    hashes: Sequence[int] = field(default=(), repr=False)
    fingerprints: Sequence[bytes] = field(default=(), repr=False)

    def identities(self) -> bytes:
        """Return 8 bytes for each block, for decision records.

        Two prompts are equal up to a block if all bytes up to there are.
        """
        if self.fingerprints:
            return b"".join(self.fingerprints)
        return b"".join([(each & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(8, "little") for each in self.hashes])


PREFIX_BLOCKS = DataKey(
    "prefix-blocks",
    PrefixBlocks,
    Scope.REQUEST,
    doc="The blocks of the request's prompt.",
    default_producer="approx-prefix-cache-producer",
)

_PRECISE = "precise-prefix-cache-producer"
PREFIX_CACHED_BLOCKS = DataKey(
    "prefix-cached-blocks",
    float,
    Scope.CANDIDATE,
    doc="Leading prompt blocks the engine reports as cached, in any memory tier (count).",
    default_producer=_PRECISE,
)
PREFIX_HOST_BLOCKS = DataKey(
    "prefix-host-blocks",
    float,
    Scope.CANDIDATE,
    doc="Cached leading blocks outside device memory, such as in CPU memory (count).",
    default_producer=_PRECISE,
)
PREFIX_MATCH_SHARE = DataKey(
    "prefix-match-share",
    float,
    Scope.CANDIDATE,
    doc="Share of the prompt's blocks the engine reports as cached, weighted by memory tier (0 to 1).",
    default_producer=_PRECISE,
)


@dataclass(frozen=True, slots=True)
class MediaPlace:
    """A media item among the tokens of a prompt, in `PromptTokens.media`.

    Attributes:
        modality: Image, video or audio.
        identifier: Equal for equal content.
        offset: Index of its first token.
        length: Number of its tokens.
    """

    modality: Modality
    identifier: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """One prompt as tokens; an item of `TOKENIZED_PROMPT`.

    Attributes:
        token_ids: uint32, shape `(tokens,)`, read-only.
        media: Media items, in order of their offsets.
    """

    token_ids: npt.NDArray[np.uint32]
    media: tuple[MediaPlace, ...] = ()


TOKENIZED_PROMPT: DataKey[tuple[PromptTokens, ...]] = DataKey(
    "tokenized-prompt",
    tuple,
    Scope.REQUEST,
    doc="The request's prompts as token ids; without a tokenizer, four bytes of text each.",
    default_producer="token-producer",
    has_substitute=True,  # `Prompt.estimated_tokens`
)
SESSION_ID = DataKey(
    "session-id",
    str,
    Scope.REQUEST,
    doc="The client session from a header or cookie.",
    default_producer="session-id-producer",
)
AGENT_IDENTITY = DataKey(
    "agent-identity",
    str,
    Scope.REQUEST,
    doc="The coding-agent session from a header.",
)
PEER_ENDPOINT = DataKey(
    "peer-endpoint",
    Endpoint,
    Scope.REQUEST,
    doc="The endpoint picked for an earlier stage of a disaggregated request.",
)


@dataclass(frozen=True, slots=True)
class Topology:
    """The location of an endpoint, the value of `TOPOLOGY`; empty strings if unknown."""

    hostname: str = ""
    rack: str = ""
    zone: str = ""
    region: str = ""


TOPOLOGY = DataKey("topology", Topology, doc="Host, rack, zone and region of the endpoint.", default_producer="topology-extractor")

_PREDICTOR = "predicted-latency-producer"
PREDICTED_TTFT = DataKey(
    "predicted-ttft",
    float,
    Scope.CANDIDATE,
    doc="Predicted time to first token (seconds).",
    default_producer=_PREDICTOR,
)
PREDICTED_TPOT = DataKey(
    "predicted-tpot",
    float,
    Scope.CANDIDATE,
    doc="Predicted time per output token (seconds).",
    default_producer=_PREDICTOR,
)
TTFT_HEADROOM = DataKey(
    "ttft-headroom",
    float,
    Scope.CANDIDATE,
    doc="Time-to-first-token SLO minus prediction (seconds; negative if it would be missed).",
    default_producer=_PREDICTOR,
)
TPOT_HEADROOM = DataKey(
    "tpot-headroom",
    float,
    Scope.CANDIDATE,
    doc="Time-per-output-token SLO minus prediction (seconds; negative if it would be missed).",
    default_producer=_PREDICTOR,
)

_ENCODER_CACHE = "mm-embeddings-cache-producer"
MEDIA_ITEMS = DataKey(
    "media-items",
    int,
    Scope.REQUEST,
    doc="Distinct media items in the request (count).",
    default=0,
    default_producer=_ENCODER_CACHE,
)
MEDIA_MATCHED = DataKey(
    "media-matched",
    float,
    Scope.CANDIDATE,
    doc="Media items whose embeddings the endpoint has probably cached (count).",
    default_producer=_ENCODER_CACHE,
)


@dataclass(frozen=True, slots=True)
class TTFTPercentiles:
    """Observed times to first token of one endpoint, the value of `TTFT_PERCENTILES`.

    `latency-observer-producer-hub` documents how it computes them.

    Attributes:
        floor: Without load, from the long history (seconds); 0 until it has an entry.
        window_floor: P10 of the recent requests (seconds).
        low_load: At the low percentile (seconds), with `inflight_at_low_load` requests in flight.
        typical_load: At the typical percentile (seconds), with `inflight_at_typical_load` requests in flight.
        inflight_at_low_load: Mean requests in flight around the low percentile (count).
        inflight_at_typical_load: Mean requests in flight around the typical percentile (count).
        recent: Recent requests (count).
        observations: Requests so far (count).
        threshold: Requests from which the numbers are trusted (count).
    """

    floor: float = 0.0
    window_floor: float = 0.0
    low_load: float = 0.0
    typical_load: float = 0.0
    inflight_at_low_load: float = 0.0
    inflight_at_typical_load: float = 0.0
    recent: int = 0
    observations: int = 0
    threshold: int = 0

    @property
    def trusted_floor(self) -> float:
        """The floor in seconds, or `window_floor` if it is 0; 0 below the threshold."""
        return 0.0 if self.observations < self.threshold else self.floor or self.window_floor


TTFT_PERCENTILES = DataKey(
    "ttft-percentiles",
    TTFTPercentiles,
    doc="Times to first token as the picker observed them.",
    default_producer="latency-observer-producer-hub",
)


class OutputLength(StrEnum):
    """The expected length of a response, the value of `OUTPUT_LENGTH`."""

    LONG = "LONG"
    SHORT = "SHORT"
    UNKNOWN = "UNKNOWN"


OUTPUT_LENGTH = DataKey("outlen-bucket", OutputLength, Scope.REQUEST, doc="Expected length of the response: LONG, SHORT or UNKNOWN.")


@dataclass(frozen=True, slots=True)
class SessionState:
    """An agent session before the current request, the value of `SESSION_STATE`.

    Attributes:
        turns_taken: Requests sent so far (count).
        duration_seconds: Since the first request.
        last_seen_at: Seconds of `PluginContext.clock` at the previous request.
        in_flight_requests: Requests without an end yet (count).
        completed_requests: Responses that ended naturally (count).
        total_input_tokens: Prompt tokens of completed requests (count).
        total_output_tokens: Completion tokens of completed requests (count).
    """

    turns_taken: int = 0
    duration_seconds: float = 0.0
    last_seen_at: float = 0.0
    in_flight_requests: int = 0
    completed_requests: int = 0
    total_input_tokens: int = 0
    total_output_tokens: int = 0


SESSION_STATE = DataKey(
    "session-state",
    SessionState,
    Scope.REQUEST,
    doc="What the agent session of the request did so far.",
    default_producer="session-state-producer",
)

MULTICLUSTER_QUEUE_SIZE = DataKey(
    "llm-d.ai/multicluster-queue-size",
    float,
    doc="Mean queue length of the model servers in a remote cluster (count).",
)
MULTICLUSTER_KV_CACHE_USAGE = DataKey(
    "llm-d.ai/multicluster-kv-cache-utilization",
    float,
    doc="Mean KV-cache usage of the model servers in a remote cluster (0 to 1).",
)


class HealthState(StrEnum):
    """The amount of traffic that an endpoint deserves, decided by `endpoint-health`."""

    HEALTHY = "healthy"
    """The endpoint serves without restriction."""
    DEGRADED = "degraded"
    """Something is wrong, but the endpoint may serve: one request at a time."""
    EJECTED = "ejected"
    """The endpoint gets no request until its ejection ends."""
    PROBING = "probing"
    """One trial request decides if the endpoint is healthy or ejected again."""


@dataclass(frozen=True, slots=True)
class EndpointHealth:
    """The health of one endpoint, the value of `ENDPOINT_HEALTH`.

    Attributes:
        state: The amount of traffic that it deserves.
        reason: Why it is not healthy; else empty.
        since_seconds: Time of `PluginContext.clock` at which the state began.
        ejections: By which its next ejection is prolonged (count).
        failures: Recent failures that count (count).
        first_token_seconds: Median time to first token of recent requests; None before there are enough.
    """

    state: HealthState
    reason: str = ""
    since_seconds: float = 0.0
    ejections: int = 0
    failures: int = 0
    first_token_seconds: float | None = None


ENDPOINT_HEALTH = DataKey(
    "endpoint-health",
    EndpointHealth,
    doc="Health of the endpoint, as its answers, its silence and its metrics page show it.",
    default_producer="endpoint-health",
)
