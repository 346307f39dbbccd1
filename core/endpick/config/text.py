"""Bytes of a configuration file to text that is worth parsing."""

from __future__ import annotations

import codecs
import re
from itertools import zip_longest

from endpick.diagnostics import Code, Diagnostic, Label, Span
from endpick.diagnostics.lines import Lines

MAX_BYTES = 1 << 18
"""Parsing takes about ten seconds per MiB, and the largest configurations known have a few KiB."""

_BOM = "\N{ZERO WIDTH NO-BREAK SPACE}"
_CONFLICT_START = re.compile(r"^<{7}(?=[ \r\n]|\Z)[^\r\n]*", re.MULTILINE)
_CONFLICT_MIDDLE = re.compile(r"^={7}(?=[ \r\n]|\Z)[^\r\n]*", re.MULTILINE)
_CONFLICT_END = re.compile(r"^>{7}(?=[ \r\n]|\Z)[^\r\n]*", re.MULTILINE)


def decode(raw: bytes, file: str) -> tuple[str, tuple[Diagnostic, ...]]:
    """The text without a byte order mark, and what speaks against parsing it.

    With diagnostics the text is only good for showing where they are.
    """
    if len(raw) > MAX_BYTES:
        return "", (_too_large(file),)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw.decode("utf-8", errors="replace"), (_not_utf8(raw, error, file),)
    text = text.removeprefix(_BOM)
    return text, tuple(_merge_conflicts(text, file))


def _too_large(file: str) -> Diagnostic:
    return Diagnostic(
        Code.E0104,
        f"the file is larger than {MAX_BYTES} bytes, the most a configuration may have",
        Span.start_of(file),
        help="is this the right file?",
    )


def _not_utf8(raw: bytes, error: UnicodeDecodeError, file: str) -> Diagnostic:
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return Diagnostic(Code.E0105, "the file is UTF-16 text, not UTF-8", Span.start_of(file), help="save the file as UTF-8")
    before = raw[: error.start].decode("utf-8").removeprefix(_BOM)
    line, column = Lines(before).position(len(before))
    return Diagnostic(
        Code.E0105,
        f"the byte 0x{raw[error.start]:02x} is not UTF-8 text",
        Span(file, line, column, line, column + 1),
        help="save the file as UTF-8",
    )


def _merge_conflicts(text: str, file: str) -> list[Diagnostic]:
    lines = Lines(text)

    def span(match: re.Match[str]) -> Span:
        return Span(file, *lines.position(match.start()), *lines.position(match.end()))

    starts = list(_CONFLICT_START.finditer(text))
    found = []
    for start, following in zip_longest(starts, starts[1:]):
        limit = len(text) if following is None else following.start()
        middle = _CONFLICT_MIDDLE.search(text, start.end(), limit)
        end = _CONFLICT_END.search(text, start.end(), limit)
        labels = [Label(span(match), words) for match, words in ((middle, "other side"), (end, "end")) if match]
        found.append(
            Diagnostic(
                Code.E0106,
                "a merge conflict was left in the file",
                span(start),
                labels=tuple(labels),
                help="keep one side, and remove the lines that begin with <<<<<<<, ======= and >>>>>>>",
            )
        )
    return found
