"""The gateways that behave, in a process of their own: how long they do, and what they say of it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import pytest

from integration.plugins.serving import serving
from integration.serve.gateway import RANDOM, until

ROOT = Path(__file__).parents[3]


@pytest.mark.asyncio
@pytest.mark.parametrize("is_told", [False, True])
async def test_gateways_ask_until_their_time_is_up_or_they_are_told(tmp_path, is_told):
    (tmp_path / "config.yaml").write_text(RANDOM)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    async with serving(tmp_path) as picker:
        command = [sys.executable, "-m", "benchmarks.siege.gateways", str(picker.port), "1e6" if is_told else "1"]
        # As under cron, or nohup: nothing can be waited for there.
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE)

        async def asked() -> bool:
            return (await picker.samples("endpick_session_events_total"))[(("event", "requests"),)] > 0

        try:
            if is_told:
                await until(asked, "the gateways ask")
                process.send_signal(signal.SIGTERM)
            printed, _ = await asyncio.wait_for(process.communicate(), 60)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    behaved = json.loads(printed)
    assert behaved["lost"] == 0
    assert behaved["requests"] == len(behaved["picks"]) > 0
