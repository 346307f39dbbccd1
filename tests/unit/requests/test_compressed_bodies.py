"""Compressed requests are refused; the usage of compressed responses is read, or its loss is reported."""

from __future__ import annotations

import gzip
import json
import sys
import zlib

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.api import Usage
from endpick.requests import compressed_body
from endpick.requests.model import CloseCause
from unit.requests.stage import CHAT, JSON_OK, Stage, pieces

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COMPRESS = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstd.compress,
    "identity": bytes,
}
WHOLE = json.dumps({"model": "m", "text": "x" * 300_000, "usage": {"prompt_tokens": 7, "completion_tokens": 3}}).encode()
EVENTS = b'data: {"text":"x"}\n\n' * 5000 + b'data: {"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
BODIES = {"application/json": WHOLE, "text/event-stream": EVENTS}


def response(encoding, chunks, content_type="application/json", **headers):
    """The usage, and what was reported as unread."""
    stage = Stage()
    exchange = stage.route(CHAT, **headers).exchange
    exchange.response_headers({":status": "200", "content-type": content_type, "content-encoding": encoding}, None)
    assert [exchange.response_chunk(chunk, False) for chunk in chunks] == [None] * len(chunks)
    exchange.finish(CloseCause.END)
    return stage.telemetry.ended[0].usage, stage.telemetry.unread


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("content_type", BODIES)
@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_usage_of_a_compressed_response_is_read(encoding, content_type, cuts):
    body = BODIES[content_type]
    assert response(encoding, pieces(COMPRESS[encoding](body), cuts), content_type) == (Usage(7, 3), [])


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
def test_flushed_members_are_read_one_by_one(encoding):
    members = [COMPRESS[encoding](event + b"\n\n") for event in EVENTS.split(b"\n\n")[-4:]]
    assert response(encoding, [b"".join(members)], "text/event-stream") == (Usage(7, 3), [])


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "zstd"])
def test_corrupt_response_is_reported_once(encoding):
    broken = b"\xff\xff" + COMPRESS[encoding](WHOLE)
    assert response(encoding, [broken, broken]) == (None, [(encoding, "usage")])


@pytest.mark.parametrize("encoding", ["gzip, br", "compress", "dcb"])
def test_unknown_encoding_is_reported(encoding):
    assert response(encoding, [b"\x00" * 10]) == (None, [(encoding, "usage")])


@pytest.mark.parametrize("encoding", ["br", "zstd"])
def test_missing_library_is_reported(encoding, monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(compressed_body, "import_module", missing)
    compressed_body._module.cache_clear()
    try:
        assert response(encoding, [COMPRESS[encoding](WHOLE)]) == (None, [(encoding, "usage")])
    finally:
        compressed_body._module.cache_clear()


def test_model_name_of_a_compressed_response_is_reported():
    body = gzip.compress(WHOLE)
    assert response("gzip", [body], x_llm_d_model_name_rewrite="theirs") == (Usage(7, 3), [("gzip", "model name")])


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate", "gzip, br", "x" * 1000])
def test_compressed_request_is_refused_by_name(encoding):
    refused = Stage().refuse(gzip.compress(json.dumps(CHAT).encode()), content_encoding=encoding)
    name = repr(encoding[:100])
    assert (refused.status, refused.code) == (415, "UnsupportedMediaType")
    assert refused.message == f"the request body has content-encoding {name}, but is read uncompressed only; send it without"


def test_unread_request_may_be_compressed():
    assert Stage().route(gzip.compress(b"{}"), path="/v1/other", content_encoding="gzip").body is None
    assert Stage().route(CHAT, content_encoding="Identity").body is None


def test_uncompressed_response_is_read_directly():
    exchange = Stage().route(CHAT).exchange
    exchange.response_headers(JSON_OK, None)
    assert not isinstance(exchange._usage, compressed_body.CompressedUsage)
