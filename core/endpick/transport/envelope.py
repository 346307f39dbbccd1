"""What of a message is not a body: read off its first bytes, before the rest has arrived and long before it is decoded."""

from __future__ import annotations

from enum import Enum

from endpick.extproc.pieces import varint
from endpick.extproc.stream import LongMessage
from endpick.requests.long_body import LongBody, Piece, gather

__all__ = ["EnvelopeCheck", "EnvelopeError", "LongMessageReader"]

_MOST_FIELDS = 64
"""Of the message itself and of the bodies in it, not of what else is inside; a ProcessingRequest knows a dozen."""
_BODY_BYTES = 1
"""The field of an `HttpBody` that holds the bytes."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_LONGEST_HEAD = 2 * _LONGEST_VARINT


class _Place(Enum):
    """Where a field stands."""

    OUTSIDE = 1
    """In the message, and it is no body."""
    OPENING = 2
    """It is the body: what is in it follows, field by field."""
    INSIDE = 3
    """In the body, and it is not its bytes."""
    BYTES = 4
    """Those of the body."""


class EnvelopeError(Exception):
    """A message holds more beside its body than the limit allows, or is none."""


class EnvelopeCheck:
    """Adds up what of one serialised protobuf message is not its body, while its bytes arrive."""

    __slots__ = ("_body_fields", "_envelope_bytes", "_fields", "_head", "_inside", "_max_bytes", "_rest")

    def __init__(self, body_fields: frozenset[int], max_bytes: int) -> None:
        """Nothing has arrived.

        Args:
            body_fields: The numbers of the fields that hold an `HttpBody`, whose bytes may have any length. Its other fields count as
                those of the message: sixteen million empty ones take 0.23 s to decode.
            max_bytes: What all others may have together. A few entries of a map take as little as two bytes each, and a hundred once
                decoded.
        """
        self._body_fields = body_fields
        self._max_bytes = max_bytes
        self._envelope_bytes = 0
        self._fields = 0
        self._head = b""
        """The beginning of a field whose length is not known yet."""
        self._inside = 0
        """How much of a body is still to be looked at."""
        self._rest = 0
        """How much of the field under way is still to come."""

    def add(self, data: bytes, start: int, stop: int) -> None:
        """Look at the next bytes of the message, `data[start:stop]`.

        Raises:
            EnvelopeError: it holds too much beside its body, or is no protobuf message.
        """
        if self._rest:
            self._comes(data, start, min(stop, start + self._rest))
        start += self._rest
        while start < stop:
            head = self._head + data[start : min(stop, start + _LONGEST_HEAD - len(self._head))]
            field = _field(head)
            if field is None:
                self._head, self._rest = head, 0
                return
            self._fields += 1
            if self._fields > _MOST_FIELDS:
                raise EnvelopeError(f"a message of more than {_MOST_FIELDS} fields")
            number, has_length, head_size, size = field
            if self._inside:
                place = _Place.BYTES if has_length and number == _BODY_BYTES else _Place.INSIDE
                self._inside -= size
                if self._inside < 0:
                    raise _no_protobuf()
            else:
                place = _Place.OPENING if has_length and number in self._body_fields else _Place.OUTSIDE
            self._begins(place, number)
            if place is _Place.OPENING:
                self._inside, size = size - head_size, head_size
            elif place is not _Place.BYTES:
                self._envelope_bytes += size
                if self._envelope_bytes > self._max_bytes:
                    raise EnvelopeError(f"a message with more than {self._max_bytes} bytes beside its body")
                self._comes(self._head, 0, len(self._head))
                head_size = len(self._head)
            end = start + size - len(self._head)
            self._comes(data, start + head_size - len(self._head), min(stop, end))
            start = end
            self._head = b""
        self._rest = start - stop

    def _begins(self, place: _Place, number: int) -> None:
        """A field of this number begins; for those who keep what comes."""

    def _comes(self, data: bytes, start: int, stop: int) -> None:
        """`data[start:stop]` belongs to the field that began last: of the bytes of a body those alone, of others their head as well."""


class LongMessageReader(EnvelopeCheck):
    """Takes a message apart while its bytes arrive: its body in pieces, and what else there is, which is short."""

    __slots__ = ("_body", "_inner", "_kept", "_number", "_outer", "_size")

    def __init__(self, body_fields: frozenset[int], max_bytes: int) -> None:
        """As `EnvelopeCheck`."""
        super().__init__(body_fields, max_bytes)
        self._outer: list[Piece] = []
        """Fields of the message."""
        self._inner: list[Piece] = []
        """Fields of the body."""
        self._body: list[Piece] = []
        self._kept = self._outer
        """Where what comes belongs."""
        self._number = 0
        """Of the field that holds the body."""
        self._size = 0

    def add(self, data: bytes, start: int, stop: int) -> None:
        """Take the next bytes of the message, `data[start:stop]`.

        Raises:
            EnvelopeError: as `EnvelopeCheck.add`; or it has more than one body.
        """
        self._size += stop - start
        super().add(data, start, stop)

    def message(self) -> LongMessage:
        """The message, all of which has come.

        Raises:
            EnvelopeError: it ends within a field.
        """
        if self._head or self._rest or self._inside:
            raise _no_protobuf()
        inner = b"".join(self._inner)
        rest = b"".join((*self._outer, varint(self._number << 3 | _LENGTH), varint(len(inner)), inner))
        return LongMessage(rest, LongBody(self._body), self._size)

    def _begins(self, place: _Place, number: int) -> None:
        if place is _Place.OPENING:
            if self._number not in (0, number):
                raise EnvelopeError("a message with two bodies")
            self._number = number
        elif place is _Place.BYTES:
            if self._body:
                raise EnvelopeError("a message with two bodies")
            self._kept = self._body
        else:
            self._kept = self._inner if place is _Place.INSIDE else self._outer

    def _comes(self, data: bytes, start: int, stop: int) -> None:
        if stop > start:
            gather(self._kept, data[start:stop])


def _no_protobuf() -> EnvelopeError:
    return EnvelopeError("a message that is no protobuf")


def _field(head: bytes) -> tuple[int, bool, int, int] | None:
    """The number of a field, whether it has a length, and how long its head and all of it are; None where the first bytes do not say."""
    tag, position = _varint(head, 0)
    if not position:
        return None
    kind = tag & 7
    if kind in (_FIXED64, _FIXED32):
        return tag >> 3, False, position, position + (8 if kind == _FIXED64 else 4)
    if kind not in (_VARINT, _LENGTH):
        raise _no_protobuf()
    value, position = _varint(head, position)
    if not position:
        return None
    return tag >> 3, kind == _LENGTH, position, position + (value if kind == _LENGTH else 0)


def _varint(head: bytes, start: int) -> tuple[int, int]:
    """The number that begins at `start`, and where it ends; 0 for that where its end has not arrived."""
    value = 0
    for position in range(start, min(len(head), start + _LONGEST_VARINT)):
        byte = head[position]
        value |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            return value, position + 1
    if len(head) - start >= _LONGEST_VARINT:
        raise _no_protobuf()
    return 0, 0
