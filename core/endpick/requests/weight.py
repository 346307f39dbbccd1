"""How long a body would hold the event loop: told from its bytes, before any parser sees it.

A mebibyte of text is parsed in a millisecond. The same of `{},{},…` takes a hundred, and as long again where its prompt is rendered or
its model exchanged. So what a body costs is counted on its structure, and a body that weighs too much is parsed elsewhere, however short.
"""

from __future__ import annotations

import numpy as np

LIGHT_BYTES = 16 * 1024
"""A body of no more is parsed in place without a look at its structure: the worst takes 5 ms."""
_LENIENT_BYTES = 256 * 1024
"""A body of more that has to be read leniently is heavy: bytes that are not UTF-8, or escapes of surrogates."""
_CONTAINER, _QUOTE_MARK = 16, 2
"""Of objects and lists, and of quotes, in commas: as long as they take in parsing, rendering and exchange of the model together."""
_QUOTE, _COMMA, _LIST, _OBJECT = b'",[{'


def is_heavy(body: bytes, most: int) -> bool:
    """Whether parsing a body, rendering its prompt and exchanging its model would take more than some milliseconds.

    Args:
        body: JSON, or what claims to be. For other bodies the answer may be wrong either way, which costs time and nothing else.
        most: The weight that is allowed: 1 for each comma, 2 for each quote, 16 for each object or list; within strings nothing counts.
            A weight of 32 Ki takes 2 to 5 ms, on a machine with two cores.
    """
    size = len(body)
    if size <= LIGHT_BYTES:
        return False
    # As if nothing were within a string: for most bodies that is enough, and takes a tenth of the time. Not `bytes.count`, which looks at
    # one byte after the other: of 220 KB that was a sixth of the whole request.
    octets = np.frombuffer(body, dtype=np.uint8)
    commas, objects, lists, quotes = [int(np.count_nonzero(octets == mark)) for mark in (_COMMA, _OBJECT, _LIST, _QUOTE)]
    if commas + _CONTAINER * (objects + lists) + _QUOTE_MARK * quotes > most and _weight(body) > most:
        return True
    return size > _LENIENT_BYTES and _is_read_leniently(body)


def is_large(body: bytes, most_bytes: int, most_weight: int) -> bool:
    """Whether another process is to parse a body, for its length or for its structure."""
    return len(body) > most_bytes or is_heavy(body, most_weight)


def _weight(body: bytes) -> int:
    plain = body.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in body else body
    whole = np.frombuffer(plain, dtype=np.uint8)
    quotes = whole == _QUOTE
    outside = ~np.logical_xor.accumulate(quotes)
    opens = int(np.count_nonzero(((whole == _LIST) | (whole == _OBJECT)) & outside))
    commas = int(np.count_nonzero((whole == _COMMA) & outside))
    return commas + _CONTAINER * opens + _QUOTE_MARK * int(np.count_nonzero(quotes))


def _is_read_leniently(body: bytes) -> bool:
    if b"\\ud" in body or b"\\uD" in body:
        return True
    if body.isascii():
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return True
    return False
