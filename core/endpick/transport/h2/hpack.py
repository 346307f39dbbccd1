"""HPACK header blocks (RFC 7541): decoded by jh2, encoded without a dynamic table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jh2._hazmat import Decoder, HPACKError, OversizedHeaderListError

from endpick.transport.h2.errors import ErrorCode, H2ConnectionError

__all__ = ["EMPTY_TABLE", "Fields", "HeaderDecoder", "MalformedBlockError", "encode", "scan"]

Fields = list[tuple[bytes, bytes, bool]]
"""Name, value, and whether the value is never indexed."""

CodedString = tuple[int, int, int, int]
"""Field number, 0 for a name or 1 for a value, end position, encoded length."""

EMPTY_TABLE: Final = b"\x20"
"""Sets the size of our dynamic table to zero; sent once, in the first block."""

_LONGEST_REPEATED_BYTES: Final = 1024
"""Longer blocks are decoded each time, because every connection keeps its last one."""
_MAX_INTEGER_SHIFT: Final = 28
_CODE_BITS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "14161414161616171617171717171817181816171817171717151617161717181615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
"""Bits in the Huffman code of each byte (RFC 7541, appendix B)."""
_code_bits: Final = _CODE_BITS.__getitem__


class MalformedBlockError(Exception):
    """The block breaks a rule of RFC 7541 that jh2 does not enforce."""


class HeaderDecoder:
    """Decodes the header blocks of one connection. Every block must be decoded, in order: later ones refer to it."""

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)
        self.repeatable = b""
        """The last block if it left the dynamic table unchanged: the same bytes then mean the same fields."""
        self.repeated: Fields = []

    def decode(self, block: bytes) -> Fields:
        """The fields of one block. Callers compare it with `repeatable` first: gateways repeat one block for every stream."""
        try:
            # jh2 panics on literals that reach beyond the block, and accepts a late table resize and zero padding.
            coded, keeps_table = scan(block)
            fields: Fields = self._decoder.decode(block, True)
            _check_padding(block, coded, fields)
        except OversizedHeaderListError as error:
            raise H2ConnectionError(ErrorCode.ENHANCE_YOUR_CALM, "the header list is too long", "header_floods") from error
        except (HPACKError, MalformedBlockError) as error:
            raise H2ConnectionError(ErrorCode.COMPRESSION_ERROR, str(error)) from error
        if keeps_table and len(block) <= _LONGEST_REPEATED_BYTES:
            self.repeatable, self.repeated = block, fields
        else:
            self.repeatable, self.repeated = b"", []  # an empty block has no fields
        return fields


def scan(block: bytes) -> tuple[list[CodedString], bool]:
    """The Huffman-coded strings of a block, and whether it leaves the dynamic table unchanged."""
    coded: list[CodedString] = []
    keeps_table = True
    position = field = 0
    end = len(block)
    while position < end:
        first = block[position]
        position += 1
        if first >= 0x80 and first != 0xFF:
            field += 1
            continue
        if 0x20 <= first < 0x80:
            keeps_table = False
        mask, strings = _representation(first)
        if first & mask == mask:
            _, position = _continued_integer(block, position)
        if first & 0xE0 == 0x20:
            if field:
                raise MalformedBlockError("the table is resized after a field")
            continue
        for part in range(2 - strings, 2):
            if position >= end:
                raise MalformedBlockError("a field does not end")
            head = block[position]
            length = head & 0x7F
            position += 1
            if length == 0x7F:
                more, position = _continued_integer(block, position)
                length += more
            position += length
            if head & 0x80 and length:
                coded.append((field, part, position, length))
        field += 1
    if position > end:
        raise MalformedBlockError("a field does not end")
    return coded, keeps_table


def _representation(first: int) -> tuple[int, int]:
    if first >= 0x80:
        return 0x7F, 0
    if first >= 0x40:
        return 0x3F, 2 if first == 0x40 else 1
    if first >= 0x20:
        return 0x1F, 0
    return 0x0F, 1 if first & 0x0F else 2


def _check_padding(block: bytes, coded: list[CodedString], fields: Fields) -> None:
    for field, part, stop, length in coded:
        text = fields[field][1] if part else fields[field][0]
        padding = (1 << 8 * length - sum(map(_code_bits, text))) - 1
        if block[stop - 1] & padding != padding:
            raise MalformedBlockError("a Huffman code is padded with other bits than ones")


def _continued_integer(block: bytes, position: int) -> tuple[int, int]:
    """The rest of an integer beyond its prefix, and its end position: beyond the block if it is cut or too large."""
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
    """A block of literals without indexing: the same bytes are valid on every connection."""
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
