"""What of a message is not a body: read off its first bytes, before the rest has arrived and long before it is decoded."""

from __future__ import annotations

__all__ = ["EnvelopeCheck", "EnvelopeError"]

_MOST_FIELDS = 64
"""Of the message itself and of the bodies in it, not of what else is inside; a ProcessingRequest knows a dozen."""
_BODY_BYTES = 1
"""The field of an `HttpBody` that holds the bytes."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_LONGEST_HEAD = 2 * _LONGEST_VARINT


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
            number, head_size, size = field
            if self._inside:
                is_body = number == _BODY_BYTES
                self._inside -= size
                if self._inside < 0:
                    raise EnvelopeError("a message that is no protobuf")
            else:
                is_body = number in self._body_fields
                if is_body:
                    self._inside, size = size - head_size, head_size
            if not is_body:
                self._envelope_bytes += size
                if self._envelope_bytes > self._max_bytes:
                    raise EnvelopeError(f"a message with more than {self._max_bytes} bytes beside its body")
            start += size - len(self._head)
            self._head = b""
        self._rest = start - stop


def _field(head: bytes) -> tuple[int, int, int] | None:
    """The number of a field, and the lengths of its head and of the whole, from its first bytes; None where they do not say it."""
    tag, position = _varint(head, 0)
    if not position:
        return None
    kind = tag & 7
    if kind in (_FIXED64, _FIXED32):
        return tag >> 3, position, position + (8 if kind == _FIXED64 else 4)
    if kind not in (_VARINT, _LENGTH):
        raise EnvelopeError("a message that is no protobuf")
    value, position = _varint(head, position)
    if not position:
        return None
    return tag >> 3, position, position + (value if kind == _LENGTH else 0)


def _varint(head: bytes, start: int) -> tuple[int, int]:
    """The number that begins at `start`, and where it ends; 0 for that where its end has not arrived."""
    value = 0
    for position in range(start, min(len(head), start + _LONGEST_VARINT)):
        byte = head[position]
        value |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            return value, position + 1
    if len(head) - start >= _LONGEST_VARINT:
        raise EnvelopeError("a message that is no protobuf")
    return 0, 0
