"""Model servers die and leave under load; requests to the others notice nothing."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from integration.serve.gateway import PREFIX_AWARE, RANDOM, running_gateway, until
from integration.serve.load import Load

pytestmark = pytest.mark.long

SLOW_SERVERS = ("--model", "m", "--prefill-ms-per-token", "0.01", "--decode-ms", "5")


@pytest.mark.asyncio
async def test_endpoint_removed_under_load_costs_no_request(tmp_path):
    async with running_gateway(tmp_path, RANDOM, servers=3, server_options=SLOW_SERVERS) as gateway, asyncio.TaskGroup() as clients:
        load = Load()
        for number in range(8):
            clients.create_task(load.client(gateway, number))
        await load.beyond(60)
        before = set(load.served)

        lines = gateway.endpoints_file.read_text().splitlines()
        gateway.endpoints_file.write_text("\n".join(line for line in lines if "sim-2" not in line) + "\n")

        async def gone() -> bool:
            return await gateway.sample("llm_d_epp_ready_endpoints") == 2

        await until(gone, "the endpoint is gone from the pool")
        await load.beyond(10)
        load.served.clear()
        await load.beyond(60)
        load.stopping = True

    assert before == {"sim-0", "sim-1", "sim-2"}
    assert set(load.served) == {"sim-0", "sim-1"}
    assert load.failed == []


@pytest.mark.asyncio
async def test_killed_model_server_fails_only_what_was_sent_to_it(tmp_path):
    async with running_gateway(tmp_path, RANDOM, servers=3, server_options=SLOW_SERVERS) as gateway:
        load = Load()
        async with asyncio.TaskGroup() as clients:
            for number in range(8):
                clients.create_task(load.client(gateway, number))
            await load.beyond(60)
            assert load.failed == []
            os.kill(gateway.children.named("sim-1").process.pid, signal.SIGKILL)
            await load.beyond(60)
            load.stopping = True

        sent_to_dead = await gateway.sample("llm_d_epp_scheduler_attempts_total", {"endpoint_name": "sim-1"})
        errors = await gateway.sample("llm_d_epp_datalayer_poll_errors_total")

    assert sent_to_dead > load.served["sim-1"]
    assert len(load.failed) <= sent_to_dead - load.served["sim-1"], "Envoy may try another server"
    assert all(failure.startswith("503") or "Server" in failure or "Payload" in failure for failure in load.failed), load.failed[:5]
    assert errors > 0


@pytest.mark.asyncio
async def test_killed_model_server_gets_no_requests_once_stale(tmp_path):
    """Its last values look idle: without the default screener it would win most decisions from here on."""
    async with running_gateway(tmp_path, PREFIX_AWARE, servers=3, server_options=SLOW_SERVERS) as gateway, asyncio.TaskGroup() as clients:
        load = Load()
        for number in range(8):
            clients.create_task(load.client(gateway, number))
        await load.beyond(60)
        os.kill(gateway.children.named("sim-1").process.pid, signal.SIGKILL)

        async def silent() -> bool:
            return await gateway.sample("endpick_data_age_seconds", {"key": "waiting-queue-size"}) > 2.5

        await until(silent, "the killed server has been silent for 2.5 s")
        await load.beyond(20)
        load.served.clear()
        load.failed.clear()
        await load.beyond(100)
        load.stopping = True

    assert set(load.served) == {"sim-0", "sim-2"}
    assert load.failed == []
