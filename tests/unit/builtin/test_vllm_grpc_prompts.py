"""Prompts in requests to vLLM's gRPC API, and their limits."""

from __future__ import annotations

import struct

import pytest

from endpick.api import Media, ParsedRequest
from endpick.extproc.messages import varint
from endpick_builtin.parsers.grpc_parsers import GENERATE, MAX_BODY_BYTES, MAX_TOKENS, VllmGRPCParser
from unit.scheduling.workbench import instance


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def framed(message: bytes) -> bytes:
    return b"\0" + len(message).to_bytes(4, "big") + message


def request_of(tokens: bytes, media: bytes = b"") -> bytes:
    return framed(field(2, field(2, tokens)) + field(7, media))


def parsed(body: bytes) -> ParsedRequest:
    request = instance(VllmGRPCParser).plugin.parse(GENERATE, {}, body)
    assert isinstance(request, ParsedRequest)
    return request


@pytest.mark.parametrize("token", [1, 2**32 - 1])
def test_token_ids_become_the_prompt(token):
    assert parsed(request_of(varint(token) * 500)).prompt.texts == (struct.pack("<500I", *[token] * 500),)


@pytest.mark.parametrize("body", [request_of(b"\1" * (MAX_TOKENS + 1)), framed(b"x" * MAX_BODY_BYTES)], ids=["tokens", "bytes"])
def test_requests_over_the_limits_are_413(body):
    assert instance(VllmGRPCParser).plugin.parse(GENERATE, {}, body).status == 413


def test_media_beyond_the_1024th_are_not_kept():
    place, name = field(5, b"\x08\x00\x10\x01"), field(6, b"image")
    (pieces,) = parsed(request_of(b"\1" * 5000, place * 3 + name)).prompt.pieces
    assert [type(piece) for piece in pieces] == [Media, bytes]
    places = b"".join(field(5, b"\x08" + varint(at) + b"\x10\x01") for at in range(0, 4000, 2))
    (pieces,) = parsed(request_of(b"\1" * 5000, places + name * 2000)).prompt.pieces
    assert sum(isinstance(piece, Media) for piece in pieces) == 1024
