"""The limits on what engines may say of their caches, and what the log says when one acts."""

from __future__ import annotations

from endpick.api import Limit
from endpick_builtin.collection.page_limits import PAGE_LIMITS
from endpick_builtin.producers.precise.kv_zmtp import MESSAGE_SECONDS

LONG_MESSAGE = Limit(
    "maxMessageBytes",
    "a publisher was cut off, and is dialled again: a message of KV events was longer than kvEventsConfig.maxMessageBytes, "
    f"did not end within {MESSAGE_SECONDS:g} s, or was none of ZeroMQ; see what publishes there, or raise it",
)
MANY_EVENTS = Limit(
    "maxEvents",
    "KV events were not read: one message has more than kvEventsConfig.maxEvents; see what publishes there, or raise it",
)
MANY_HELD = Limit(
    "maxHeldMessages",
    "KV events were dropped: more messages of a publisher than kvEventsConfig.maxHeldMessages came while those before them were fetched; "
    "see what keeps the replay port, or raise it",
)
MUCH_HELD = Limit(
    "maxHeldBytes",
    "KV events were dropped: messages of all publishers that came while those before them were fetched are longer than "
    "kvEventsConfig.maxHeldBytes; see what keeps the replay ports, or raise it",
)
MANY_SOCKETS = Limit(
    "maxSockets",
    "an endpoint is not listened to for KV events: more sockets than kvEventsConfig.maxSockets, or than three eighths of the limit of "
    "open files; raise what is lower (ulimit -n), or spread the endpoints over several pickers",
)
MANY_REPLAYS = Limit(
    "maxReplays",
    "a replay of KV events waits: as many are under way as kvEventsConfig.maxReplays allows; raise it if catching up takes long",
)
MANY_RESTORED = Limit(
    "maxStoredBlocks",
    "wrong blocks stay in the index: while a request ran its engine stored more than maxStoredBlocks, so which are wrong is unknown; "
    "raise it, or switch selfCheck off if answers take so long",
)
MANY_SPECULATED = Limit(
    "maxSpeculatedBlocks",
    "a prompt was noted in part for speculativeIndexing: no endpoint holds maxSpeculatedBlocks of it; raise it, or the engines' block "
    "size, if prompts are so long",
)
MANY_MADE = Limit(
    "maxNewTokens",
    "of a request some blocks were not looked up: more of its tokens than tokenProcessorConfig.maxNewTokens had not been seen lately, and "
    "keys by cbor-fnv take long to make; hashAlgorithm: xxh64 has no such limit",
)
MANY_TIERS = Limit(
    "maxTiers",
    "blocks were not stored: engines name more kinds of memory than indexerConfig.maxTiers; see what publishes them, or raise it",
)
MANY_BLOCKS = Limit(
    "kvBlockIndexConfig",
    "blocks known for longest were forgotten: an endpoint holds more than kvBlockIndexConfig allows; raise inMemoryConfig.size, "
    "or costAwareMemoryConfig.size",
)
KV_LIMITS = (
    *(LONG_MESSAGE, MANY_EVENTS, MANY_HELD, MUCH_HELD, MANY_SOCKETS, MANY_REPLAYS, MANY_RESTORED),
    *(MANY_SPECULATED, MANY_MADE, MANY_TIERS, MANY_BLOCKS),
    *PAGE_LIMITS,
)
"""All of an instance; pages are those of servers that are asked where they publish."""
