"""What a request to vLLM's gRPC API keeps of its body."""

from __future__ import annotations

import struct
import tracemalloc

import pytest

from endpick.api import Media, ParsedRequest
from endpick.extproc.pieces import varint
from endpick.requests.memory import unparsed_size
from endpick_builtin.parsers.vllm_grpc import GENERATE, VllmGRPCParser
from unit.scheduling.workbench import instance


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def request_of(tokens: list[int], media: bytes = b"") -> bytes:
    message = field(2, field(2, b"".join(map(varint, tokens)))) + field(7, media)
    return b"\0" + len(message).to_bytes(4, "big") + message


def parsed(body: bytes) -> ParsedRequest:
    request = instance(VllmGRPCParser).plugin.parse(GENERATE, {}, body)
    assert isinstance(request, ParsedRequest)
    return request


@pytest.mark.parametrize("token", [1, 300, 20_000, 2**32 - 1])
def test_a_prompt_of_tokens_takes_no_more_than_is_accounted_for(token):
    body = request_of([token] * 50_000)
    parsed(body)
    tracemalloc.start()
    try:
        request = parsed(body)
        (text,) = request.prompt.texts
        assert tracemalloc.get_traced_memory()[0] < unparsed_size(body) - len(body) + 20_000
    finally:
        tracemalloc.stop()
    assert text == struct.pack("<50000I", *[token] * 50_000)


def test_media_beyond_the_1024th_are_not_kept():
    place, name = field(5, b"\x08\x00\x10\x01"), field(6, b"image")
    request = parsed(request_of([1] * 5000, place * 3 + name))
    (pieces,) = request.prompt.pieces
    assert [type(piece) for piece in pieces] == [Media, bytes]
    apart = b"".join(field(5, b"\x08" + varint(at) + b"\x10\x01") for at in range(0, 4000, 2)) + name * 2000
    (pieces,) = parsed(request_of([1] * 5000, apart)).prompt.pieces
    assert sum(isinstance(piece, Media) for piece in pieces) == 1024
