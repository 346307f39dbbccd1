"""What model servers say of their KV caches, read from the bytes of a message.

vLLM and SGLang publish MessagePack: `[time, [event, …], rank]`. An event was an array of fields until June 2026 and is a map since; both
are read. Whatever is wrong with one event leaves the others of its message alone.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from endpick_builtin.producers.precise.block_keys import Tokens
from endpick_builtin.producers.precise.tier_index import DEFAULT_TIER

MAX_EVENTS = 100_000
"""Events of one message, unless the operator says otherwise; a step of an engine has some dozens."""
_MOST_BLOCKS = 65_536
"""Of one event; a step of an engine has some hundred, or some thousand where each token is a block."""
_MOST_EXTRAS = 131_072
"""Of all blocks of one event."""
_MOST_CHARACTERS = 1024
"""Of a name or an extra key, which is remembered for as long as blocks are."""


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
        events: In their order; None for each that could not be used.
        unknown: Events of a type that is not known, where they have been counted.
        garbage: Events of a known type that could not be read, and what passed for events and is none, likewise.
    """

    time: float
    events: Iterable[KvEvent | None]
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
            event = read_event(one)
        except UNREADABLE:
            garbage += 1
        else:
            if event is None:
                unknown += 1
            else:
                events.append(event)
    return Batch(float(time), tuple(events), unknown, garbage)


UNREADABLE = (UnreadableError, OverflowError, TypeError, ValueError)
"""What `read_event` raises."""


def read_event(document: object) -> KvEvent | None:
    """An event that has been decoded; None for one of a type that is not known.

    Raises:
        UnreadableError, OverflowError, TypeError, ValueError: it is none; see `UNREADABLE`.
    """
    read = _READERS.get(_name(document))
    return None if read is None else read[1](_fields(document, read[0]))


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
    if tokens is not None and not isinstance(tokens, list):
        raise UnreadableError("token ids are a list")
    if tokens and len(tokens) != len(hashes) * block_size:
        raise UnreadableError("the tokens fill the blocks")
    parent, kind = fields.get("parent_block_hash"), fields.get("kv_cache_spec_kind")
    adapter = _short(fields.get("lora_name"), "the name of an adapter")
    return BlocksStored(
        hashes,
        None if parent is None else _hash(parent),
        np.frombuffer(array("I", tokens), np.uint32) if tokens else np.empty(0, np.uint32),
        block_size,
        _tier(fields),
        adapter,
        _extras(fields.get("extra_keys"), len(hashes), adapter),
        _group(fields),
        _short(kind, "a kind of cache").lower() if isinstance(kind, str) else "",
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
    if len(hashes) > _MOST_BLOCKS:
        raise UnreadableError(f"an event of {len(hashes)} blocks is longer than any engine's")
    return tuple(map(_hash, hashes))


def _hash(value: object) -> int:
    """A number of 64 bits, whose sign is no matter, or the last 8 of more bytes."""
    if type(value) is int:
        return value & 0xFFFFFFFFFFFFFFFF
    if isinstance(value, bytes) and value:
        return int.from_bytes(value[-8:], "big")
    raise UnreadableError("the hash of a block is a number or bytes")


def _tier(fields: Mapping[str, object]) -> str:
    return _short(fields.get("medium"), "a medium").lower() or DEFAULT_TIER


def _short(value: object, what: str) -> str:
    """A name; empty for none."""
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > _MOST_CHARACTERS:
        raise UnreadableError(f"{what} is a string of {_MOST_CHARACTERS} characters at most")
    return value


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
    if not all(keys is None or isinstance(keys, list) for keys in value) or sum(map(len, filter(None, value))) > _MOST_EXTRAS:
        raise UnreadableError(f"extra keys are lists, of {_MOST_EXTRAS} keys at most")
    found = tuple(tuple(_extra(one) for one in keys or () if not (adapter and one == adapter)) for keys in value)
    return found if any(found) else ()


def _extra(value: object) -> str:
    """An identifier, or one with the place where it stands."""
    if isinstance(value, list) and value:
        value = value[0]
    text = value.hex() if isinstance(value, bytes) else value
    if not isinstance(text, str) or len(text) > _MOST_CHARACTERS:
        raise UnreadableError(f"an extra key is a string of {_MOST_CHARACTERS} characters at most")
    return text
