"""Bodies that are long: kept in the pieces in which they came, because to join them would hold the event loop.

A copy into memory that is new to the process takes a millisecond or two for each mebibyte, and a body may have thirty-two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

Piece = bytes | bytearray | memoryview
LONGEST_JOINED_BYTES: Final = 1 << 20
"""A body of no more is one object of bytes."""
_SHORT_PIECE_BYTES: Final = 4096
_GATHERED_BYTES: Final = 1 << 16


class LongBody:
    """The whole of a body, in pieces that are not to be changed."""

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self._size = sum([len(piece) for piece in pieces])

    def __len__(self) -> int:
        return self._size

    def starts_with(self, byte: bytes) -> bool:
        """Whether this is its first byte."""
        for piece in self.pieces:
            if piece:
                return bytes(piece[:1]) == byte
        return False

    def groups(self, size: int) -> Iterator[list[Piece]]:
        """All of its pieces, in order, in groups of at least `size` bytes each but for the last."""
        found: list[Piece] = []
        length = 0
        for piece in self.pieces:
            found.append(piece)
            length += len(piece)
            if length >= size:
                yield found
                found, length = [], 0
        if found:
            yield found

    def whole(self) -> bytes:
        """All of it as one: for who has to have it so, at the price that the pieces are to spare."""
        return b"".join(self.pieces)


def in_pieces(body: bytes | memoryview) -> LongBody:
    """A body that came as one, taken for one that came in pieces; nothing is copied."""
    whole = memoryview(body)
    return LongBody([whole[start : start + _GATHERED_BYTES] for start in range(0, len(whole), _GATHERED_BYTES)])


Body = bytes | LongBody


def body_of(pieces: Sequence[Piece]) -> Body:
    """The body that comes in these pieces, joined unless it is long."""
    if sum([len(piece) for piece in pieces]) <= LONGEST_JOINED_BYTES:
        return b"".join(pieces)
    return LongBody(pieces)


def gather(pieces: list[Piece], piece: Piece) -> None:
    """Add a piece to others; short ones that follow each other become one, because a million of them would take as long as a long copy."""
    if len(piece) < _SHORT_PIECE_BYTES:
        last = pieces[-1] if pieces else None
        if isinstance(last, bytearray) and len(last) < _GATHERED_BYTES:
            last += piece
            return
        piece = bytearray(piece)
    pieces.append(piece)
