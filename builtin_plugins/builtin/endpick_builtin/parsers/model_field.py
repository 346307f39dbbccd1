"""The field `model` of a JSON body: exchanged without a change of any other byte."""

from __future__ import annotations

import re

import orjson

# Possessive (`*+`): otherwise each escape of a string is remembered, in case a match begins anew there; 32 MiB of them took 11 s and 2 GiB.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(rb'"[^"]*+"|[{}\[\]]')
"""In a text without escaped quotes: where each escape has to be gone past, a mebibyte of them takes three times as long."""
# Also in escapes: servers read them, and of repeated fields they take the last.
_MODEL = re.compile(rb'"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"')
_NAME, _ESCAPED_LETTER = b'"model"', rb"\u006"
_FEW_NAMES = 2
"""Fields of that name, however deep; with more of them one look at all of the body is cheaper than one for each."""
_FEW_SLASHES = 64
"""Bytes before a quote among which backslashes are counted, unless they are nothing else."""
_STEPS = {mark: 1 if mark in b"{[" else -1 for mark in b"{}[]"}
_VALUE = re.compile(rb"\s*+:\s*+(" + _STRING + rb"|[^,}\s]+)", re.DOTALL)


def with_model(body: bytes, model: str) -> bytes:
    """The same JSON object with `model` as its model; the field is put first when there is none.

    Args:
        body: A valid JSON object.
        model: The new name.
    """
    name = orjson.dumps(model)
    pieces: list[bytes | memoryview] = []
    whole, copied = memoryview(body), 0
    for start, end in _model_values(body):
        pieces += (whole[copied:start], name)
        copied = end
    if pieces:
        return b"".join((*pieces, whole[copied:]))
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return body[:start] + b'"model":' + name + comma + body[start:]


def _model_values(body: bytes) -> list[tuple[int, int]]:
    """Where the values of the fields named `model` of the outermost object are; more than one only if the field is repeated.

    The name is searched first, from the end, which is a fifth of the work of a search from the beginning. What stands before or behind it
    is then read for its depth. To read all of 220 KB takes two milliseconds.
    """
    if body.rfind(_ESCAPED_LETTER) >= 0:
        return _model_values_of_all(body)
    found: list[tuple[int, int]] = []
    names = 0
    place = body.rfind(_NAME)
    while place >= 0:
        value = _VALUE.match(body, place + len(_NAME))
        if value and not _is_escaped(body, place):
            names += 1
            if names > _FEW_NAMES:
                return _model_values_of_all(body)
            if _depth(body, place) == 1:
                found.append(value.span(1))
        place = body.rfind(_NAME, 0, place)
    return found[::-1]


def _is_escaped(body: bytes, place: int) -> bool:
    """Whether a quote is part of a string, because an odd number of backslashes stands before it."""
    if body[place - 1 : place] != b"\\":
        return False
    # A few bytes at first: a body may have thousands of such names, each behind a megabyte.
    look = _FEW_SLASHES
    while True:
        before = body[max(0, place - look) : place]
        slashes = len(before) - len(before.rstrip(b"\\"))
        if slashes < len(before) or look >= place:
            return bool(slashes & 1)
        look *= 2


def _depth(body: bytes, place: int) -> int:
    """How many objects and lists are open where a string begins: told from the shorter side."""
    is_early = place <= len(body) >> 1
    text = _without_escapes(body[:place] if is_early else body[place:])
    deeper = sum(_STEPS.get(text[token.start()], 0) for token in _TOKEN.finditer(text))
    return deeper if is_early else -deeper


def _model_values_of_all(body: bytes) -> list[tuple[int, int]]:
    """The same, token by token."""
    found: list[tuple[int, int]] = []
    depth = 0
    for token in _TOKEN.finditer(_without_escapes(body)):
        step = _STEPS.get(body[token.start()], 0)
        depth += step
        if depth == 1 and not step and _MODEL.fullmatch(token.group()) and (value := _VALUE.match(body, token.end())):
            found.append(value.span(1))
    return found


def _without_escapes(text: bytes) -> bytes:
    """As long, and without escaped quotes; `text` begins outside of strings."""
    return text.replace(b"\\\\", b"__").replace(b'\\"', b"__") if b"\\" in text else text
