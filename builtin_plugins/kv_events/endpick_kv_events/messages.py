"""Decodes KV-event messages, MessagePack `[timestamp, [event, …], rank]`, and finds their publishers.

vLLM sends events as maps with a `type` since June 2026, and as arrays before, like SGLang.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp
import msgspec
import numpy as np

from endpick.api import Endpoint
from endpick_builtin.producers.json_service import read_limited
from endpick_kv_events.block_index import DEFAULT_TIER, Tokens

_Hash: TypeAlias = int | bytes
_64_BITS = 0xFFFFFFFFFFFFFFFF
MAX_EXTRA_KEYS = 64  # of a block
MAX_EXTRA_LENGTH = 1024


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks were added to a cache.

    `hashes` are the engine's, one per block; `parent` precedes them, None at the beginning of a prompt. `tokens` has shape
    `(blocks * block_size,)`, or is empty if known blocks were copied to another tier. `extras` has media and salts per block, or is empty.
    `group` and `cache_kind` are index and attention type of a hybrid model's cache group.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: Tokens
    block_size: int
    tier: str
    adapter: str
    extras: tuple[tuple[str, ...], ...]
    group: int
    cache_kind: str


@dataclass(frozen=True, slots=True)
class BlocksRemoved:
    """Blocks were evicted from one tier of a cache."""

    hashes: tuple[int, ...]
    tier: str
    group: int


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """All blocks were removed, because the cache was reset."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class Batch:
    """One decoded message; `undecodable` events were unknown or malformed."""

    time: float
    events: Sequence[KvEvent]
    undecodable: int = 0


class _Stored(msgspec.Struct):
    block_hashes: list[_Hash]
    parent_block_hash: _Hash | None = None
    token_ids: list[int] | None = None
    block_size: int = 0
    lora_id: int | None = None
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: list[list[Any] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None

    def event(self) -> BlocksStored:
        tokens, blocks, adapter = self.token_ids or [], len(self.block_hashes), self.lora_name or ""
        if self.block_size < 1 or (tokens and len(tokens) != blocks * self.block_size):
            raise ValueError(f"{len(tokens)} tokens do not fill {blocks} blocks of {self.block_size}")
        extras: tuple[tuple[str, ...], ...] = ()
        if self.extra_keys and any(self.extra_keys):
            if len(self.extra_keys) != blocks:
                raise ValueError(f"{len(self.extra_keys)} lists of extra keys for {blocks} blocks")
            extras = tuple(_extras(keys or (), adapter) for keys in self.extra_keys)
        return BlocksStored(
            tuple(map(_hash, self.block_hashes)),
            None if self.parent_block_hash is None else _hash(self.parent_block_hash),
            np.array(tokens, dtype=np.uint32),
            self.block_size,
            _tier(self.medium),
            adapter,
            extras if any(extras) else (),
            self.group_idx or 0,
            (self.kv_cache_spec_kind or "").lower(),
        )


class _Removed(msgspec.Struct):
    block_hashes: list[_Hash]
    medium: str | None = None
    group_idx: int | None = None

    def event(self) -> BlocksRemoved:
        return BlocksRemoved(tuple(map(_hash, self.block_hashes)), _tier(self.medium), self.group_idx or 0)


class _Cleared(msgspec.Struct):
    def event(self) -> AllBlocksCleared:
        return AllBlocksCleared()


class _StoredMap(_Stored, tag="BlockStored"):
    pass


class _RemovedMap(_Removed, tag="BlockRemoved"):
    pass


class _ClearedMap(_Cleared, tag="AllBlocksCleared"):
    pass


class _StoredArray(_Stored, tag="BlockStored", array_like=True):
    pass


class _RemovedArray(_Removed, tag="BlockRemoved", array_like=True):
    pass


class _ClearedArray(_Cleared, tag="AllBlocksCleared", array_like=True):
    pass


class _Message(msgspec.Struct, array_like=True):
    time: float
    events: list[msgspec.Raw]


_MESSAGE = msgspec.msgpack.Decoder(_Message)
_MAP = msgspec.msgpack.Decoder(_StoredMap | _RemovedMap | _ClearedMap)
_ARRAY = msgspec.msgpack.Decoder(_StoredArray | _RemovedArray | _ClearedArray)


def decode(payload: bytes) -> Batch:
    """Decode a message, skipping undecodable events; raises msgspec.DecodeError if it is not a message."""
    message = _MESSAGE.decode(payload)
    events: list[KvEvent] = []
    for raw in message.events:
        try:
            events.append((_MAP if _is_map(raw) else _ARRAY).decode(raw).event())
        except (ValueError, OverflowError):  # DecodeError is a ValueError
            continue
    return Batch(message.time, events, len(message.events) - len(events))


def _is_map(raw: msgspec.Raw) -> bool:
    first = memoryview(raw)[0]
    return first & 0xF0 == 0x80 or first in (0xDE, 0xDF)


def _hash(value: _Hash) -> int:
    """Return the low 64 bits, so that signed and unsigned integers and bytes agree."""
    return (int.from_bytes(value[-8:], "big") if isinstance(value, bytes) else value) & _64_BITS


def _tier(medium: str | None) -> str:
    return (medium or DEFAULT_TIER).lower()


def _extras(keys: Sequence[Any], adapter: str) -> tuple[str, ...]:
    """Return media and salts, without the adapter's name, which vLLM repeats here."""
    if len(keys) > MAX_EXTRA_KEYS:
        raise ValueError(f"{len(keys)} extra keys of a block")
    return tuple(_extra(key) for key in keys if not (adapter and key == adapter))


def _extra(key: object) -> str:
    if isinstance(key, list):
        key = key[0] if key else None
    if isinstance(key, bytes):
        key = key.hex()
    if not isinstance(key, str) or len(key) > MAX_EXTRA_LENGTH:
        raise ValueError(f"extra key {key!r:.40} is not a string, or too long")
    return key


PATH = "/kv_event_sources"
TRIES = 12
PAUSE_SECONDS = 5.0
_TIMEOUT = aiohttp.ClientTimeout(total=2.0)
_MAX_ANSWER_BYTES = 1024 * 1024
_WILDCARD = re.compile(r"^(tcp://)(\*|0\.0\.0\.0|\[::\])(:\d+)$")


@dataclass(frozen=True, slots=True)
class EventSource:
    """ZeroMQ addresses of one publisher; `replay` may be empty."""

    events: str
    replay: str = ""


class _Rank(msgspec.Struct):
    endpoint: str
    replay_endpoint: str | None = None


_DECODER = msgspec.json.Decoder(dict[str, _Rank])


async def find_source(session: aiohttp.ClientSession, endpoint: Endpoint, rank: int) -> EventSource | None:
    """Ask `GET /kv_event_sources` (vLLM since 2026); returns None without an answer within a minute."""
    for attempt in range(TRIES):
        if attempt:
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            async with session.get(f"http://{endpoint.address}{PATH}", timeout=_TIMEOUT) as response:
                if response.status == 404:
                    return None
                if response.status == 200:
                    return source_of(await read_limited(response, _MAX_ANSWER_BYTES), endpoint, rank)
        except (aiohttp.ClientError, OSError, ValueError):
            continue
    return None


def source_of(answer: bytes, endpoint: Endpoint, rank: int) -> EventSource | None:
    """Return one rank's entry in an answer; a single entry counts for any rank."""
    try:
        ranks = _DECODER.decode(answer)
    except msgspec.DecodeError:
        return None
    found = next(iter(ranks.values())) if len(ranks) == 1 else ranks.get(str(rank))
    if found is None or not found.endpoint.startswith("tcp://"):
        return None
    replay = found.replay_endpoint or ""
    return EventSource(_reachable(endpoint, found.endpoint), _reachable(endpoint, replay) if replay.startswith("tcp://") else "")


def _reachable(endpoint: Endpoint, address: str) -> str:
    return _WILDCARD.sub(lambda found: f"{found[1]}{bracketed(endpoint.host)}{found[3]}", address)


def bracketed(host: str) -> str:
    """Return the host as it stands in a URL, with brackets around an IPv6 address."""
    return f"[{host}]" if ":" in host else host
