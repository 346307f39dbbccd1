"""Reads the size of an image from the first bytes of a `data:` URL, without decoding or fetching it."""

from __future__ import annotations

import base64
import binascii
from struct import unpack_from

_HEAD_BYTES = 48 * 1024
"""A JPEG may have a preview before its size."""
_MOST_SEGMENTS = 32
"""Cameras write about ten segments before the size."""
_ENCODING = "base64,"
_LONGEST_TYPE = 1024
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG_SIZES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
"""Markers of JPEG segments with the size."""


def image_size(url: str) -> tuple[int, int] | None:
    """Width and height of a PNG, GIF or JPEG in a base64 `data:image/` URL, else None."""
    if not url.startswith("data:image/"):
        return None
    start = url.find(_ENCODING, 0, _LONGEST_TYPE) + len(_ENCODING)
    if start < len(_ENCODING):
        return None
    try:
        size = _size_in(url, start)
    except (binascii.Error, ValueError):
        return None
    return size if size is not None and min(size) > 0 else None


def _bytes_at(url: str, start: int, place: int) -> bytes:
    """At least 24 bytes of the content from a position on, or the rest.

    Raises:
        ValueError: they are not base64.
    """
    first = place // 3 * 4
    encoded = url[start + first : start + first + 36]
    return base64.b64decode(encoded[: len(encoded) - len(encoded) % 4], validate=True)[place % 3 :]


def _size_in(url: str, start: int) -> tuple[int, int] | None:
    content = _bytes_at(url, start, 0)
    if content.startswith(_PNG) and len(content) >= 24:
        width, height = unpack_from(">II", content, 16)
        return width, height
    if content.startswith((b"GIF87a", b"GIF89a")) and len(content) >= 10:
        width, height = unpack_from("<HH", content, 6)
        return width, height
    return _jpeg_size(url, start) if content.startswith(b"\xff\xd8") else None


def _jpeg_size(url: str, start: int) -> tuple[int, int] | None:
    place = 2
    for _ in range(_MOST_SEGMENTS):
        segment = _bytes_at(url, start, place) if place < _HEAD_BYTES else b""
        if len(segment) < 9 or segment[0] != 0xFF:
            return None
        marker, length = segment[1], int.from_bytes(segment[2:4], "big")
        if marker in _JPEG_SIZES:
            height, width = unpack_from(">HH", segment, 5)
            return width, height
        if length < 2:
            return None
        place += 2 + length
    return None
