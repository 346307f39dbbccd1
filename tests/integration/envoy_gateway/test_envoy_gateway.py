"""A real Envoy Gateway, without Kubernetes, with the resources of examples/envoy-gateway: ENVOY_GATEWAY=/path/to/envoy-gateway."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
import pytest

from docs.pages import ROOT
from docs.test_envoy_examples import READY_SECONDS, start
from endpick_lab.demo.processes import Child, Children
from integration.gateway.running import ask, envoy, model_servers

RESOURCES = ROOT / "examples" / "envoy-gateway" / "resources.yaml"
ENVOY_VERSION = "1.40.0"
REQUESTS = 20
GATEWAY = """\
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: File, file: {paths: [FOLDER/resources]}}
    infrastructure: {type: Host, host: {configHome: FOLDER/config, dataHome: FOLDER/data, stateHome: FOLDER/state, runtimeDir: FOLDER/run}}
extensionApis: {enableBackend: true, enableEnvoyPatchPolicy: true}
"""
# Only without Kubernetes: it runs the Envoy that is there instead of downloading one.
HOST = f"""\
---
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyProxy
metadata: {{name: host, namespace: default}}
spec: {{provider: {{type: Host, host: {{envoyVersion: {ENVOY_VERSION}}}}}}}
"""

pytestmark = [
    pytest.mark.skipif("ENVOY_GATEWAY" not in os.environ, reason="needs ENVOY_GATEWAY=/path/to/envoy-gateway"),
    pytest.mark.timeout(120),
    pytest.mark.asyncio,
]


@asynccontextmanager
async def gateway(folder: Path, servers: list[str], known: list[str], **parameters: object) -> AsyncIterator[str]:
    """Run it with these servers, and endpick, which knows some of them and picks at random; gives the URL."""
    async with Children(folder) as children:
        config = {
            "apiVersion": "llm-d.ai/v1",
            "kind": "EndpointPickerConfig",
            "plugins": [
                {"type": "random-picker", "parameters": parameters},
                {"type": "static-discovery", "parameters": {"endpoints": [_endpoint(server) for server in known]}},
            ],
            "dataLayer": {"discovery": {"endpoints": {"pluginRef": "static-discovery"}}},
        }
        (folder / "config.yaml").write_text(json.dumps(config))
        ports = ("--grpc-port=0", "--grpc-health-port=0", "--metrics-port=0", "--host=127.0.0.1", "--log-format=json")
        serving = r'(\{[^\n]*"event":"serving".*)\n'
        picker = await start(children, "endpick", "serve", "config.yaml", "--secure-serving=false", *ports, ready=serving)
        port = _free_port()
        _write(folder, servers, orjson.loads(picker)["ext_proc_port"], port)
        child = await children.start("envoy-gateway", (os.environ["ENVOY_GATEWAY"], "server", "--config-path", folder / "gateway.yaml"))
        await _routes(child, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"


def _endpoint(server: str) -> dict[str, object]:
    host, _, port = server.rpartition(":")
    return {"name": f"s{port}", "address": host, "port": int(port)}


def _write(folder: Path, servers: list[str], picker_port: int, port: int) -> None:
    """Its configuration, certificates, Envoy, and the example with these addresses."""
    text = RESOURCES.read_text()
    begin, end = (text.index(f"    - ip: {{address: 10.0.0.{last}, port: 8000}}\n") for last in (10, 11))
    written = text[begin : text.index("\n", end) + 1]
    backends = "".join("    - ip: {{address: {0}, port: {2}}}\n".format(*server.rpartition(":")) for server in servers)
    changes = {
        written: backends,
        "port: 9002": f"port: {picker_port}",
        "port: 8088": f"port: {port}",
        "gatewayclass-controller}": "gatewayclass-controller, parametersRef: {group: gateway.envoyproxy.io, kind: EnvoyProxy, "
        "name: host, namespace: default}}",
    }
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    for name in ("resources", "config", f"data/envoy-versions/{ENVOY_VERSION}/bin"):
        (folder / name).mkdir(parents=True)
    (folder / "resources" / "all.yaml").write_text(text + HOST)
    (folder / "gateway.yaml").write_text(GATEWAY.replace("FOLDER", str(folder)))
    (folder / "data" / "envoy-versions" / ENVOY_VERSION / "bin" / "envoy").symlink_to(envoy())
    command = [os.environ["ENVOY_GATEWAY"], "certgen", "--local", "--config-home", folder / "config"]
    subprocess.run(command, check=True, capture_output=True)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


async def _routes(child: Child, url: str) -> None:
    """Wait for the first answer."""

    async def look() -> bool | None:
        try:
            return (await ask(url))[0] == 200 or None
        except OSError:
            return None

    await child.wait_until_ready(look, READY_SECONDS)


async def test_requests_go_where_endpick_says(tmp_path: Path):
    async with model_servers(tmp_path, 3) as (_, urls):
        servers = {name: url.removeprefix("http://") for name, url in urls.items()}
        async with gateway(tmp_path, list(servers.values()), [servers["sim-1"]]) as url:
            served = Counter([await ask(url, stream=bool(number % 2)) for number in range(REQUESTS)])
    assert served == {(200, "sim-1"): REQUESTS}


async def test_unreachable_server_costs_no_client_a_request(tmp_path: Path):
    async with model_servers(tmp_path, 2) as (_, urls):
        dead = f"127.0.0.1:{_free_port()}"
        servers = [*(url.removeprefix("http://") for url in urls.values()), dead]
        async with gateway(tmp_path, servers, [servers[0], dead], maxNumOfEndpoints=2) as url:
            served = Counter([await ask(url) for _ in range(REQUESTS)])
    assert served == {(200, "sim-0"): REQUESTS}
