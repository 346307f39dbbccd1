"""How large a picture is, read from the first bytes of a `data:` URL; nothing is decoded, and nothing is fetched."""

from __future__ import annotations

import base64
import binascii
from struct import unpack_from

_HEAD_CHARACTERS = 64 * 1024
"""Of the base64 that is looked at, a multiple of four: a JPEG may have a preview in front of its size."""
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of the segments that hold the size of a JPEG."""


def image_size(url: str) -> tuple[int, int] | None:
    """Width and height in pixels of a PNG, GIF or JPEG in a base64 `data:image/` URL; None for all else, and for damaged ones."""
    if not url.startswith("data:image/"):
        return None
    _, found, encoded = url[: _HEAD_CHARACTERS * 2].partition("base64,")
    if not found:
        return None
    head = encoded[:_HEAD_CHARACTERS]
    try:
        content = base64.b64decode(head[: len(head) - len(head) % 4])
    except (binascii.Error, ValueError):
        return None
    size = _size_in(content)
    return size if size is not None and min(size) > 0 else None


def _size_in(content: bytes) -> tuple[int, int] | None:
    if content.startswith(_PNG) and len(content) >= 24:
        width, height = unpack_from(">II", content, 16)
        return width, height
    if content.startswith((b"GIF87a", b"GIF89a")) and len(content) >= 10:
        width, height = unpack_from("<HH", content, 6)
        return width, height
    return _jpeg_size(content) if content.startswith(b"\xff\xd8") else None


def _jpeg_size(content: bytes) -> tuple[int, int] | None:
    """Walk from segment to segment; each says how long it is."""
    place = 2
    while place + 9 <= len(content) and content[place] == 0xFF:
        marker, length = content[place + 1], int.from_bytes(content[place + 2 : place + 4], "big")
        if marker in _JPEG_SIZES:
            height, width = unpack_from(">HH", content, place + 5)
            return width, height
        if length < 2:
            return None
        place += 2 + length
    return None
