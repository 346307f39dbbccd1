"""An answer over HTTP as it comes, what it may hold, and its body in the end."""

from __future__ import annotations

import zlib

from endpick.api import Limit
from endpick_builtin.collection.long_answers import LONG_BYTES
from endpick_builtin.collection.page_limits import SHORT_CHUNK_BYTES, SHORT_CHUNKS, PageSize


class BadAnswerError(Exception):
    """The server does not answer as a server of pages does; the message says how."""


class TooMuchError(BadAnswerError):
    """There is more of the answer than a limit allows."""

    def __init__(self, message: str, limit: Limit) -> None:
        super().__init__(message)
        self.limit = limit


class StaleError(Exception):
    """A connection that was kept had ended before the request reached the server."""


class Answer:
    """One answer, as far as it came."""

    __slots__ = ("_chunks", "_longest", "announced", "encoding", "framed", "headers", "size", "status")

    def __init__(self, longest: PageSize) -> None:
        self._longest = longest
        self.status = 0
        """0 until the headers are complete."""
        self.headers = 0
        self.announced = 0
        """Bytes, by its headers; 0 where they do not say."""
        self.framed = False
        """Whether the answer says itself where it ends; else it ends with the connection."""
        self.encoding = b""
        self.size = 0
        self._chunks: list[bytes] = []

    def add(self, chunk: bytes) -> None:
        """Keep a part of the body; raises `TooMuchError`."""
        self.size += len(chunk)
        longest = self._longest
        if self.size > longest.page_bytes:
            raise too_long(longest, longest.long_page)
        count = len(self._chunks)
        if count >= longest.chunks:
            raise TooMuchError(f"the answer comes in more than {longest.chunks} chunks", longest.many_chunks)
        if count >= SHORT_CHUNKS + self.size // SHORT_CHUNK_BYTES:
            raise TooMuchError(f"the answer comes in {count} chunks of {self.size // count} bytes", longest.many_chunks)
        self._chunks.append(chunk)

    @property
    def is_long(self) -> bool:
        """Whether it is longer than pages of model servers are, or says that it will be."""
        return self.size > LONG_BYTES or self.announced > LONG_BYTES

    @property
    def takes_long(self) -> bool:
        """Whether to unpack and read it may take long."""
        return self.size > LONG_BYTES or self.encoding not in (b"", b"identity")

    def body(self) -> bytes:
        """Taken out once. Raises `BadAnswerError`: it is compressed, and cannot be unpacked within the limit."""
        whole = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        if self.encoding in (b"", b"identity"):
            return whole
        if self.encoding not in (b"gzip", b"x-gzip", b"deflate"):
            raise BadAnswerError(f"the answer is encoded with {self.encoding.decode('latin-1')!r}, which was not asked for")
        unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
        try:
            unpacked = unpacker.decompress(whole, self._longest.page_bytes + 1)
        except zlib.error as problem:
            raise BadAnswerError(f"the compressed answer cannot be unpacked: {problem}") from problem
        if len(unpacked) > self._longest.page_bytes:
            raise too_long(self._longest, self._longest.long_page)
        if not unpacker.eof:
            raise BadAnswerError("the compressed answer cannot be unpacked: it is cut short")
        return unpacked


_GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS
"""zlib's `wbits` for data that says itself which of the two it is."""


def too_long(longest: PageSize, limit: Limit) -> TooMuchError:
    """What to raise for an answer that is longer than a page may be."""
    return TooMuchError(f"the page is longer than {longest.shown}", limit)
