"""Refuses compressed requests; decodes compressed responses piece by piece, to read their token usage."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any, Final

from endpick.api.request import Usage, shown
from endpick.requests.model import CODE_OF, Refused, RequestRefused
from endpick.requests.response_body import UsageReader

IDENTITY: Final = "identity"
_PIECE_BYTES: Final = 1 << 16
_ZLIB_OR_GZIP: Final = zlib.MAX_WBITS | 32
_ZSTD_MODULES: Final = ("compression.zstd", "backports.zstd")  # the first is Python's since 3.14


def refuse_compressed(encoding: str) -> None:
    """Raise RequestRefused with status 415, unless the encoding is `identity`."""
    if encoding.strip().lower() != IDENTITY:
        problem = f"the request body has content-encoding {shown(encoding)}, but is read uncompressed only; send it without"
        raise RequestRefused(Refused(415, CODE_OF[415], problem))


class Decoder:
    """Decodes gzip and deflate incrementally; subclasses decode other encodings."""

    def __init__(self) -> None:
        self._state: Any = self._begin()

    def _begin(self) -> Any:  # noqa: ANN401 - decompressors have no common type
        return zlib.decompressobj(_ZLIB_OR_GZIP)

    def step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        """Return the output, the remaining input, and True to call again. Raises the library's own errors."""
        out: bytes = self._state.decompress(data, _PIECE_BYTES)
        if self._state.eof:
            return self._next_member(out)
        left: bytes = self._state.unconsumed_tail
        return out, left, bool(left) or len(out) == _PIECE_BYTES

    def _next_member(self, out: bytes) -> tuple[bytes, bytes, bool]:
        left: bytes = self._state.unused_data
        self._state = self._begin()
        return out, left, bool(left)


class _ZstdDecoder(Decoder):
    def _begin(self) -> Any:  # noqa: ANN401
        return _module(_ZSTD_MODULES).ZstdDecompressor()

    def step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        out: bytes = self._state.decompress(data, _PIECE_BYTES)
        return self._next_member(out) if self._state.eof else (out, b"", not self._state.needs_input)


class _BrotliDecoder(Decoder):
    def _begin(self) -> Any:  # noqa: ANN401
        return _module(("brotli",)).Decompressor()

    def step(self, data: bytes) -> tuple[bytes, bytes, bool]:
        out: bytes = self._state.process(data, output_buffer_limit=_PIECE_BYTES)
        return out, b"", bool(out)  # `can_accept_more_data` is true while output is left


def decoder_of(encoding: str) -> Decoder | None:
    """Return a decoder, or None if the encoding is unknown or its library is not installed."""
    if encoding in ("gzip", "x-gzip", "deflate"):
        return Decoder()
    if encoding == "zstd" and _module(_ZSTD_MODULES) is not None:
        return _ZstdDecoder()
    if encoding == "br" and _module(("brotli",)) is not None:
        return _BrotliDecoder()
    return None


@cache
def _module(names: tuple[str, ...]) -> Any:  # noqa: ANN401 - an optional library
    for name in names:
        try:
            return import_module(name)
        except ImportError:
            continue
    return None


class CompressedUsage(UsageReader):
    """Decodes a compressed response, and passes its content to another reader."""

    __slots__ = ("_decoder", "_inner", "_report")

    def __init__(self, decoder: Decoder, inner: UsageReader, report: Callable[[], None]) -> None:
        """`report` is called if the response cannot be decoded."""
        self._decoder: Decoder | None = decoder
        self._inner = inner
        self._report = report

    def feed(self, chunk: bytes) -> None:
        for start in range(0, len(chunk), _PIECE_BYTES):
            self._feed(chunk[start : start + _PIECE_BYTES])  # each step copies what it leaves

    def _feed(self, left: bytes) -> None:
        decoder, more = self._decoder, True
        try:
            while more and decoder is not None:
                out, left, more = decoder.step(left)
                self._inner.feed(out)
        except Exception:  # each library has its own
            self._decoder = None
            self._report()

    def result(self) -> Usage | None:
        return self._inner.result()
