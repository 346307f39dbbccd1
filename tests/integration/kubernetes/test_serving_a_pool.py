"""`endpick serve --pool-name`: a picker process that follows an API server, from not ready to routed requests."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from integration.kubernetes.api_server import NEW, PODS, POOLS, kubeconfig, pod, pool, status
from integration.kubernetes.api_server import serving as serving_api
from integration.kubernetes.conftest import eventually
from integration.kubernetes.real_api_server import free_port
from integration.plugins.serving import Picker, serving
from integration.serve.bodies import send

pytestmark = [pytest.mark.long, pytest.mark.asyncio]

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: random-picker}
"""
LARGE = b" " * 2**21


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    return tmp_path


async def goes_to(picker: Picker, expected: tuple[str, int]) -> None:
    """Ask until the answer is this one."""
    async with asyncio.timeout(20):
        while await picker.ask() != expected:  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.005)


async def test_requests_follow_the_pool(server, folder):
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with serving_api(server) as url:
        file = kubeconfig(folder / "kubeconfig", url)
        async with serving(folder, "--pool-name=pool", f"--kubeconfig={file}") as picker:
            assert await picker.ask() == ("10.0.0.1:8000", 0)
            pod(server, "b", "10.0.0.2")
            pod(server, "a", "10.0.0.1", deletionTimestamp="2026-08-22T00:00:00Z")
            await goes_to(picker, ("10.0.0.2:8000", 0))
            server.delete(POOLS, "pool")
            await goes_to(picker, ("", 503))
            pool(server, 9000)
            await goes_to(picker, ("10.0.0.2:9000", 0))

            told = await picker.logged("the pool has changed", 4)
            assert [(event.get("joined"), event.get("left")) for event in told][-1] == ("default/b-rank-0", None)
            changes = {dict(labels)["change"]: value for labels, value in (await picker.samples("endpick_pool_changes_total")).items()}
            assert changes["joined"] == 3
            assert changes["left"] == 2


async def test_rewrites_change_small_and_large_bodies(server, folder):
    pool(server)
    pod(server, "a", "10.0.0.1")
    spec = {"poolRef": {"name": "pool"}, "rules": [{"matches": [{"model": {"value": "m"}}], "targets": [{"modelRewrite": "tuned"}]}]}
    server.put(f"{NEW}/inferencemodelrewrites", "r", spec=spec)
    body = json.dumps({"model": "m", "prompt": "hello"}).encode()
    async with serving_api(server) as url:
        file = kubeconfig(folder / "kubeconfig", url)
        async with serving(folder, "--pool-name=pool", f"--kubeconfig={file}") as picker:
            for more in (b"", LARGE):
                assert await send(picker, body + more) == (0, b'{"model":"tuned","prompt":"hello"}')


async def test_health_is_503_until_the_pool_is_known(server, folder):
    port = free_port()

    async def healthz() -> tuple[int, str]:
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/healthz") as response:
            return response.status, await response.text()

    async with serving_api(server) as url:
        file = kubeconfig(folder / "kubeconfig", url)
        starting = serving(folder, "--pool-name=pool", f"--kubeconfig={file}", f"--metrics-port={port}")
        entering = asyncio.create_task(starting.__aenter__())
        try:
            await eventually(lambda: len(server.watched(POOLS)) > 0, lambda: "the pool is not watched", 30)
            assert await healthz() == (503, "starting\n")
            assert not entering.done()
            pool(server)
            await entering
            assert (await healthz())[0] == 200
        finally:
            await entering
            await starting.__aexit__(None, None, None)


async def test_pool_that_never_appears_ends_the_start(server, folder):
    async with serving_api(server) as url:
        file = kubeconfig(folder / "kubeconfig", url)
        options = ("--pool-name=pool", f"--kubeconfig={file}", "--discovery-timeout=1s")
        says = "reported no endpoints within 1 s: InferencePool default/pool of inference.networking.k8s.io does not exist"
        with pytest.raises(AssertionError, match=says):
            async with serving(folder, *options, exit_code=5):
                pytest.fail("it serves")


async def test_refused_permission_ends_the_start_by_name(server, folder):
    pool(server)
    server.instead = lambda request: status(403, "Forbidden") if request.path == PODS else None
    async with serving_api(server) as url:
        file = kubeconfig(folder / "kubeconfig", url)
        options = ("--pool-name=pool", f"--kubeconfig={file}", "--discovery-timeout=1s")
        says = (
            "reported no endpoints within 1 s: pods cannot be listed: 403 Forbidden: as the test wants it; "
            "the Role needs the verb `list` for pods in namespace default"
        )
        with pytest.raises(AssertionError, match=says):
            async with serving(folder, *options, exit_code=5):
                pytest.fail("it serves")
