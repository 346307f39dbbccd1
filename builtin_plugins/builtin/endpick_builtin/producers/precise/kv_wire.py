"""Messages of KV events as they came, read an event at a time and no further than they are asked for.

Two MiB of MessagePack can be two million lists, or a hundred thousand events. To decode such a message as a whole would take the event
loop for a second, and hundreds of MiB. So the message is cut into its events first, which makes nothing of what they hold, and those that
are large are read by a form that has room for numbers, hashes and names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import msgspec

from endpick_builtin.producers.precise import kv_events
from endpick_builtin.producers.precise.kv_events import UNREADABLE, Batch, KvEvent, TooManyEventsError, UnreadableError, read_event

_SMALL_BYTES = 16 * 1024
"""An event of no more is decoded whatever it holds."""
_MOST_EXTRA_BYTES = 512 * 1024
"""Of the extra keys of one event, which may be of any form: for some thousand blocks."""
_NIL = msgspec.Raw(b"\xc0")


class _Message(msgspec.Struct, array_like=True):
    time: float
    events: msgspec.Raw


_HASH: TypeAlias = int | bytes
_NAME = [("type", str)]
_REMOVED = [*_NAME, ("block_hashes", list[_HASH]), ("medium", str | None, None), ("group_idx", int | None, None)]
_STORED = [
    *_NAME,
    ("block_hashes", list[_HASH]),
    ("parent_block_hash", _HASH | None, None),
    ("token_ids", list[int] | None, None),
    ("block_size", int | None, None),
    ("lora_id", msgspec.Raw, _NIL),
    ("medium", str | None, None),
    ("lora_name", str | None, None),
    ("extra_keys", msgspec.Raw, _NIL),
    ("group_idx", int | None, None),
    ("kv_cache_spec_kind", str | None, None),
]
"""The fields of an event, in the order in which an array has them."""


class WireReader:
    """Reads messages; what of their events cannot be used is told to `bad`, by reason."""

    problems = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnreadableError)
    """What `read` raises."""

    def __init__(self, bad: Callable[[str], None], max_events: int = kv_events.MAX_EVENTS) -> None:
        """`max_events` of one message; one with more is not read."""
        decoder = msgspec.msgpack.Decoder
        self._bad, self._max_events = bad, max_events
        self._message, self._rows, self._anything = decoder(_Message), decoder(list[msgspec.Raw]), decoder()
        self._names, self._large = _decoders(_NAME), {"BlockStored": _decoders(_STORED), "BlockRemoved": _decoders(_REMOVED)}

    def read(self, payload: bytes) -> Batch:
        """A message, whose events are read when they are asked for.

        Raises:
            msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnreadableError: it is none; see `problems`.
        """
        message = self._message.decode(payload)
        if message.time != message.time:
            raise UnreadableError("a message begins with its time")
        count = _length(bytes(memoryview(message.events)[:5]))
        if count > self._max_events:
            raise TooManyEventsError(f"a message of {count} events is longer than any engine's")
        return Batch(message.time, _Events(self, self._rows.decode(message.events)))

    def event(self, raw: msgspec.Raw) -> Iterator[KvEvent | None]:
        """One event; None for what cannot be used, which has been told, and in front of a large one, which takes two steps."""
        try:
            document = self._document(raw)
            if memoryview(raw).nbytes > _SMALL_BYTES:
                yield None
            event = read_event(document)
        except (*UNREADABLE, *self.problems):
            self._bad("garbage-event")
            yield None
            return
        if event is None:
            self._bad("unknown-event")
        yield event

    def _document(self, raw: msgspec.Raw) -> object:
        view = memoryview(raw)
        if view.nbytes <= _SMALL_BYTES:
            return self._anything.decode(raw)
        is_map = view[0] & 0xF0 == 0x80 or view[0] in (0xDE, 0xDF)
        name = self._names[is_map].decode(raw).type
        decoders = self._large.get(name)
        if decoders is None:
            return {"type": name}
        event = decoders[is_map].decode(raw)
        fields = {field: getattr(event, field) for field in event.__struct_fields__}
        extras = memoryview(fields.get("extra_keys", _NIL))
        if extras.nbytes > _MOST_EXTRA_BYTES:
            raise UnreadableError("extra keys are short")
        return {**fields, "extra_keys": self._anything.decode(extras)}


def _decoders(fields: Sequence[Any]) -> Sequence[msgspec.msgpack.Decoder[Any]]:
    """Of an event with these fields: as an array, and as a map."""
    return [msgspec.msgpack.Decoder(msgspec.defstruct("Event", fields, array_like=is_row)) for is_row in (True, False)]


class _Events:
    """Those of one message."""

    __slots__ = ("_raw", "_reader")

    def __init__(self, reader: WireReader, raw: Sequence[msgspec.Raw]) -> None:
        self._reader, self._raw = reader, raw

    def __iter__(self) -> Iterator[KvEvent | None]:
        for raw in self._raw:
            yield from self._reader.event(raw)


def _length(head: bytes) -> int:
    """How long a list is, by the bytes that it begins with."""
    kind = head[0]
    if kind & 0xF0 == 0x90:
        return kind & 0x0F
    if kind in (0xDC, 0xDD):
        return int.from_bytes(head[1 : 3 if kind == 0xDC else 5], "big")
    raise UnreadableError("the events of a message are a list")
