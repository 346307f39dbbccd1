"""Golden vectors of parsers: what they read from requests, and the usage that is found in answers."""

from __future__ import annotations

import json
import struct

import pytest

from endpick.api import ParsedRequest, Rejection
from endpick.requests.model import CloseCause
from unit.builtin.vectors import built, cases, in_http_body, in_request
from unit.requests.stage import Stage

REQUESTS = {
    "openai-parser": ("/v1/completions", b'{"model":"m","prompt":"x"}'),
    "anthropic-parser": ("/v1/messages", b'{"model":"m","messages":[{"role":"user","content":"x"}]}'),
    "vllmhttp-parser": ("/inference/v1/generate", b'{"model":"m","token_ids":[1]}'),
    "sglanghttp-parser": ("/generate", b'{"input_ids":[1]}'),
    "vllmgrpc-parser": ("/vllm.grpc.engine.VllmEngine/Generate", bytes.fromhex("00000000071a057465737431")),
    "vertexai-parser": ("/x.PredictionService/ChatCompletions", in_request(b'{"model":"m","messages":[{"role":"user","content":"x"}]}')),
    "passthrough-parser": ("/x", b"x"),
}


def body_of(case):
    if "hex" in case:
        return bytes.fromhex(case["hex"])
    if "http_body" in case:
        return in_request(json.dumps(case["http_body"]).encode())
    return case["body"].encode() if isinstance(case["body"], str) else json.dumps(case["body"]).encode()


@pytest.mark.parametrize("case", cases("parsers"))
def test_what_is_read_from_a_request(case):
    plugin, expected = built(case).plugin, dict(case["expect"])
    assert not plugin.claims or any(case["path"].endswith(claim) for claim in plugin.claims)

    parsed = plugin.parse(case["path"], {}, body_of(case))

    if "status" in expected:
        assert isinstance(parsed, Rejection), parsed
        assert (parsed.status, expected["message"] in parsed.message) == (expected["status"], True), parsed.message
        return
    assert isinstance(parsed, ParsedRequest), parsed
    assert {
        "model": parsed.model,
        "streaming": parsed.streaming,
        "limit": parsed.max_output_tokens,
        "salt": parsed.cache_salt,
        "needs_model": parsed.needs_model,
        "skip_response": parsed.skip_response,
        "media": [[media.modality, media.content] for media in parsed.prompt.media],
    } == {
        "model": expected.pop("model", ""),
        "streaming": expected.pop("streaming", False),
        "limit": expected.pop("limit", None),
        "salt": expected.pop("salt", ""),
        "needs_model": expected.pop("needs_model", True),
        "skip_response": expected.pop("skip_response", False),
        "media": expected.pop("media", []),
    }
    check_prompt(parsed, expected)


def check_prompt(parsed, expected):
    """The texts, or token ids, or how many token ids there are; pieces without media are the texts again."""
    prompt, tokens = parsed.prompt, expected.pop("tokens", None)
    if isinstance(tokens, list):
        assert prompt.texts == (struct.pack(f"<{len(tokens)}I", *tokens),)
    elif tokens is not None:
        assert prompt.estimated_tokens == tokens
    if "texts" in expected:
        assert prompt.texts == tuple(text.encode() for text in expected.pop("texts"))
    if not prompt.media:
        joined = tuple(b"".join(piece for piece in pieces if isinstance(piece, bytes)) for pieces in prompt.pieces)
        assert joined == prompt.texts
    assert expected == {}


def chunks_of(case):
    if "hex" in case:
        return [bytes.fromhex(chunk) for chunk in case["hex"]]
    if "http_bodies" in case:
        bodies = [in_http_body(data.encode()) for data in case["http_bodies"]]
        return [b"\0" + len(body).to_bytes(4, "big") + body for body in bodies]
    return [chunk.encode() for chunk in case["chunks"]]


@pytest.mark.parametrize("one_by_one", [False, True], ids=["as-cut", "byte-by-byte"])
@pytest.mark.parametrize("case", cases("usage"))
def test_the_usage_that_is_found_in_an_answer(case, one_by_one):
    path, body = REQUESTS[case["type"]]
    stage = Stage(parsers=[built(case)])
    exchange = stage.route(body, path=case.get("path", path)).exchange
    exchange.response_headers({":status": "200", "content-type": case["kind"]}, None)
    for chunk in chunks_of(case):
        for piece in [chunk[at : at + 1] for at in range(len(chunk))] if one_by_one else [chunk]:
            assert exchange.response_chunk(piece, False) is None
    exchange.response_chunk(b"", True)
    exchange.finish(CloseCause.END)

    [end] = stage.telemetry.ended
    found = end.usage and [end.usage.prompt_tokens, end.usage.completion_tokens, end.usage.cached_tokens]
    assert found == case["expect"]
    assert stage.telemetry.faults == []


def test_at_most_a_thousand_media_parts_are_placed():
    ids, media = b"\x12\x04\x12\x02\x05\x06", b"\x2a\x04\x08\x01\x10\x01\x32\x01h"
    sent = b"\x2a\x04\x08\x00\x10\x00\x32\x01g" * 1024 + media
    message = ids + b"\x3a" + bytes([len(sent) & 0x7F | 0x80, len(sent) >> 7 & 0x7F | 0x80, len(sent) >> 14]) + sent
    plugin = built({"type": "vllmgrpc-parser"}).plugin
    for body, found in ((message, 0), (ids + b"\x3a\x09" + media, 1)):
        parsed = plugin.parse("/vllm.grpc.engine.VllmEngine/Generate", {}, b"\0" + len(body).to_bytes(4, "big") + body)
        assert len(parsed.prompt.media) == found
