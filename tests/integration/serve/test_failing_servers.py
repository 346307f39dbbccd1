"""Model servers that fail, sleep, die and come back, behind a real Envoy: where the requests go, and what an operator sees."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from integration.plugins.serving import Picker
from integration.serve.cluster import cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


@pytest.mark.asyncio
async def test_failing_server_gets_hardly_any_requests(tmp_path):
    async with cluster(tmp_path) as run:
        answers = await run.send(80)
        assert min(answers[name] for name in "abc") > 8
        run.servers["a"].status = 500
        await run.send_until("endpoint default/a: healthy -> ejected")
        answers = await run.send(400)
        assert answers["a"] <= 0.05 * answers.total()

        run.servers["a"].status = 200
        await run.send_until("endpoint default/a: probing -> healthy")
        assert (await run.send(80))["a"] > 8


@pytest.mark.asyncio
async def test_sleeping_engine_gets_no_request(tmp_path):
    async with cluster(tmp_path) as run:
        run.servers["b"].awake = 0
        await run.picker.logged("endpoint default/b: healthy -> ejected (asleep")
        assert set(await run.send(40)) == {"a", "c"}
        run.servers["b"].awake = 1
        await run.send_until("endpoint default/b: probing -> healthy")


@pytest.mark.asyncio
async def test_dead_servers_are_reported_and_come_back(tmp_path):
    async with cluster(tmp_path, "--unready-without-endpoints", "--metrics-staleness-threshold=1s", ejection="60s") as run:
        assert (await run.picker.health())[1] == "ok\n"
        for server in run.servers.values():
            await server.stop()
        for name in "abc":
            await run.picker.logged(f"endpoint default/{name}: healthy -> degraded (it reports no metrics any more)")
        assert sum((await run.picker.samples("llm_d_epp_ready_endpoints")).values()) == 0
        for name in "abc":
            if not await ejected(run.picker, name):
                await run.send_until(f"endpoint default/{name}: degraded -> ejected")
        text = await health_with(run.picker, 503)
        assert text.startswith("no endpoint is healthy, degraded or probing\n")
        assert text.count("is ejected for") == 3
        url = f"http://127.0.0.1:{run.picker.metrics_port}"
        doctor = await asyncio.to_thread(CliRunner().invoke, main, ["doctor", "--serving", url, "--strict"])
        assert (doctor.exit_code != 0, doctor.output.count("is ejected for")) == (True, 3)
        errors = await run.picker.samples("endpick_endpoint_errors_total")
        assert {dict(labels)["reason"] for labels in errors} <= {"connect-failure", "reset"}

        await run.servers["a"].start()
        await run.picker.logged("endpoint default/a: its model server restarted")
        await run.send_until("endpoint default/a: probing -> healthy")
        assert (await health_with(run.picker, 200)).startswith("ok\n")
        assert set(await run.send(80)) == {"a"}, "the others are known to be dead"


async def ejected(picker: Picker, name: str) -> bool:
    labels = (
        ("endpoint_name", f"default/{name}"),
        ("plugin_name", "endpoint-health"),
        ("plugin_type", "endpoint-health"),
        ("state", "ejected"),
    )
    return (await picker.samples("endpick_endpoint_state"))[labels] == 1


async def health_with(picker: Picker, status: int) -> str:
    """The text of `/healthz` once it has this status."""
    async with asyncio.timeout(10):
        while (answer := await picker.health())[0] != status:  # noqa: ASYNC110 - another process gives no event to wait for
            await asyncio.sleep(0.05)
    return answer[1]
