"""nghttp2's h2load as a client of the h2 transport."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from endpick.requests.model import CloseCause
from endpick.transport.h2.stream import MESSAGE_HEAD
from endpick.transport.methods import EXT_PROC_PATH
from endpick.transport.tls import TlsSettings

REQUESTS = 60


@pytest.mark.asyncio
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_h2load_streams_are_answered(open_h2, tmp_path: Path, scheme):
    size = 50_000
    h2load = shutil.which("h2load")
    if h2load is None:
        pytest.skip("no h2load: install nghttp2-client")
    body = tmp_path / "message"
    body.write_bytes(MESSAGE_HEAD.pack(0, size) + bytes(size))
    async with open_h2(tls=TlsSettings() if scheme == "https" else None) as serving:
        url = f"{scheme}://127.0.0.1:{serving.port}{EXT_PROC_PATH}"
        headers = ("-H", "content-type: application/grpc", "-H", "te: trailers")
        process = await asyncio.create_subprocess_exec(
            h2load, f"-n{REQUESTS}", "-c3", "-m5", "-d", str(body), *headers, url, stdout=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            output, _ = await process.communicate()
        assert re.search(rf"{REQUESTS} succeeded, 0 failed, 0 errored", output.decode()), output.decode()
        assert serving.log.received == [bytes(size)] * REQUESTS
        assert serving.log.causes == [CloseCause.END] * REQUESTS
        assert serving.server.counters.connection_errors == serving.server.counters.stream_errors == 0
