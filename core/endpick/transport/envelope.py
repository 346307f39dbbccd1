"""What of a message is not a body: read off its first bytes, before the rest has arrived and long before it is decoded."""

from __future__ import annotations

__all__ = ["EnvelopeError", "require_small_envelope"]

_MOST_FIELDS = 64
"""Of the message itself, not of those inside; a ProcessingRequest knows a dozen."""
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


class EnvelopeError(Exception):
    """A message holds more beside its body than the limit allows, or is none."""


def require_small_envelope(message: bytes | bytearray, start: int, stop: int, body_fields: frozenset[int], max_bytes: int) -> None:
    """Check what has arrived of a serialised protobuf message, `message[start:stop]`.

    Args:
        message: Where it is.
        start: Its first byte.
        stop: What follows its last byte, or the last that has arrived.
        body_fields: The numbers of the fields that may have any length.
        max_bytes: What all others may have together. A few entries of a map take as little as two bytes each, and a hundred once decoded.

    Raises:
        EnvelopeError: it is not.
    """
    envelope_bytes = 0
    for _ in range(_MOST_FIELDS):
        at = start
        tag, start = _varint(message, start, stop)
        kind = tag & 7
        if kind == _LENGTH:
            length, start = _varint(message, start, stop)
            start += length
        elif kind == _VARINT:
            _, start = _varint(message, start, stop)
        elif kind in (_FIXED64, _FIXED32):
            start += 8 if kind == _FIXED64 else 4
        else:
            raise EnvelopeError("a message that is no protobuf")
        if tag >> 3 not in body_fields:
            envelope_bytes += start - at
        if envelope_bytes > max_bytes:
            raise EnvelopeError(f"a message with more than {max_bytes} bytes beside its body")
        if start >= stop:
            return
    raise EnvelopeError(f"a message of more than {_MOST_FIELDS} fields")


def _varint(message: bytes | bytearray, start: int, stop: int) -> tuple[int, int]:
    """The number that begins at `start`, and where it ends; one whose end has not arrived counts as ended there."""
    value = 0
    for position in range(start, min(stop, start + _LONGEST_VARINT)):
        byte = message[position]
        value |= (byte & 0x7F) << 7 * (position - start)
        if byte < 0x80:
            return value, position + 1
    if stop - start >= _LONGEST_VARINT:
        raise EnvelopeError("a message that is no protobuf")
    return 0, stop
