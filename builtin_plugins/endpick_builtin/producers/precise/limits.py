"""The limits on what engines may say of their caches, and what the log says when one acts."""

from __future__ import annotations

from endpick.api import Limit
from endpick_builtin.collection.page_limits import PAGE_LIMITS
from endpick_builtin.producers.precise.engine_blocks import MAX_RESTORED
from endpick_builtin.producers.precise.kv_events import MAX_EVENTS
from endpick_builtin.producers.precise.kv_sockets import MAX_SOCKETS
from endpick_builtin.producers.precise.kv_stream import MAX_HELD, MAX_HELD_BYTES
from endpick_builtin.producers.precise.kv_zmtp import MAX_MESSAGE_BYTES, MESSAGE_SECONDS
from endpick_builtin.producers.precise.speculation import MOST_SPECULATED
from endpick_builtin.producers.precise.tier_index import MAX_TIERS

MOST_MADE_BYTES = 128 * 1024
"""Of the blocks of one request whose keys are made anew: 2048 blocks of 16 tokens take 20 ms. The next request finds them made."""
LONG_MESSAGE = Limit(
    "MAX_MESSAGE_BYTES",
    f"a publisher was cut off, and is dialled again: a message of KV events was longer than {MAX_MESSAGE_BYTES // 2**20} MiB "
    f"(MAX_MESSAGE_BYTES, fixed), did not end within {MESSAGE_SECONDS:g} s, or was none of ZeroMQ; see what publishes there",
)
MANY_EVENTS = Limit(
    "MAX_EVENTS", f"KV events were not read: one message has more than {MAX_EVENTS} (MAX_EVENTS, fixed); see what publishes there"
)
MANY_HELD = Limit(
    "MAX_HELD",
    f"KV events were dropped: more than {MAX_HELD} messages of a publisher, or {MAX_HELD_BYTES // 2**20} MiB of all "
    "(MAX_HELD, MAX_HELD_BYTES, fixed), came while those before them were fetched; see what keeps the replay port",
)
MANY_SOCKETS = Limit(
    "MAX_SOCKETS",
    f"an endpoint is not listened to for KV events: more than {MAX_SOCKETS} sockets (MAX_SOCKETS, fixed), or than three eighths of the "
    "limit of open files; raise that limit, or spread the endpoints over several pickers",
)
MANY_REPLAYS = Limit(
    "maxReplays",
    "a replay of KV events waits: as many are under way as kvEventsConfig.maxReplays allows; raise it if catching up takes long",
)
MANY_RESTORED = Limit(
    "MAX_RESTORED",
    f"wrong blocks stay in the index: while a request ran its engine stored more than {MAX_RESTORED} (MAX_RESTORED, fixed), "
    "so which are wrong is unknown; if answers take so long, selfCheck can be switched off",
)
MANY_SPECULATED = Limit(
    "MOST_SPECULATED",
    f"a prompt was noted in part for speculativeIndexing: no endpoint holds {MOST_SPECULATED} blocks of it (MOST_SPECULATED, fixed); "
    "raise the engines' block size if prompts are so long",
)
MANY_MADE = Limit(
    "MOST_MADE_BYTES",
    f"of a request some blocks were not looked up: {MOST_MADE_BYTES // 4096} Ki tokens of it had not been seen lately (MOST_MADE_BYTES, "
    "fixed), and keys by cbor-fnv take long to make; hashAlgorithm: xxh64 has no such limit",
)
MANY_TIERS = Limit(
    "MAX_TIERS", f"blocks were not stored: engines name more than {MAX_TIERS} kinds of memory (MAX_TIERS, fixed); see what publishes them"
)
MANY_BLOCKS = Limit(
    "kvBlockIndexConfig",
    "blocks known for longest were forgotten: an endpoint holds more than kvBlockIndexConfig allows; raise inMemoryConfig.size, "
    "or costAwareMemoryConfig.size",
)
KV_LIMITS = (
    *(LONG_MESSAGE, MANY_EVENTS, MANY_HELD, MANY_SOCKETS, MANY_REPLAYS, MANY_RESTORED, MANY_SPECULATED, MANY_MADE),
    *(MANY_TIERS, MANY_BLOCKS),
    *PAGE_LIMITS,
)
"""All of an instance; pages are those of servers that are asked where they publish."""
