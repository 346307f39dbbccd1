"""What model servers say of their KV caches, read from the bytes of a message.

vLLM and SGLang publish MessagePack: `[time, [event, …], rank]`. An event was an array of fields until June 2026 and is a map since; both
are read. Whatever is wrong with one event leaves the others of its message alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from endpick_builtin.producers.precise.block_keys import Tokens
from endpick_builtin.producers.precise.tier_index import DEFAULT_TIER

MAX_EVENTS = 100_000
"""Events of one message; a step of an engine has some dozens."""


class UnreadableError(ValueError):
    """These bytes, or this event, are not what an engine would send; the message says why."""


class TooManyEventsError(UnreadableError):
    """A message has more than `MAX_EVENTS`."""


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """Blocks are in a cache.

    Attributes:
        hashes: The engine's own, one for each block.
        parent: The engine's hash of the block before the first; None at the beginning of a prompt.
        tokens: Of all blocks, shape `(blocks * block_size,)`; empty when the engine says no more than that known blocks are in one more
            tier.
        block_size: Tokens per block.
        tier: Kind of memory, in lower case.
        adapter: LoRA adapter they were computed with; empty for the base model.
        extras: For each block what makes it differ beside tokens and adapter; empty where none has any.
        group: Which of the groups of a hybrid cache.
        cache_kind: What sort of attention the group serves; empty where the engine does not say.
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
    """Blocks are no longer in a tier of a cache."""

    hashes: tuple[int, ...]
    tier: str
    group: int


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """The cache is empty."""


KvEvent: TypeAlias = BlocksStored | BlocksRemoved | AllBlocksCleared


@dataclass(frozen=True, slots=True)
class Batch:
    """One message.

    Attributes:
        time: The engine's clock, in seconds.
        events: Those that could be read, in their order.
        unknown: Events of a type that is not known.
        garbage: Events of a known type that could not be read, and what passed for events and is none.
    """

    time: float
    events: tuple[KvEvent, ...]
    unknown: int = 0
    garbage: int = 0


_STORED = (
    "type",
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
)
_REMOVED = ("type", "block_hashes", "medium", "group_idx")
_CLEARED = ("type",)


def read_batch(document: object) -> Batch:
    """A message whose MessagePack has been decoded.

    Raises:
        UnreadableError: it is no batch at all, or, as a `TooManyEventsError`, one of more events than are read.
    """
    if not isinstance(document, list) or len(document) < 2 or not isinstance(document[1], list):
        raise UnreadableError("a message is [time, [event, …], rank]")
    time, raw = document[0], document[1]
    if isinstance(time, bool) or not isinstance(time, int | float) or time != time:
        raise UnreadableError("a message begins with its time")
    if len(raw) > MAX_EVENTS:
        raise TooManyEventsError(f"a message of {len(raw)} events is longer than any engine's")
    events: list[KvEvent] = []
    unknown = garbage = 0
    for one in raw:
        try:
            name = _name(one)
            read = _READERS.get(name)
            if read is None:
                unknown += 1
            else:
                events.append(read[1](_fields(one, read[0])))
        except (UnreadableError, OverflowError, TypeError, ValueError):
            garbage += 1
    return Batch(float(time), tuple(events), unknown, garbage)


def _name(event: object) -> str:
    name = event.get("type") if isinstance(event, dict) else event[0] if isinstance(event, list) and event else None
    if not isinstance(name, str):
        raise UnreadableError("an event begins with its type")
    return name


def _fields(event: object, names: Sequence[str]) -> Mapping[str, object]:
    return event if isinstance(event, dict) else dict(zip(names, event, strict=False))  # type: ignore[call-overload]


def _stored(fields: Mapping[str, object]) -> BlocksStored:
    hashes, block_size = _hashes(fields), fields.get("block_size")
    tokens = fields.get("token_ids")
    if type(block_size) is not int or block_size < 1:
        raise UnreadableError("a block has at least one token")
    array = np.array([] if tokens is None else tokens, dtype=np.uint32)
    if array.ndim != 1 or (len(array) and len(array) != len(hashes) * block_size):
        raise UnreadableError("the tokens fill the blocks")
    parent, adapter = fields.get("parent_block_hash"), fields.get("lora_name")
    if adapter is not None and not isinstance(adapter, str):
        raise UnreadableError("the name of an adapter is a string")
    kind = fields.get("kv_cache_spec_kind")
    return BlocksStored(
        hashes,
        None if parent is None else _hash(parent),
        array,
        block_size,
        _tier(fields),
        adapter or "",
        _extras(fields.get("extra_keys"), len(hashes), adapter or ""),
        _group(fields),
        kind.lower() if isinstance(kind, str) else "",
    )


def _removed(fields: Mapping[str, object]) -> BlocksRemoved:
    return BlocksRemoved(_hashes(fields), _tier(fields), _group(fields))


def _cleared(_: Mapping[str, object]) -> AllBlocksCleared:
    return AllBlocksCleared()


_READERS: Mapping[str, tuple[Sequence[str], Callable[[Mapping[str, object]], KvEvent]]] = {
    "BlockStored": (_STORED, _stored),
    "BlockRemoved": (_REMOVED, _removed),
    "AllBlocksCleared": (_CLEARED, _cleared),
}


def _hashes(fields: Mapping[str, object]) -> tuple[int, ...]:
    hashes = fields.get("block_hashes")
    if not isinstance(hashes, list):
        raise UnreadableError("the hashes of blocks are a list")
    return tuple(map(_hash, hashes))


def _hash(value: object) -> int:
    """A number of 64 bits, whose sign is no matter, or the last 8 of more bytes."""
    if type(value) is int:
        return value & 0xFFFFFFFFFFFFFFFF
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise UnreadableError("the hash of a block is a number or bytes")


def _tier(fields: Mapping[str, object]) -> str:
    medium = fields.get("medium")
    if medium is not None and not isinstance(medium, str):
        raise UnreadableError("a medium is a string")
    return medium.lower() if medium else DEFAULT_TIER


def _group(fields: Mapping[str, object]) -> int:
    group = fields.get("group_idx")
    if group is None:
        return 0
    if type(group) is not int:
        raise UnreadableError("a group is a number")
    return group


def _extras(value: object, blocks: int, adapter: str) -> tuple[tuple[str, ...], ...]:
    """What identifies media and salts; the adapter, which vLLM names here as well, has a field of its own."""
    if not isinstance(value, list) or not any(value):
        return ()
    if len(value) != blocks:
        raise UnreadableError("each block has its extra keys")
    found = tuple(tuple(_extra(one) for one in keys or () if not (adapter and one == adapter)) for keys in value)
    return found if any(found) else ()


def _extra(value: object) -> str:
    """An identifier, or one with the place where it stands."""
    if isinstance(value, list) and value:
        value = value[0]
    if isinstance(value, bytes):
        return value.hex()
    if not isinstance(value, str):
        raise UnreadableError("an extra key is a string")
    return value
