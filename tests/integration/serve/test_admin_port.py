"""The metrics port of a serving process, with hostile names and hanging clients."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from integration.plugins.serving import Picker, serving
from integration.serve.gateway import RANDOM

pytestmark = pytest.mark.asyncio


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(RANDOM)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    return tmp_path


async def page(picker: Picker, **headers: str) -> str:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"http://127.0.0.1:{picker.metrics_port}/metrics", headers=headers) as response,
    ):
        assert response.status == 200
        return await response.text()


async def test_the_page_stays_small_with_made_up_model_names(folder):
    async with serving(folder) as picker:
        for number in range(200):
            assert await picker.ask(model=f"made-up-{number}") == ("127.0.0.1:1", 0)
        text = await page(picker)
        assert len(text) < 2_000_000
        assert text.count("llm_d_epp_request_total{") <= 101
        assert "# EOF" in await page(picker, Accept="application/openmetrics-text; version=1.0.0")


async def test_health_is_answered_beside_500_unfinished_requests(folder):
    async with serving(folder) as picker:
        unfinished = [await asyncio.open_connection("127.0.0.1", picker.metrics_port) for _ in range(500)]
        for _, writer in unfinished:
            writer.write(b"GET /healthz HTTP/1.1\r\nhost: ")
        assert (await picker.health())[0] == 200
        for _, writer in unfinished:
            writer.transport.abort()


async def test_health_reports_draining(folder):
    async with serving(folder, "--drain-timeout=20s") as picker:
        assert await picker.health() == (200, "ok\n")
        assert await picker.samples("endpick_ready") == {(): 1}
        call, _ = await picker.begin()
        picker.process.send_signal(signal.SIGTERM)
        await picker.logged("draining")
        assert await picker.health() == (503, "draining\n")
        assert await picker.samples("endpick_ready") == {(): 0}
        call.cancel()
        picker.process.send_signal(signal.SIGTERM)
        assert await picker.process.wait() == 0
