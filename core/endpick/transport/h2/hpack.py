"""Header blocks (RFC 7541): decoded by a library, with a guard before it; encoded without any state."""

from __future__ import annotations

from collections.abc import Iterable

from jh2._hazmat import Decoder, HPACKError, OversizedHeaderListError

from endpick.transport.h2.faults import H2ConnectionError, ErrorCode

__all__ = ["EMPTY_TABLE", "Fields", "HeaderDecoder", "encode", "is_whole"]

Fields = list[tuple[bytes, bytes, bool]]
"""Name, value, and whether the value is never to be indexed."""

EMPTY_TABLE = b"\x20"
"""Says that our dynamic table has no room. Sent once, first of all, it is true under whatever the peer's settings allow, later ones too."""

_MAX_INTEGER_SHIFT = 28


class HeaderDecoder:
    """One connection's incoming header blocks; each must be decoded, in order, wanted or not, as blocks refer to earlier ones."""

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)

    def decode(self, block: bytes) -> Fields:
        """The fields of one block.

        Raises:
            H2ConnectionError: the block is malformed or stands for too long a list; the table is unusable from here on.
        """
        # The library panics, printing a stack trace, on literals that reach beyond the end of the block, so it is not shown any.
        if not is_whole(block):
            raise H2ConnectionError(ErrorCode.COMPRESSION_ERROR, "a header block ends within a field")
        try:
            fields: Fields = self._decoder.decode(block, True)
        except OversizedHeaderListError as error:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the header list is too long", "header_floods") from error
        except HPACKError as error:
            raise H2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        return fields


def is_whole(block: bytes) -> bool:
    """Whether each field of the block ends within it; says nothing of indexes or Huffman codes."""
    position = 0
    end = len(block)
    while position < end:
        first = block[position]
        position += 1
        if first >= 0x80:
            if first != 0xFF:
                continue
            mask, strings = 0x7F, 0
        elif first >= 0x40:
            mask, strings = 0x3F, 2 if first == 0x40 else 1
        elif first >= 0x20:
            mask, strings = 0x1F, 0
        else:
            mask, strings = 0x0F, 1 if first & 0x0F else 2
        if first & mask == mask:
            _, position = _continued_integer(block, position)
            if position > end:
                return False
        for _ in range(strings):
            if position >= end:
                return False
            length = block[position] & 0x7F
            position += 1
            if length == 0x7F:
                more, position = _continued_integer(block, position)
                length += more
            position += length
            if position > end:
                return False
    return True


def _continued_integer(block: bytes, position: int) -> tuple[int, int]:
    """The rest of an integer that did not fit its prefix, and where it ends; beyond the block if it does not end or is absurd."""
    value = shift = 0
    while position < len(block) and shift <= _MAX_INTEGER_SHIFT:
        byte = block[position]
        position += 1
        value += (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
    return value, len(block) + 1


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """A block of literals that no table remembers: the same bytes on every connection, so made once and kept."""
    return b"".join(b"\x00" + _string(name) + _string(value) for name, value in fields)


def _string(text: bytes) -> bytes:
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    length -= 0x7F
    prefix = bytearray((0x7F,))
    while length >= 0x80:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    prefix.append(length)
    return bytes(prefix) + text
