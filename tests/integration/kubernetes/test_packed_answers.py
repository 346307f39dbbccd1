"""Answers of the API server that are packed, which nothing asked for: what a short one unpacks to would hold the event loop."""

from __future__ import annotations

import zlib

import pytest
from aiohttp import web

from integration.kubernetes.api_server import PODS, ApiServer, pod, pool
from integration.kubernetes.conftest import following

PACKED = zlib.compress(b" " * (80 * 1024 * 1024))


@pytest.fixture
def one(server) -> ApiServer:
    pool(server)
    pod(server, "a", "10.0.0.1")
    return server


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (200, "pods cannot be listed, trying again: the answer is packed (deflate), not JSON; is this an API server?"),
        (410, "pods: listing again: 410 packed (deflate)"),
        (503, "pods cannot be listed, trying again: 503 packed (deflate)"),
    ],
)
@pytest.mark.asyncio
async def test_what_is_packed_is_neither_asked_for_nor_unpacked_and_its_status_counts(one, tmp_path, caplog, status, told):
    wrong, accepted = iter([True]), set()

    def instead(request):
        accepted.add(request.headers["Accept-Encoding"])
        if request.path != PODS or "watch" in request.query or not next(wrong, False):
            return None
        return web.Response(body=PACKED, content_type="application/json", headers={"Content-Encoding": "deflate"}, status=status)

    one.instead = instead
    caplog.set_level("INFO")
    async with following(one, tmp_path) as followed:
        assert followed.members() == {"a-rank-0": "10.0.0.1:8000"}
    assert accepted == {"identity"}
    assert told in caplog.text
