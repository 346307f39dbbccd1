"""Messages of KV events as they came, read an event at a time and no further than they are asked for.

Two MiB of MessagePack can be two million lists, or a hundred thousand events. To decode such a message as a whole would take the event
loop for a second, and hundreds of MiB. So the message is cut into its events first, which makes nothing of what they hold, and those that
are large are read by a form that has room for numbers, hashes and names alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

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


class _Named(msgspec.Struct):
    type: str


class _Stored(_Named):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None = None
    token_ids: list[int] | None = None
    block_size: int | None = None
    lora_id: msgspec.Raw = _NIL
    medium: str | None = None
    lora_name: str | None = None
    extra_keys: msgspec.Raw = _NIL
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class _Removed(_Named):
    block_hashes: list[int | bytes]
    medium: str | None = None
    group_idx: int | None = None


class _NamedRow(_Named, array_like=True):
    pass


class _StoredRow(_Stored, array_like=True):
    pass


class _RemovedRow(_Removed, array_like=True):
    pass


class WireReader:
    """Reads messages; what of their events cannot be used is told to `bad`, by reason."""

    problems = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnreadableError)
    """What `read` raises."""

    def __init__(self, bad: Callable[[str], None]) -> None:
        decoder = msgspec.msgpack.Decoder
        self._bad = bad
        self._message, self._rows, self._anything = decoder(_Message), decoder(list[msgspec.Raw]), decoder()
        self._names: dict[bool, msgspec.msgpack.Decoder[Any]] = {False: decoder(_NamedRow), True: decoder(_Named)}
        self._large: dict[tuple[str, bool], msgspec.msgpack.Decoder[Any]] = {
            ("BlockStored", False): decoder(_StoredRow),
            ("BlockStored", True): decoder(_Stored),
            ("BlockRemoved", False): decoder(_RemovedRow),
            ("BlockRemoved", True): decoder(_Removed),
        }

    def read(self, payload: bytes) -> Batch:
        """A message, whose events are read when they are asked for.

        Raises:
            msgspec.DecodeError, UnicodeDecodeError, RecursionError, UnreadableError: it is none; see `problems`.
        """
        message = self._message.decode(payload)
        if message.time != message.time:
            raise UnreadableError("a message begins with its time")
        count = _length(bytes(memoryview(message.events)[:5]))
        if count > kv_events.MAX_EVENTS:
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
        decoder = self._large.get((name, is_map))
        if decoder is None:
            return {"type": name}
        event = decoder.decode(raw)
        fields = {field: getattr(event, field) for field in event.__struct_fields__}
        if isinstance(event, _Stored):
            if memoryview(event.extra_keys).nbytes > _MOST_EXTRA_BYTES:
                raise UnreadableError("extra keys are short")
            fields["extra_keys"] = self._anything.decode(event.extra_keys)
        return fields


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
