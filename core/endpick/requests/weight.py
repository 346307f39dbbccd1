"""How long a body would hold the event loop: told from its bytes, before any parser sees it.

A mebibyte of text is parsed in a millisecond. The same of `{},{},…` takes a hundred, and as long again where its prompt is rendered or
its model exchanged. So what a body costs is counted on its structure, and a body that weighs too much is parsed elsewhere, however short.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from endpick.requests.long_body import LongBody
from endpick.requests.model import IncomingRequest, Structure

LIGHT_BYTES: Final = 16 * 1024
"""A body of no more is parsed in place without a look at its structure: the worst takes 5 ms."""
_LENIENT_BYTES: Final = 256 * 1024
"""A body of more that has to be read leniently is heavy: bytes that are not UTF-8, or escapes of surrogates. So is a gRPC body of more,
in which each byte may be a token id: a mebibyte of them took 70 ms."""
_CONTAINER: Final = 16
_QUOTE_MARK: Final = 2
"""Of objects and lists, and of quotes, in commas: as long as they take in parsing, rendering and exchange of the model together."""
_QUOTE, _COMMA, _LIST, _OBJECT = b'",[{'
_BACKSLASH, _U, _D = b"\\ud"
_GRPC: Final = 0
"""What a gRPC body begins with. In it a quote before the JSON would have all of that count as within a string."""
_FEW_STRINGS: Final = 64
"""Strings that are skipped one by one: a prompt of 220 KB is one of a dozen, and its end is found in a seventh of the time of a count."""
_FEW_MARKS: Final = 8
"""Marks that are found one by one, before numpy looks at all that follows: there may be no more."""
_SHORT_BYTES: Final = 4096
"""In more than that numpy counts: `bytes.count` looks at one byte after the other, and took a sixth of a request of 220 KB."""
_LONG_BYTES: Final = 48 * 1024
"""In more than that numpy looks for what is not ASCII: a call of it takes as long as `bytes.isascii` of so much."""


def structure_of(body: bytes) -> Structure:
    """What of a JSON body takes time and memory beside its text; for other bytes the answer may be anything.

    Exact where the body has few strings and none with an escaped quote. For others it counts as if nothing were within a string, which is
    never too little.
    """
    if body and body[0] == _GRPC:
        return _counted(body, None)
    outside: list[bytes] = []
    begin = 0
    for strings in range(_FEW_STRINGS):
        opens = body.find(b'"', begin)
        if opens < 0:
            outside.append(body[begin:])
            return _counted(b"".join(outside), 2 * strings)
        outside.append(body[begin:opens])
        closes = body.find(b'"', opens + 1)
        if closes < 0 or body[closes - 1] == _BACKSLASH:
            break
        begin = closes + 1
    return _counted(body, None)


def _counted(text: bytes, quotes: int | None) -> Structure:
    """What there is in a text without strings, but for so many quotes; in a whole body with None."""
    exact = quotes is not None
    return Structure(_count(text, b","), _count(text, b"{"), _count(text, b"["), _count(text, b'"') if quotes is None else quotes, exact)


def _count(text: bytes, mark: bytes) -> int:
    if len(text) <= _SHORT_BYTES:
        return text.count(mark)
    found = 0
    position = text.find(mark)
    while position >= 0:
        if found == _FEW_MARKS:
            return found + int(np.count_nonzero(np.frombuffer(text, dtype=np.uint8, offset=position) == mark[0]))
        found += 1
        position = text.find(mark, position + 1)
    return found


def is_ascii(body: bytes) -> bool:
    """What `bytes.isascii` says; of a long body in a third of its time, from the sign of each byte."""
    if len(body) < _LONG_BYTES:
        return body.isascii()
    return int(np.frombuffer(body, dtype=np.int8).min()) >= 0


def is_large(incoming: IncomingRequest, most_bytes: int, most_weight: int) -> bool:
    """Whether another process is to parse a body, for its length or for its structure; the structure is noted for who asks next."""
    body = incoming.body
    if body is None or len(body) > most_bytes:
        return body is not None
    if len(body) <= LIGHT_BYTES:
        return False
    if isinstance(body, LongBody):  # the operator allows longer ones in place
        body = incoming.body = body.whole()
    incoming.structure = structure_of(body)
    return is_heavy(body, incoming.structure, most_weight)


def is_heavy(body: bytes, structure: Structure, most: int) -> bool:
    """Whether parsing a body, rendering its prompt and exchanging its model would take more than some milliseconds.

    Args:
        body: JSON, or what claims to be. For other bodies the answer may be wrong either way, which costs time and nothing else.
        structure: What `structure_of` says of it.
        most: The weight that is allowed: 1 for each comma, 2 for each quote, 16 for each object or list; within strings nothing counts.
            A weight of 32 Ki takes 2 to 5 ms, on a machine with two cores.
    """
    weight = structure.commas + _CONTAINER * (structure.objects + structure.lists) + _QUOTE_MARK * structure.quotes
    if weight > most and (structure.exact or body[0] == _GRPC or _weight(body) > most):
        return True
    return len(body) > _LENIENT_BYTES and (body[0] == _GRPC or _is_read_leniently(body))


def _weight(body: bytes) -> int:
    """The weight without what stands within strings: of marks with an odd number of quotes before them."""
    octets = np.frombuffer(body, dtype=np.uint8)
    is_quote = octets == _QUOTE
    if b"\\" in body:
        is_quote[_escaped(octets)] = False
    quotes = np.flatnonzero(is_quote)
    opens = _outside(np.flatnonzero((octets == _LIST) | (octets == _OBJECT)), quotes)
    return _outside(np.flatnonzero(octets == _COMMA), quotes) + _CONTAINER * opens + _QUOTE_MARK * len(quotes)


def _escaped(octets: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Where something follows an odd number of backslashes."""
    slashes = np.flatnonzero(octets == _BACKSLASH)
    firsts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
    lasts = np.append(firsts[1:], len(slashes)) - 1
    behind: npt.NDArray[np.intp] = slashes[lasts[(lasts - firsts) % 2 == 0]] + 1
    return behind[behind < len(octets)]


def _outside(places: npt.NDArray[np.intp], quotes: npt.NDArray[np.intp]) -> int:
    """How many of these places have an even number of quotes before them."""
    return len(places) - int(np.count_nonzero(np.searchsorted(quotes, places) & 1))


def _is_read_leniently(body: bytes) -> bool:
    octets = np.frombuffer(body, dtype=np.uint8)
    # Not a search for `\\ud`, which took ten times as long in text, and twenty times in text without a backslash.
    if b"\\" in body and bool(np.any((octets[:-2] == _BACKSLASH) & (octets[1:-1] == _U) & ((octets[2:] | 0x20) == _D))):
        return True
    if is_ascii(body):
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return True
    return False
