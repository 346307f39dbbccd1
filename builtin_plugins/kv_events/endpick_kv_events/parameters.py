"""Parameters of the precise prefix cache, as llm-d defines them."""

from __future__ import annotations

import re
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from endpick.api import Duration
from endpick.api.plugin import ignored
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.producers.self_check import SELF_CHECK
from endpick_kv_events.block_index import HashAlgorithm

DEFAULT_BLOCK_SIZE = 16
BYTES_PER_BLOCK = 320  # measured memory of one endpoint's block, rounded up
_SIZE = r"([0-9]+(?:\.[0-9]+)?) ?(B|[KMG]i?B)"
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_ALL_ENDPOINTS = "remove it; every endpoint of the pool counts"
_IN_MEMORY = "remove it; the index is in the picker's memory"


class TokenProcessorParameters(CamelParameters):
    """Sets how prompts are split into blocks, and how blocks get their keys."""

    block_size_tokens: Annotated[int, Field(ge=0, description=f"Tokens per block; 0 uses blockSize, or {DEFAULT_BLOCK_SIZE}.")] = 0
    block_size: Annotated[int, Field(ge=0, deprecated=True, description="Former name of `blockSizeTokens`.")] = 0
    hash_seed: Annotated[str, Field(description="Seed of the block keys; engines need not use the same.")] = ""
    hash_algorithm: Annotated[HashAlgorithm, Field(description="How block keys are made; xxh64 finds the same and is 20 times faster.")] = (
        HashAlgorithm.CBOR_FNV
    )

    @property
    def tokens_per_block(self) -> int:
        return self.block_size_tokens or self.__dict__["block_size"] or DEFAULT_BLOCK_SIZE


class InMemoryParameters(CamelParameters):
    """An index bounded by its number of blocks."""

    size: Annotated[int, Field(gt=0, description="Maximum number of blocks per endpoint.")] = 10_000_000
    pod_cache_size: Annotated[int, ignored("podCacheSize", "remove it; any number of endpoints may hold a block")] = 10


class CostAwareParameters(CamelParameters):
    """An index bounded by its memory."""

    size: Annotated[str, Field(pattern=f"^{_SIZE}$", description=f"Maximum memory per endpoint, at {BYTES_PER_BLOCK} bytes a block.")] = (
        "2GiB"
    )


class RedisParameters(CamelParameters):
    """An index in another process."""

    address: Annotated[str, Field(description="Address of the server.")] = ""


class BlockIndexParameters(CamelParameters):
    """Size of the index; `costAwareMemoryConfig` takes precedence."""

    in_memory: Annotated[InMemoryParameters, Field(alias="inMemoryConfig", description="Bounded by blocks.")] = InMemoryParameters()
    cost_aware: Annotated[
        CostAwareParameters | None, Field(alias="costAwareMemoryConfig", description="Bounded by memory; null: by blocks.")
    ] = None
    redis: Annotated[RedisParameters | None, ignored("redisConfig", _IN_MEMORY)] = None
    valkey: Annotated[RedisParameters | None, ignored("valkeyConfig", _IN_MEMORY)] = None
    enable_metrics: Annotated[bool, Field(description="Has no effect: metrics are always exported.")] = False
    metrics_logging_interval: Annotated[Duration | int, ignored("metricsLoggingInterval", "remove it; `/metrics` shows them")] = 0
    max_prefix_blocks_to_match: Annotated[int | None, ignored("maxPrefixBlocksToMatch", "remove it; prompts are looked at in full")] = None

    @property
    def blocks_per_endpoint(self) -> int:
        if self.cost_aware is None:
            return self.in_memory.size
        number, unit = re.fullmatch(_SIZE, self.cost_aware.size).groups()  # type: ignore[union-attr]
        return max(int(float(number) * _UNITS[unit]) // BYTES_PER_BLOCK, 1)


class TierParameters(CamelParameters):
    """Sets the weight of blocks in one memory tier."""

    name: Annotated[str, Field(min_length=1, description="Name of the tier in events, in any case.")]
    weight: Annotated[float, Field(ge=0.0, le=1.0, description="Weight of a block, relative to one in device memory.")]


_TIERS = (TierParameters(name="gpu", weight=1.0), TierParameters(name="cpu", weight=0.8))


class IndexerParameters(CamelParameters):
    """Sets the size of the block index, and the weights of its tiers."""

    block_index: Annotated[BlockIndexParameters, Field(alias="kvBlockIndexConfig", description="Size of the index.")] = (
        BlockIndexParameters()
    )
    tiers: Annotated[
        tuple[TierParameters, ...], Field(alias="kvCacheBackendConfigs", description="Block weights by tier; unlisted tiers weigh 1.")
    ] = _TIERS
    token_processor: Annotated[
        TokenProcessorParameters | None,
        ignored("tokenProcessorConfig", "give `tokenProcessorConfig` beside `indexerConfig`, not in it"),
    ] = None
    tokenizers_pool: Annotated[
        JsonValue, ignored("tokenizersPoolConfig", "define a `token-producer` with `modelName` and `vllm`, which makes the tokens")
    ] = None

    @property
    def weights(self) -> dict[str, float]:
        return {tier.name.lower(): tier.weight for tier in self.tiers}


class PodDiscoveryParameters(CamelParameters):
    """Sets the ports of the endpoints' publishers."""

    socket_port: Annotated[int, Field(ge=1, le=65535, description="Port of rank 0's publisher; rank n uses this port plus n.")] = 5557
    replay_socket_port: Annotated[int, Field(ge=0, le=65535, description="Port of rank 0's replay socket, likewise; 0: no replay.")] = 0
    ask_servers: Annotated[bool, Field(description="Ask servers at /kv_event_sources first; the ports are the fallback.")] = False
    pod_label_selector: Annotated[str | None, ignored("podLabelSelector", _ALL_ENDPOINTS)] = None
    pod_namespace: Annotated[str | None, ignored("podNamespace", _ALL_ENDPOINTS)] = None


class KvEventsParameters(CamelParameters):
    """Sets how KV events reach the picker."""

    zmq_endpoint: Annotated[str, Field(description="Address for publishers that connect to the picker, such as tcp://0.0.0.0:5557.")] = ""
    topic_filter: Annotated[str, Field(description="Prefix of the topics to subscribe to.")] = "kv@"
    concurrency: Annotated[int, ignored("concurrency", "remove it; events are read on the event loop")] = 4
    engine_type: Annotated[Literal["vllm", "sglang"], Field(description="Engine of the pool; both are decoded alike.")] = "vllm"
    discover_pods: Annotated[bool, Field(description="Subscribe to each endpoint's publisher.")] = True
    pod_discovery: Annotated[
        PodDiscoveryParameters, Field(alias="podDiscoveryConfig", description="Ports or discovery of the publishers.")
    ] = PodDiscoveryParameters()

    @model_validator(mode="after")
    def _has_usable_address(self) -> Self:
        if self.zmq_endpoint and not re.match(r"(tcp|ipc)://.", self.zmq_endpoint):
            raise ValueError(f"zmqEndpoint '{self.zmq_endpoint}' is no address of ZeroMQ; write for example tcp://0.0.0.0:5557")
        return self

    @property
    def in_use(self) -> bool:
        return bool(self.zmq_endpoint) or self.discover_pods


class PrecisePrefixCacheParameters(CamelParameters):
    """Parameters of `precise-prefix-cache-producer` and `precise-prefix-cache-scorer`."""

    token_processor: Annotated[TokenProcessorParameters, Field(alias="tokenProcessorConfig", description="Blocks and their keys.")] = (
        TokenProcessorParameters()
    )
    indexer: Annotated[IndexerParameters, Field(alias="indexerConfig", description="Size and weights of the index.")] = IndexerParameters()
    kv_events: Annotated[KvEventsParameters, Field(alias="kvEventsConfig", description="Source of the events.")] = KvEventsParameters()
    speculative_indexing: Annotated[bool, Field(description="Count a request's blocks as held from the moment it is sent.")] = False
    speculative_ttl: Annotated[
        Duration, Field(alias="speculativeTTL", gt=0, description="How long speculative blocks count unless the engine confirms them.")
    ] = 2.0
    self_check: SELF_CHECK = True
