"""The parameters of the precise prefix cache, as llm-d writes them."""

from __future__ import annotations

import re
from enum import StrEnum
from importlib.util import find_spec
from typing import Annotated, Self

from pydantic import Field, JsonValue, model_validator

from endpick.api import Duration, Parameters, ignored
from endpick_builtin.collection.page_limits import ANSWER_BYTES, MAX_PAGE_BYTES
from endpick_builtin.producers.precise.block_keys import HashAlgorithm
from endpick_builtin.producers.precise.engine_blocks import MAX_RESTORED
from endpick_builtin.producers.precise.kv_events import MAX_EVENTS
from endpick_builtin.producers.precise.kv_sockets import MAX_SOCKETS
from endpick_builtin.producers.precise.kv_stream import MAX_HELD, MAX_HELD_BYTES
from endpick_builtin.producers.precise.kv_zmtp import MAX_MESSAGE_BYTES
from endpick_builtin.producers.precise.tier_index import MAX_TIERS
from endpick_builtin.producers.self_check import SELF_CHECK

DEFAULT_BLOCK_SIZE = 16
_NEEDED = ("msgspec",)
BYTES_PER_BLOCK = 320
"""What one block of one endpoint takes in memory, measured and rounded up."""
_SIZE = r"([0-9]+(?:\.[0-9]+)?) ?(B|[KMG]i?B)"
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_ALL_ENDPOINTS = "remove it; every endpoint of the pool counts"
_IN_MEMORY = "remove it; the index is in the picker's memory"


class EngineType(StrEnum):
    """Whose events they are. The fields that are read are the same."""

    VLLM = "vllm"
    SGLANG = "sglang"


class TokenProcessorParameters(Parameters):
    """How prompts are cut into blocks, and blocks get their keys."""

    block_size_tokens: Annotated[
        int, Field(alias="blockSizeTokens", ge=0, description=f"Tokens per block; 0 leaves it to blockSize, or to {DEFAULT_BLOCK_SIZE}.")
    ] = 0
    block_size: Annotated[int, Field(alias="blockSize", ge=0, deprecated=True, description="The former name of `blockSizeTokens`.")] = 0
    hash_seed: Annotated[str, Field(alias="hashSeed", description="Where chains of keys begin; engines need not know it.")] = ""
    hash_algorithm: Annotated[
        HashAlgorithm,
        Field(alias="hashAlgorithm", description="How keys are made; xxh64 takes a twentieth of the time, and finds the same."),
    ] = HashAlgorithm.CBOR_FNV
    max_new_tokens: Annotated[
        int,
        Field(
            alias="maxNewTokens",
            ge=1,
            description="Tokens of one request, not seen lately, whose blocks get keys: by cbor-fnv 32 Ki take 40 ms. By xxh64 all do.",
        ),
    ] = 32 * 1024

    @property
    def tokens_per_block(self) -> int:
        """The block size in effect."""
        return self.block_size_tokens or self.__dict__["block_size"] or DEFAULT_BLOCK_SIZE


class InMemoryParameters(Parameters):
    """An index bounded by its number of blocks."""

    size: Annotated[int, Field(gt=0, description="Blocks to remember for one endpoint at most.")] = 10_000_000
    pod_cache_size: Annotated[int, ignored("podCacheSize", "remove it; any number of endpoints may hold a block")] = 10


class CostAwareParameters(Parameters):
    """An index bounded by its memory."""

    size: Annotated[
        str, Field(pattern=f"^{_SIZE}$", description=f"Memory for the blocks of one endpoint, at {BYTES_PER_BLOCK} bytes a block.")
    ] = "2GiB"


class RedisParameters(Parameters):
    """An index in another process."""

    address: Annotated[str, Field(description="Where it would be.")] = ""


class BlockIndexParameters(Parameters):
    """How much the index remembers; `costAwareMemoryConfig` goes before the others."""

    in_memory: Annotated[InMemoryParameters, Field(alias="inMemoryConfig", description="Bounded by blocks.")] = InMemoryParameters()
    cost_aware: Annotated[
        CostAwareParameters | None, Field(alias="costAwareMemoryConfig", description="Bounded by memory; none: by blocks.")
    ] = None
    redis: Annotated[RedisParameters | None, ignored("redisConfig", _IN_MEMORY)] = None
    valkey: Annotated[RedisParameters | None, ignored("valkeyConfig", _IN_MEMORY)] = None
    enable_metrics: Annotated[bool, Field(alias="enableMetrics", description="The metrics of the index are there in any case.")] = False
    metrics_logging_interval: Annotated[Duration | int, ignored("metricsLoggingInterval", "remove it; `/metrics` shows them")] = 0
    max_prefix_blocks_to_match: Annotated[int | None, ignored("maxPrefixBlocksToMatch", "remove it; prompts are looked at in full")] = None

    @property
    def blocks_per_endpoint(self) -> int:
        """The bound in effect."""
        if self.cost_aware is None:
            return self.in_memory.size
        number, unit = re.fullmatch(_SIZE, self.cost_aware.size).groups()  # type: ignore[union-attr]
        return max(int(float(number) * _UNITS[unit]) // BYTES_PER_BLOCK, 1)


class TierParameters(Parameters):
    """What a block is worth in one kind of memory."""

    name: Annotated[str, Field(min_length=1, description="The tier, as engines call it; capitals do not matter.")]
    weight: Annotated[float, Field(ge=0.0, le=1.0, description="Worth of a block there, beside one in the device's memory.")]


_TIERS = (TierParameters(name="gpu", weight=1.0), TierParameters(name="cpu", weight=0.8))


class IndexerParameters(Parameters):
    """What is remembered, and what it is worth."""

    block_index: Annotated[BlockIndexParameters, Field(alias="kvBlockIndexConfig", description="How much is remembered.")] = (
        BlockIndexParameters()
    )
    tiers: Annotated[
        tuple[TierParameters, ...],
        Field(alias="kvCacheBackendConfigs", description="Worth of a block by tier; 1 for tiers that are not listed."),
    ] = _TIERS
    max_tiers: Annotated[
        int, Field(alias="maxTiers", ge=1, le=64, description="Kinds of memory, of all engines; each costs a look for each block.")
    ] = MAX_TIERS
    token_processor: Annotated[
        TokenProcessorParameters | None,
        ignored("tokenProcessorConfig", "give `tokenProcessorConfig` beside `indexerConfig`, not in it"),
    ] = None
    tokenizers_pool: Annotated[
        JsonValue, ignored("tokenizersPoolConfig", "define a `token-producer` with `modelName` and `vllm`, which makes the tokens")
    ] = None

    @property
    def weights(self) -> dict[str, float]:
        """Worth of a block by tier, in lower case."""
        return {tier.name.lower(): tier.weight for tier in self.tiers}


class PodDiscoveryParameters(Parameters):
    """Where the publisher of each endpoint listens."""

    socket_port: Annotated[
        int, Field(alias="socketPort", ge=1, le=65535, description="Port of the first rank's publisher; the next ones follow.")
    ] = 5557
    replay_socket_port: Annotated[
        int, Field(alias="replaySocketPort", ge=0, le=65535, description="Port where past messages can be had, likewise; 0: nowhere.")
    ] = 0
    ask_servers: Annotated[
        bool,
        Field(alias="askServers", description="Ask servers at /kv_event_sources; the ports above are for those without."),
    ] = False
    max_answer_bytes: ANSWER_BYTES = MAX_PAGE_BYTES
    pod_label_selector: Annotated[str | None, ignored("podLabelSelector", _ALL_ENDPOINTS)] = None
    pod_namespace: Annotated[str | None, ignored("podNamespace", _ALL_ENDPOINTS)] = None


class KvEventsParameters(Parameters):
    """How KV events reach the picker."""

    zmq_endpoint: Annotated[str, Field(alias="zmqEndpoint", description="Listen here for publishers that dial, as tcp://0.0.0.0:5557.")] = (
        ""
    )
    topic_filter: Annotated[str, Field(alias="topicFilter", description="What the topics of messages begin with.")] = "kv@"
    concurrency: Annotated[int, ignored("concurrency", "remove it; events are read on the event loop")] = 4
    engine_type: Annotated[EngineType, Field(alias="engineType", description="Whose events: both are read alike.")] = EngineType.VLLM
    discover_pods: Annotated[bool, Field(alias="discoverPods", description="Dial the publisher of each endpoint.")] = True
    max_replays: Annotated[
        int, Field(alias="maxReplays", ge=1, le=1024, description="Endpoints whose past messages are fetched at once; others wait.")
    ] = 8
    max_message_bytes: Annotated[
        int, Field(alias="maxMessageBytes", ge=1024, description="Longest message of a publisher; one with a longer one is cut off.")
    ] = MAX_MESSAGE_BYTES
    max_events: Annotated[int, Field(alias="maxEvents", ge=1, description="Events of one message; one with more is not read.")] = MAX_EVENTS
    max_held_messages: Annotated[
        int,
        Field(alias="maxHeldMessages", ge=1, description="Messages of one publisher that wait while those before them are fetched."),
    ] = MAX_HELD
    max_held_bytes: Annotated[
        int, Field(alias="maxHeldBytes", ge=1, description="How long all such messages may be together, of all publishers.")
    ] = MAX_HELD_BYTES
    max_sockets: Annotated[
        int,
        Field(
            alias="maxSockets", ge=1, description="Sockets for publishers and replays; at most three eighths of the limit of open files."
        ),
    ] = MAX_SOCKETS
    pod_discovery: Annotated[
        PodDiscoveryParameters, Field(alias="podDiscoveryConfig", description="Ports of the endpoints' publishers.")
    ] = PodDiscoveryParameters()

    @model_validator(mode="after")
    def _has_what_it_needs(self) -> Self:
        if self.zmq_endpoint and not re.match(r"(tcp|ipc)://.", self.zmq_endpoint):
            raise ValueError(f"zmqEndpoint '{self.zmq_endpoint}' is no address of ZeroMQ; write for example tcp://0.0.0.0:5557")
        return self

    @property
    def in_use(self) -> bool:
        """Whether there is anything to listen to."""
        return bool(self.zmq_endpoint) or self.discover_pods


class PrecisePrefixCacheParameters(Parameters):
    """What `precise-prefix-cache-producer` and `precise-prefix-cache-scorer` take."""

    token_processor: Annotated[TokenProcessorParameters, Field(alias="tokenProcessorConfig", description="Blocks and their keys.")] = (
        TokenProcessorParameters()
    )
    indexer: Annotated[IndexerParameters, Field(alias="indexerConfig", description="What is remembered.")] = IndexerParameters()
    kv_events: Annotated[KvEventsParameters, Field(alias="kvEventsConfig", description="Where events come from.")] = KvEventsParameters()
    speculative_indexing: Annotated[
        bool, Field(alias="speculativeIndexing", description="Count the blocks of a request as held from the moment that it is sent.")
    ] = False
    speculative_ttl: Annotated[
        Duration, Field(alias="speculativeTTL", gt=0, description="How long they count without the engine's word.")
    ] = 2.0
    max_speculated_blocks: Annotated[
        int,
        Field(alias="maxSpeculatedBlocks", ge=1, description="Blocks of one request that count so, though no endpoint holds them."),
    ] = 2048
    self_check: SELF_CHECK = True
    max_stored_blocks: Annotated[
        int,
        Field(
            alias="maxStoredBlocks", ge=1, description="Blocks that an engine stores while a request runs; selfCheck judges none beyond."
        ),
    ] = MAX_RESTORED

    @model_validator(mode="after")
    def _can_hear(self) -> Self:
        missing = [module for module in _NEEDED if find_spec(module) is None]
        if missing and self.kv_events.in_use:
            raise ValueError(f"KV events need {' and '.join(missing)}, which are not installed: run pip install 'endpick[kv-events]'")
        return self
