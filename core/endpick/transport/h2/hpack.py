"""Header blocks (RFC 7541): decoded by a library that is shown only blocks it can bear; encoded without any state."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jh2._hazmat import Decoder, HPACKError, OversizedHeaderListError

from endpick.transport.h2.errors import ErrorCode, H2ConnectionError

__all__ = ["EMPTY_TABLE", "Fields", "HeaderDecoder", "MalformedBlockError", "encode", "scan"]

Fields = list[tuple[bytes, bytes, bool]]
"""Name, value, and whether the value is never to be indexed."""

CodedString = tuple[int, int, int, int]
"""Number of the field, 0 for its name or 1 for its value, where the string stops, its coded length."""

EMPTY_TABLE: Final = b"\x20"
"""Says that our dynamic table has no room. Sent once, in the first block, it stays valid whatever size the client's settings allow."""

_LONGEST_REPEATED_BYTES: Final = 1024
"""A longer block is decoded each time: every connection keeps one that it may see again."""
_MAX_INTEGER_SHIFT: Final = 28
_CODE_BITS: Final = bytes.fromhex(
    "0d171c1c1c1c1c1c1c181e1c1c1e1c1c1c1c1c1c1c1c1e1c1c1c1c1c1c1c1c1c060a0a0c0d06080b0a0a080b080606060505050606060606060607080f060c0a"
    "0d06070707070707070707070707070707070707070707070807080d130d0e060f05060506050606060507070606060506070605050607070707070f0b0e0d1c"
    "14161414161616171617171717171817181816171817171717151617161717181615141616171715171616181516171715151615171617171416161617161617"
    "1a1a1413161716191a1a1a1b1b1a181913151a1b1b1a1b1815151a1a1c1b1b1b14181415161515171616191918181a171a1b1a1a1b1b1b1b1b1c1b1b1b1b1b1a"
    "1e"
)
"""How long the Huffman code of each byte is, and of the end (RFC 7541, appendix B); the library has it beside all its tables in Python."""
_code_bits: Final = _CODE_BITS.__getitem__


class MalformedBlockError(Exception):
    """The block breaks a rule of RFC 7541 that the library does not enforce."""


class HeaderDecoder:
    """Decodes the header blocks of one client. Each must be decoded, in order, wanted or not, as later blocks refer to it."""

    def __init__(self, max_list_bytes: int) -> None:
        self._decoder = Decoder(max_list_bytes)
        self.repeatable = b""
        """The block decoded last, if it is short and leaves the table as it is: the same block then stands for the same fields again."""
        self.repeated: Fields = []
        """Its fields."""

    def decode(self, block: bytes) -> Fields:
        """The fields of one block. Gateways repeat one block for every stream they open: callers compare with `repeatable` first.

        Raises:
            H2ConnectionError: the block is malformed or stands for too long a list; the table is unusable from here on.
        """
        try:
            # The library panics, printing a stack trace, on literals that reach beyond the end of the block, so it is shown none,
            # and it lets a late resize and zeros as padding pass, which RFC 7541 does not.
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
            self.repeatable, self.repeated = b"", []  # which is what an empty block stands for
        return fields


def scan(block: bytes) -> tuple[list[CodedString], bool]:
    """Walk over the fields of a block without decoding them.

    Returns:
        The Huffman-coded strings in it, in order; and whether it leaves the table as it is, neither adding to it nor resizing it.

    Raises:
        MalformedBlockError: a field does not end within the block, or the table is resized after a field.
    """
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
    """Which bits of a field's first byte hold its index, and how many strings follow."""
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
