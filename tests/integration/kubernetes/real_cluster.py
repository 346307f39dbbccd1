"""A real kube-controller-manager, and a stand-in for scheduler and kubelet that runs the command of each Pod as a process."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from integration.kubernetes.real_api_server import RealApiServer, free_port, path_of
from integration.plugins.serving import Picker

BINARIES = Path(sys.executable).parent
CONTROLLERS = "deployment-controller,replicaset-controller,endpointslice-controller"
NAMESPACE = "models"
NODE = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0"}}
_LOOK_SECONDS = 0.05


@dataclass
class Container:
    """The process of a Pod. Its ports are the Pod's own, on a loopback address that stands for the Pod's."""

    pod: str
    folder: Path
    host: str
    command: tuple[str, ...]
    environment: dict[str, str]
    process: asyncio.subprocess.Process
    ready: bool = False
    is_ending: bool = False

    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def ask(self, prompt: str = "hello") -> tuple[str, int]:
        """See `Picker.ask`."""
        async with grpc.aio.insecure_channel(f"{self.host}:9002") as channel:
            return await Picker(self.process, channel, 9090).ask(prompt)

    async def is_serving(self, service: str) -> bool:
        async with grpc.aio.insecure_channel(f"{self.host}:9003") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            with suppress(grpc.aio.AioRpcError):
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=1)
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        return False


async def run(command: tuple[str, ...], environment: dict[str, str], folder: Path) -> asyncio.subprocess.Process:
    """Start a container's process; it appends to the log of its Pod."""
    with (folder / "log").open("ab") as log:
        return await asyncio.create_subprocess_exec(*command, env=environment, cwd=folder, stdout=log, stderr=log)


@dataclass
class Node:
    """Binds every Pod of the namespace, starts its command, and reports it Ready by its gRPC readiness probe."""

    real: RealApiServer
    folder: Path
    containers: dict[str, Container] = field(default_factory=dict)
    network: int = field(default_factory=lambda: 16 + secrets.randbelow(200))
    count: int = 0
    restarts: bool = True

    async def run(self) -> None:
        while True:
            await self.mount()
            for pod in await self.list("pods"):
                name = pod["metadata"]["name"]
                if name in self.containers:
                    await self.look_after(pod, self.containers[name])
                elif pod["spec"]["containers"][0].get("command"):
                    self.containers[name] = await self.start(pod)
            await asyncio.sleep(_LOOK_SECONDS)

    async def list(self, plural: str) -> list[dict]:
        return (await self.real.call("GET", path_of(plural, namespace=NAMESPACE)))["items"]

    async def mount(self) -> None:
        """Write the ConfigMaps, each exchanged as a whole, as the kubelet does; it takes up to a minute for that."""
        for item in await self.list("configmaps"):
            version = self.folder / f"config-{item['metadata']['resourceVersion']}"
            if not version.exists():
                version.mkdir()
                for name, text in item.get("data", {}).items():
                    (version / name).write_text(text)
                (self.folder / "next").symlink_to(version)
                (self.folder / "next").replace(self.folder / item["metadata"]["name"])

    async def start(self, pod: dict) -> Container:
        self.count += 1
        name, (container,) = pod["metadata"]["name"], pod["spec"]["containers"]
        folder = self.folder / name
        folder.mkdir()
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE["metadata"]["name"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        await self.real.call("POST", path_of("pods", f"{name}/binding", NAMESPACE), binding)
        token = await self.real.service_account_token(NAMESPACE, pod["spec"]["serviceAccountName"])
        fields = {"metadata.namespace": NAMESPACE, "metadata.name": name}
        given = {one["name"]: one.get("value") or fields[one["valueFrom"]["fieldRef"]["fieldPath"]] for one in container["env"]}
        (volume,) = [one["configMap"]["name"] for one in pod["spec"]["volumes"] if "configMap" in one]
        arguments = [argument.replace("/config/", f"{self.folder / volume}/") for argument in container["args"]]
        host = f"127.{self.network}.0.{self.count}"
        command = (str(BINARIES / container["command"][0]), *container["command"][1:], *arguments, f"--host={host}")
        kubeconfig = self.real.kubeconfig(token).rename(self.real.folder / f"of-{name}")
        environment = {**os.environ, **given, "KUBECONFIG": str(kubeconfig)}
        return Container(name, folder, host, command, environment, await run(command, environment, folder))

    async def look_after(self, pod: dict, container: Container) -> None:
        if "deletionTimestamp" in pod["metadata"] and not container.is_ending:
            container.is_ending = True
            with suppress(ProcessLookupError):
                container.process.terminate()
        ended = container.process.returncode is not None
        if ended and container.is_ending:
            await self.real.call("DELETE", path_of("pods", container.pod, NAMESPACE) + "?gracePeriodSeconds=0", ok=False)
            return
        if ended and self.restarts:
            container.process = await run(container.command, container.environment, container.folder)
            ended = False
        (spec,) = pod["spec"]["containers"]
        ready = not ended and await container.is_serving(spec["readinessProbe"]["grpc"]["service"])
        if ready != container.ready or not pod.get("status", {}).get("podIP"):
            container.ready = ready
            ip = container.host.replace("127.", "10.", 1)  # the API server refuses endpoints on loopback
            conditions = [{"type": name, "status": str(ready)} for name in ("Ready", "ContainersReady")]
            status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}
            path = path_of("pods", f"{container.pod}/status", NAMESPACE)
            await self.real.call("PATCH", path, {"status": status}, "application/merge-patch+json", ok=False)

    async def close(self) -> None:
        for container in self.containers.values():
            if container.process.returncode is None:
                container.process.kill()
            await container.process.wait()


@dataclass
class Cluster:
    """The API server, the controllers, one node, and a user's tools."""

    real: RealApiServer
    node: Node
    environment: dict[str, str]

    async def run(self, *command: str) -> str:
        """Run a tool to its end; what it prints."""
        process = await asyncio.create_subprocess_exec(*command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output = (await asyncio.wait_for(process.communicate(), 120))[0].decode()
        assert process.returncode == 0, output + "".join(f"\n{one.pod}:\n{one.log()}" for one in self.node.containers.values())
        return output

    async def serving(self, service: str) -> list[str]:
        """Names of the Pods that the Service routes to."""
        slices = await self.real.call("GET", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices")
        own = [item for item in slices["items"] if item["metadata"]["labels"].get("kubernetes.io/service-name") == service]
        endpoints = [endpoint for item in own for endpoint in item["endpoints"] or ()]
        return sorted({endpoint["targetRef"]["name"] for endpoint in endpoints if endpoint["conditions"]["ready"]})

    async def routes_to(self, service: str, *names: str) -> None:
        """Wait until the Service routes to exactly these Pods."""
        async with asyncio.timeout(60):
            while await self.serving(service) != sorted(names):  # noqa: ASYNC110 - the controller signals nothing
                await asyncio.sleep(0.01)

    def pods(self) -> Iterator[Container]:
        """Those that are not told to end."""
        return (one for one in self.node.containers.values() if not one.is_ending)


def tool(variable: str, name: str) -> str:
    """The binary that the environment or the path names; skips the test without."""
    found = os.environ.get(variable) or shutil.which(name)
    if not found or not os.access(found, os.X_OK):
        pytest.skip(f"no {name}: set {variable} to its binary")
    return found


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    manager = tool("KUBE_CONTROLLER_MANAGER", "kube-controller-manager")
    async with RealApiServer(folder) as real:
        admin = real.kubeconfig(real.token).rename(folder / "admin")
        options = {
            "kubeconfig": str(admin),
            "controllers": CONTROLLERS,
            "leader-elect": "false",
            "bind-address": "127.0.0.1",
            "secure-port": str(free_port()),
            "cert-dir": str(folder / "certificates"),
        }
        real.run("controllers", [manager, *(f"--{name}={value}" for name, value in options.items())])
        await real.call("POST", "/api/v1/nodes", NODE)
        await real.call("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        (folder / "node").mkdir()
        node = Node(real, folder / "node")
        running = asyncio.create_task(node.run())
        try:
            yield Cluster(real, node, {**os.environ, "KUBECONFIG": str(admin), "HOME": str(folder)})
        finally:
            failed = running.done() and running.exception()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await node.close()
        assert not failed, failed


def weighted(weight: int) -> str:
    """Values of the chart with a configuration of one's own."""
    profile = [{"pluginRef": "queue-scorer", "weight": 2}, {"pluginRef": "prefix-cache-scorer", "weight": weight}]
    config = {
        "apiVersion": "llm-d.ai/v1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": "queue-scorer"}, {"type": "prefix-cache-scorer"}],
        "schedulingProfiles": [{"name": "default", "plugins": profile}],
    }
    epp = {
        "image": "registry.example/endpick:1",
        "flags": {"secure-serving": False, "drain-timeout": "1s"},
        "pluginsConfigFile": "mine.yaml",
        "pluginsCustomConfig": {"mine.yaml": json.dumps(config)},
    }
    return json.dumps({"router": {"epp": epp, "modelServers": {"matchLabels": {"app": "vllm"}}}})
