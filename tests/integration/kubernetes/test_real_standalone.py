"""The chart's Pod with an Envoy in it, as plain processes beside a real API server: a request is routed; skipped without binaries."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from integration.gateway.running import ask, envoy, model_servers
from integration.kubernetes.real_api_server import RealApiServer, free_port
from integration.kubernetes.real_cluster import BINARIES
from integration.kubernetes.real_manifests import apply
from integration.kubernetes.rendering import NEEDED, helm_template, merged, only
from integration.plugins.serving import serving

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(120)]


async def answers(url: str) -> tuple[int, str]:
    """Ask until Envoy listens and knows the model server."""
    async with asyncio.timeout(30):
        while True:
            try:
                answer = await ask(url)
            except OSError:
                answer = (0, "")
            if answer[0] == 200:
                return answer
            await asyncio.sleep(0.05)


async def test_service_of_a_standalone_release_is_the_gateway(tmp_path: Path):
    binary, port, picker_port = envoy(), free_port(), free_port()
    proxy = {"enabled": True, "image": "registry.example/envoy:1.40", "port": port}
    items = helm_template(merged(NEEDED, {"router": {"proxy": proxy}}), namespace="default", release="pool")
    pod = only(items, "Deployment")["spec"]["template"]["spec"]
    (prepare,), (picker, gateway) = pod["initContainers"], pod["containers"]
    shared, config = tmp_path / "shared", tmp_path / "config"
    shared.mkdir()
    config.mkdir()
    for name, text in next(item["data"] for item in items if item["kind"] == "ConfigMap").items():
        (config / name).write_text(text)

    def here(text: str) -> str:
        return text.replace("/run/endpick", str(shared)).replace("/config/", f"{config}/").replace("9002", str(picker_port))

    path = f"{BINARIES}:{os.environ['PATH']}"
    prepared = await asyncio.create_subprocess_exec(*prepare["command"], *map(here, prepare["args"]), env={**os.environ, "PATH": path})
    assert await prepared.wait() == 0
    (shared / "envoy.yaml").write_text(here((shared / "envoy.yaml").read_text()))
    (tmp_path / "config.yaml").write_text(next(iter(config.glob("default*"))).read_text())
    async with RealApiServer(tmp_path) as real, model_servers(tmp_path, 1) as (_, urls):
        for item in items:
            if item["kind"] in ("ServiceAccount", "Role", "RoleBinding"):
                await apply(real, item)
        await real.pool(int(urls["sim-0"].rpartition(":")[2]))
        await real.pod("a", "127.0.0.1")
        token = await real.service_account_token("default", "pool-epp")
        arguments = [here(each) for each in picker["args"] if not each.startswith(("--config-file", "--grpc-health-port"))]
        command = [str(binary), *map(here, gateway["command"][1:]), "--base-id", str(port), "--log-level", "error"]
        running = await asyncio.create_subprocess_exec(*command)
        try:
            async with serving(tmp_path, *arguments, f"--kubeconfig={real.kubeconfig(token)}") as served:
                assert await answers(f"http://127.0.0.1:{port}") == (200, "sim-0")
                assert sum((await served.samples("llm_d_epp_request_total")).values()) >= 1, "endpick picks"
        finally:
            running.send_signal(signal.SIGTERM)
            await running.wait()
