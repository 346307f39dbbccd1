"""The field `model` of a JSON body: exchanged without a change of any other byte."""

from __future__ import annotations

import re

import orjson

# Possessive (`*+`): otherwise each escape of a string is remembered, in case a match begins anew there; 32 MiB of them took 11 s and 2 GiB.
_STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_TOKEN = re.compile(_STRING + rb"|[{}\[\]]", re.DOTALL)
_VALUE = re.compile(rb"\s*:\s*(" + _STRING + rb"|[^,}\s]+)", re.DOTALL)


def with_model(body: bytes, model: str) -> bytes:
    """The same JSON object with `model` as its model; the field is put first when there is none.

    Args:
        body: A valid JSON object.
        model: The new name.
    """
    name = orjson.dumps(model)
    pieces: list[bytes] = []
    copied = 0
    for start, end in _model_values(body):
        pieces += (body[copied:start], name)
        copied = end
    if pieces:
        return b"".join((*pieces, body[copied:]))
    start = body.index(b"{") + 1
    comma = b"" if body[start:].lstrip().startswith(b"}") else b","
    return body[:start] + b'"model":' + name + comma + body[start:]


def _model_values(body: bytes) -> list[tuple[int, int]]:
    """Where the values of the fields named `model` of the outermost object are; more than one only if the field is repeated."""
    found: list[tuple[int, int]] = []
    depth = 0
    for token in _TOKEN.finditer(body):
        text = token.group()
        if text in (b"{", b"["):
            depth += 1
        elif text in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and text == b'"model"' and (value := _VALUE.match(body, token.end())):
            found.append(value.span(1))
    return found
