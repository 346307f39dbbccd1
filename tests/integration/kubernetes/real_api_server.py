"""A real kube-apiserver and etcd on loopback, from binaries that the environment names; nothing else of a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import socket
import ssl
import subprocess
import time
from pathlib import Path
from typing import Self

import aiohttp
import pytest

from endpick.transport.tls import make_self_signed

GROUPS = {
    "inferencepools": ("InferencePool", "inference.networking.k8s.io", "v1"),
    "inferenceobjectives": ("InferenceObjective", "llm-d.ai", "v1alpha2"),
    "inferencemodelrewrites": ("InferenceModelRewrite", "llm-d.ai", "v1alpha2"),
}
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
START_SECONDS = 60.0


def binaries() -> tuple[str, str]:
    """kube-apiserver and etcd; skips the test where the environment names none."""
    found = os.environ.get("KUBE_APISERVER", ""), os.environ.get("ETCD", "")
    if not all(map(os.path.isfile, found)):
        pytest.skip("set KUBE_APISERVER and ETCD to the binaries of kube-apiserver and etcd, as for `make real-kube`")
    return found


OLD_GROUP = "inference.networking.x-k8s.io"
"""Of all three kinds, in version v1alpha2."""


def path_of(plural: str, name: str = "", namespace: str = "default", *, old: bool = False) -> str:
    """Of a collection that pools need, or of one object in it; `old` is of the older group."""
    _, group, version = ("", OLD_GROUP, "v1alpha2") if old else GROUPS.get(plural, ("", "", "v1"))
    root = f"/apis/{group}/{version}" if group else "/api/v1"
    return f"{root}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RealApiServer:
    """The two processes, and an administrator of theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kube, self.etcd_binary = binaries()
        self.port, self.etcd_port, self.peer_port = free_port(), free_port(), free_port()
        self.admin_port = self.port
        """Of the server that the administrator asks."""
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.token = secrets.token_hex(16)
        self.certificate, self.key = folder / "server.crt", folder / "server.key"
        for path, content in zip((self.certificate, self.key), make_self_signed(), strict=True):
            path.write_bytes(content)
        (folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
        self.tls = ssl.create_default_context(cafile=str(self.certificate))
        self.client: aiohttp.ClientSession
        self.detour: Detour

    async def __aenter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.token}"}
        self.client = aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(ssl=self.tls))
        try:
            self.start_etcd()
            await self.start()
            for plural in GROUPS:
                await self.install(plural)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    def url(self, path: str) -> str:
        return f"https://127.0.0.1:{self.admin_port}{path}"

    def tell_to_end(self, name: str = "apiserver") -> None:
        """Send SIGTERM, and wait for nothing."""
        self.processes[name].terminate()

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()
        for process in reversed(self.processes.values()):
            process.kill()
            await asyncio.to_thread(process.wait)

    def start_etcd(self) -> None:
        client, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{self.peer_port}"
        options = {
            "data-dir": str(self.folder / "etcd"),
            "log-level": "error",
            "listen-peer-urls": peer,
            "listen-client-urls": client,
            "advertise-client-urls": client,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
        }
        self.run("etcd", [self.etcd_binary, "--unsafe-no-fsync", *(f"--{name}={value}" for name, value in options.items())])

    async def start(self, name: str = "apiserver", port: int | None = None) -> float:
        """Start the API server, or another one of the same storage on another port; returns how many seconds it took to be ready."""
        port = port or self.port
        options = {
            "etcd-servers": f"http://127.0.0.1:{self.etcd_port}",
            "etcd-compaction-interval": "0",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": str(port),
            "endpoint-reconciler-type": "none",
            "tls-cert-file": self.certificate,
            "tls-private-key-file": self.key,
            "token-auth-file": self.folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/24",
            "disable-admission-plugins": "ServiceAccount",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": self.certificate,
            "service-account-signing-key-file": self.key,
        }
        began = time.monotonic()
        self.run(name, [self.kube, *(f"--{name}={value}" for name, value in options.items())])
        while True:
            try:
                async with self.client.get(f"https://127.0.0.1:{port}/readyz") as response:
                    if response.status == 200:
                        return time.monotonic() - began
            except aiohttp.ClientError:
                pass
            if time.monotonic() - began > START_SECONDS or self.processes[name].poll() is not None:
                pytest.fail((self.folder / f"{name}.log").read_text()[-2000:])
            await asyncio.sleep(0.05)

    async def stop(self, *, crash: bool = False) -> None:
        """End the API server; etcd goes on."""
        process = self.processes.pop("apiserver")
        process.kill() if crash else process.terminate()
        await asyncio.to_thread(process.wait)

    def run(self, name: str, command: list[str]) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stdout=log, stderr=log)

    async def call(self, method: str, path: str, body: object = None, kind: str = "application/json", *, ok: bool = True) -> dict:
        data = None if body is None else json.dumps(body)
        async with self.client.request(method, self.url(path), data=data, headers={"Content-Type": kind}) as response:
            answer = await response.json()
        assert not ok or response.status < 300, answer
        return answer

    async def apply(self, path: str, body: object, *, dry_run: bool = False) -> dict:
        """Server-side apply: create or change."""
        query = "fieldManager=test&force=true" + ("&dryRun=All&fieldValidation=Strict" if dry_run else "")
        return await self.call("PATCH", f"{path}?{query}", body, "application/apply-patch+yaml")

    async def install(self, plural: str, *, old: bool = False) -> None:
        """A custom resource of a pool, an objective or a rewrite."""
        kind, group, version = GROUPS[plural]
        await self.install_kind(plural, kind, *((OLD_GROUP, "v1alpha2") if old else (group, version)))

    async def install_kind(self, plural: str, kind: str, group: str, version: str) -> None:
        """A custom resource that takes any content: what is tested is who follows it, not its schema."""
        schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
        crd = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}", "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"}},
            "spec": {
                "group": group,
                "scope": "Namespaced",
                "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
                "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
            },
        }
        await self.apply(f"{CRDS}/{plural}.{group}", crd)
        async with asyncio.timeout(30):
            while not await self._serves(f"/apis/{group}/{version}/namespaces/default/{plural}"):  # noqa: ASYNC110 - it does so soon after
                await asyncio.sleep(0.05)

    async def uninstall(self, plural: str) -> None:
        """Take a custom resource, and all objects of it, away."""
        await self.call("DELETE", f"{CRDS}/{plural}.{GROUPS[plural][1]}")

    async def _serves(self, path: str) -> bool:
        async with self.client.get(self.url(path)) as response:
            return response.status == 200

    async def object(self, plural: str, name: str, spec: dict, *, old: bool = False) -> dict:
        """Create or change a pool, an objective or a rewrite."""
        kind, group, version = GROUPS[plural]
        api = f"{OLD_GROUP}/v1alpha2" if old else f"{group}/{version}"
        body = {"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return await self.apply(path_of(plural, name, old=old), body)

    async def pool(self, *ports: int) -> None:
        targets = [{"number": port} for port in ports or (8000,)]
        await self.object("inferencepools", "pool", {"selector": {"matchLabels": {"app": "vllm"}}, "targetPorts": targets})

    async def remove(self, plural: str, name: str) -> None:
        """Delete a pool, an objective or a rewrite."""
        await self.call("DELETE", path_of(plural, name))

    async def pod(self, name: str, ip: str) -> None:
        """A Pod as a kubelet would report it; bound to a node, it is Terminating when deleted until the grace period is over."""
        spec = {"nodeName": "node-0", "containers": [{"name": "vllm", "image": "none"}]}
        await self.apply(
            path_of("pods", name), {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "vllm"}}, "spec": spec}
        )
        await self.status(name, ip=ip, ready=True)

    async def status(self, name: str, *, ip: str, ready: bool) -> dict:
        conditions = [{"type": "Ready", "status": str(ready)}]
        status = {"phase": "Running", "podIP": ip, "podIPs": [{"ip": ip}], "conditions": conditions}
        return await self.call("PATCH", path_of("pods", f"{name}/status"), {"status": status}, "application/merge-patch+json")

    async def label(self, name: str, value: str) -> None:
        """Give a Pod another label `turn`."""
        await self.call("PATCH", path_of("pods", name), {"metadata": {"labels": {"turn": value}}}, "application/merge-patch+json")

    async def delete(self, name: str, *, at_once: bool = False) -> None:
        await self.call("DELETE", path_of("pods", name) + ("?gracePeriodSeconds=0" if at_once else ""))

    async def compact(self, version: str) -> None:
        """Drop the storage's history before a version."""
        async with aiohttp.ClientSession() as client:
            body = {"revision": version, "physical": True}
            async with client.post(f"http://127.0.0.1:{self.etcd_port}/v3/kv/compaction", json=body) as response:
                assert response.status == 200, await response.text()

    async def service_account_token(self, namespace: str, name: str) -> str:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        answer = await self.call(
            "POST", path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        )
        return str(answer["status"]["token"])

    def kubeconfig(self, token: str, port: int | None = None) -> Path:
        """A file for the discovery, which may name another port than the server's own."""
        path = self.folder / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{port or self.port}", "certificate-authority": self.certificate.name}
        content = {
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        }
        path.write_text(json.dumps(content))
        return path


class Detour:
    """A port before the API server that can be closed, so that the server goes on without the picker's seeing it."""

    def __init__(self, port: int) -> None:
        self.to = port
        """Where new connections go; those that there are stay."""
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = free_port()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", self.port)

    async def close(self) -> None:
        """Refuse new connections, and cut those that there are."""
        assert self._server is not None
        self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        assert self._server is not None
        if not self._server.is_serving():  # accepted before it was closed
            writer.transport.abort()
            return
        self._tasks.add(task)
        try:
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self.to)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, onward))
                    both.create_task(_copy(onward_reader, writer))
            finally:
                onward.transport.abort()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._tasks.discard(task)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()
