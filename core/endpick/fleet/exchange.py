"""Messages between pickers, without sockets."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final

import msgspec

from endpick.api.access import Access
from endpick.api.fleet import LearntState
from endpick.fleet.columns import COLUMNS, SharedColumns
from endpick.host.boundary import Fault, bind
from endpick.host.instance import Instance
from endpick.host.methods import APPLY, DRAIN_DELTAS, ORIGIN_GONE, RESTORE, SNAPSHOT
from endpick.host.telemetry import Telemetry, Throttle

_log = logging.getLogger("endpick.fleet")

FORMAT: Final = 1
HEARTBEAT_SECONDS: Final = 1.0
_SILENT_SECONDS: Final = 1.5
EXPIRY_SECONDS: Final = 3.5  # a picker that is silent for longer has ended
IDLE_SECONDS: Final = 5.0
MAX_MESSAGES: Final = 200  # read from one picker in a second
_WARN_SECONDS: Final = 60.0


class MessageKind(StrEnum):
    """The kind of a message between pickers."""

    DELTAS = "deltas"  # without deltas, a heartbeat
    HELLO = "hello"  # a picker starts or reconnects, and requests a snapshot
    SAVED = "saved"  # the sender's snapshot is in the store, for `to` or for everyone
    BYE = "bye"  # a picker stops


class Message(msgspec.Struct, array_like=True, frozen=True):
    """A message between pickers. Every format begins with the first two fields."""

    format: int
    origin: str
    kind: MessageKind = MessageKind.DELTAS
    sequence: int = 0
    to: str = ""
    deltas: dict[str, bytes] = {}


_UNREADABLE: Final = (msgspec.MsgspecError, ValueError)  # a text that is not UTF-8 is a ValueError
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Message).decode
_decode_fields = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode
encode_snapshot: Final[Callable[[list[tuple[str, bytes]]], bytes]] = _encode
decode_snapshot = msgspec.msgpack.Decoder(list[tuple[str, bytes]]).decode


class _Part:
    __slots__ = ("_next", "_snapshot", "apply", "drain", "origin_gone", "plugin", "restore")

    def __init__(self, instance: Instance, telemetry: Telemetry) -> None:
        state = instance.plugin
        assert isinstance(state, LearntState)

        self.plugin = instance.plugin
        snapshot = bind(instance, SNAPSHOT, telemetry)
        self._snapshot, self._next = snapshot.calling(lambda: iter(state.snapshot())), snapshot.calling(lambda parts: next(parts, None))
        self.restore, self.drain = bind(instance, RESTORE, telemetry), bind(instance, DRAIN_DELTAS, telemetry)
        self.apply, self.origin_gone = bind(instance, APPLY, telemetry), bind(instance, ORIGIN_GONE, telemetry)

    def snapshot(self, access: Access) -> Iterator[bytes]:
        parts = self._snapshot.run(access)
        if not isinstance(parts, Fault):
            while isinstance(part := self._next.run(access, parts), bytes):
                yield part


@dataclass(slots=True)
class _Peer:
    heard_at: float
    sequence: int
    second_began_at: float
    messages: int = 0  # in this second


@dataclass(slots=True)
class FleetCounts:
    """Counts of messages from other pickers."""

    applied: int = 0
    lost: int = 0
    unreadable: int = 0
    flooded: int = 0


class Exchange:
    """Encodes what this picker has learnt, and applies the messages of other pickers."""

    def __init__(self, origin: str, clock: Callable[[], float], telemetry: Telemetry, columns: SharedColumns | None = None) -> None:
        """`origin` is unique to this picker; only workers have `columns`."""
        self.origin = origin
        self._columns = columns
        self.counts = FleetCounts()
        self._clock = clock
        self._telemetry = telemetry
        self._access = Access(None, telemetry.undeclared_access)
        self._warnings = Throttle(clock, _WARN_SECONDS)
        self._parts: dict[str, _Part] = {}
        self._peers: dict[str, _Peer] = {}
        self._sequence = 0
        self._sent_at = self._learnt_at = clock()

    def events(self) -> dict[str, int]:
        """Return the counts by event, for a metric."""
        return asdict(self.counts)

    @property
    def is_idle(self) -> bool:
        """True after `IDLE_SECONDS` without new deltas of this picker."""
        return self._clock() - self._learnt_at > IDLE_SECONDS

    @property
    def peers(self) -> tuple[str, ...]:
        """The names of the other pickers that send messages, sorted."""
        return tuple(sorted(self._peers))

    def follow(self, instances: Iterable[Instance]) -> None:
        """Exchange the state of these instances. A replaced instance hands its snapshot to its successor."""
        before, self._parts = self._parts, {}
        for instance in instances:
            if isinstance(instance.plugin, LearntState):
                key = key_of(instance)
                part = self._parts[key] = _Part(instance, self._telemetry)
                old = before.get(key)
                if old is not None and old.plugin is not instance.plugin:
                    for piece in old.snapshot(self._access):
                        part.restore.run(self._access, piece)

    def drain(self) -> bytes | None:
        """Return the next message for other pickers, or None if nothing is new and no heartbeat is due."""
        deltas: dict[str, bytes] = {}
        for key, part in self._parts.items():
            drained = part.drain.run(self._access)
            if isinstance(drained, bytes) and drained:
                deltas[key] = drained
        if self._columns is not None and (columns := self._columns.drain()):
            deltas[COLUMNS] = columns
        if deltas:
            self._learnt_at = self._clock()
        elif self._clock() - self._sent_at < HEARTBEAT_SECONDS:
            return None
        return self.message(MessageKind.DELTAS, deltas=deltas)

    def message(self, kind: MessageKind, to: str = "", deltas: dict[str, bytes] | None = None) -> bytes:
        """Encode a message of this picker, with the next sequence number."""
        self._sequence += 1
        self._sent_at = self._clock()
        return _encode(Message(FORMAT, self.origin, kind, self._sequence, to, deltas or {}))

    def receive(self, data: bytes) -> Message | None:
        """Apply a message. Returns it if its kind requires an action of the caller, else None."""
        message = self._read(data)
        if message is None or message.origin == self.origin:
            if message is not None and message.sequence > self._sequence:
                self._warn("same-origin", "another picker has the name %s of this one, so neither hears the other", self.origin)
            return None
        peer = self._peers.get(message.origin)
        now = self._clock()
        if message.kind is MessageKind.BYE:
            self._forget(message.origin)
            return None
        if peer is None:
            peer = self._peers[message.origin] = _Peer(now, message.sequence - 1, now)
            _log.info("picker %s joined", message.origin)
        if message.sequence <= peer.sequence:
            return None  # repeated
        if message.sequence != peer.sequence + 1:
            self.counts.lost += message.sequence - peer.sequence - 1
            self._discard_load(message.origin)
        peer.heard_at, peer.sequence = now, message.sequence
        if not self._has_room(peer, now):
            self.counts.flooded += 1
            self._warn(message.origin, "picker %s sends more than %d messages a second; the rest is left out", message.origin, MAX_MESSAGES)
            self._discard_load(message.origin)
            return None
        self.counts.applied += 1
        for key, deltas in message.deltas.items():
            part = self._parts.get(key)
            if part is not None:
                part.apply.run(self._access, deltas, message.origin)
            elif key == COLUMNS and self._columns is not None:
                try:
                    self._columns.apply(deltas)
                except _UNREADABLE:  # of a worker with other plugins
                    self.counts.unreadable += 1
        return None if message.kind is MessageKind.DELTAS else message

    def answers(self, hello: Message) -> bool:
        """Return True if this picker has the least name of those heard recently, and so must answer."""
        limit = self._clock() - _SILENT_SECONDS
        others = [name for name, peer in self._peers.items() if peer.heard_at > limit]
        return self.origin == min((self.origin, *others), key=lambda name: (name == hello.origin, name))

    def expire(self) -> None:
        """Forget pickers that were silent for `EXPIRY_SECONDS`."""
        limit = self._clock() - EXPIRY_SECONDS
        for origin in [origin for origin, peer in self._peers.items() if peer.heard_at < limit]:
            self._forget(origin)

    def cut_off(self) -> None:
        """Forget all other pickers, because the store delivers no messages."""
        for origin in list(self._peers):
            self._forget(origin)

    def snapshot(self) -> Iterator[tuple[str, bytes]]:
        """Yield the state of all instances in parts, with their keys. Requests may be served between parts."""
        for key, part in tuple(self._parts.items()):
            for piece in part.snapshot(self._access):
                yield key, piece

    def restore(self, snapshot: bytes) -> Iterator[str]:
        """Apply a snapshot of this or another picker part by part; yields the key of each part applied."""
        try:
            pieces = decode_snapshot(snapshot)
        except _UNREADABLE as error:
            _log.warning("a snapshot cannot be read, so this picker begins with what it has: %s", error)
            return
        for key, piece in pieces:
            part = self._parts.get(key)
            if part is not None:
                part.restore.run(self._access, piece)
                yield key

    def _read(self, data: bytes) -> Message | None:
        try:
            message = _decode(data)
        except _UNREADABLE:
            message = None
        if message is not None and message.format == FORMAT:
            return message
        self.counts.unreadable += 1
        origin, version = _sender(data)
        self._warn(origin, "a message of picker %s, format %s, is not understood; this one reads format %d", origin, version, FORMAT)
        return None

    def _has_room(self, peer: _Peer, now: float) -> bool:
        if now - peer.second_began_at >= 1.0:
            peer.second_began_at, peer.messages = now, 0
        peer.messages += 1
        return peer.messages <= MAX_MESSAGES

    def _forget(self, origin: str) -> None:
        if self._peers.pop(origin, None) is not None:
            _log.info("picker %s left", origin)
            self._discard_load(origin)

    def _discard_load(self, origin: str) -> None:
        for part in self._parts.values():
            part.origin_gone.run(self._access, origin)

    def _warn(self, topic: str, text: str, *arguments: object) -> None:
        if self._warnings.admit(topic) is not None:
            _log.warning(text, *arguments)


def key_of(instance: Instance) -> str:
    """Return the key of an instance's state in messages: name, type and format."""
    state = instance.plugin
    assert isinstance(state, LearntState)
    return f"{instance.name}/{instance.type}/{state.learnt_format}"


def _sender(data: bytes) -> tuple[str, str]:
    """The name and format of an unreadable message."""
    try:
        version, origin, *_ = _decode_fields(data)
        return msgspec.msgpack.decode(origin, type=str), str(msgspec.msgpack.decode(version, type=int))
    except _UNREADABLE:
        return "unknown", "unknown"
