"""The how-to guides on a real API server: what needs no node, no container tool and no gateway's controller is run as it stands."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from integration.kubernetes.real_api_server import RealApiServer, path_of
from integration.kubernetes.real_manifests import DEPLOY
from integration.plugins.serving import serving

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

BINARIES = Path(sys.executable).parent
HOW_TO = DEPLOY.parent / "docs" / "how-to"
BEYOND = {
    "podman": "there is no container tool",
    "kubectl rollout": "no controller makes Pods of a Deployment",
    "kubectl port-forward": "there is no kubelet",
    "kubectl logs": "there is no kubelet",
    "kubectl exec": "there is no kubelet",
    "kubectl wait --namespace models --for=condition=Programmed": "there is no gateway's controller",
    "address=": "there is no gateway",
    "curl": "there is nothing to ask",
    "kubectl set image": "the test does it where it is due",
}
"""Beginnings of commands that are not run, and why."""
GATEWAY_KINDS = {"gateways": "Gateway", "httproutes": "HTTPRoute"}
EPP = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm-pool-epp, namespace: models}
spec:
  selector: {matchLabels: {app: epp}}
  template:
    metadata: {labels: {app: epp}}
    spec:
      serviceAccountName: vllm-pool-epp
      containers:
        - name: epp
          image: llm-d
          args: [--pool-name, vllm-pool, --pool-namespace, models, --pool-group, inference.networking.k8s.io, --zap-encoder, json,
                 --config-file, /config/default-plugins.yaml, --grpc-health-port, "9003", --tracing=false]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: vllm-pool-epp, namespace: models}
data:
  default-plugins.yaml: |
    apiVersion: llm-d.ai/v1
    kind: EndpointPickerConfig
    plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}]
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: vllm-pool-epp, namespace: models}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: vllm-pool-epp, namespace: models}
rules:
  - {apiGroups: [""], resources: [pods], verbs: [get, watch, list]}
  - apiGroups: [llm-d.ai, inference.networking.x-k8s.io]
    resources: [inferenceobjectives, inferencemodelrewrites]
    verbs: [get, watch, list]
  - {apiGroups: [inference.networking.k8s.io], resources: [inferencepools], verbs: [get, watch, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: vllm-pool-epp, namespace: models}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: vllm-pool-epp}
subjects: [{kind: ServiceAccount, name: vllm-pool-epp, namespace: models}]
---
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: vllm-pool, namespace: models}
spec:
  selector: {matchLabels: {app: vllm}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: vllm-pool-epp, port: {number: 9002}}
"""
"""What llm-d's chart makes, as far as it matters here; as facts, not as it stands there."""


def commands(name: str) -> list[str]:
    """What a guide tells to type."""
    blocks = re.findall(r"```console\n(.*?)```", (HOW_TO / name).read_text(), re.DOTALL)
    text = re.sub(r"\\\n\s*", "", "\n".join(blocks))
    return [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]


def written(name: str) -> list[str]:
    return re.findall(r"```yaml\n(.*?)```", (HOW_TO / name).read_text(), re.DOTALL)


@dataclass
class Terminal:
    """Where the reader of a guide types: the root of the project is the working directory."""

    real: RealApiServer
    folder: Path
    environment: dict[str, str]

    async def type(self, command: str) -> str:
        """Run a command; files that it reads and writes are in the test's folder."""
        command = re.sub(r"(?<=[ >])([a-z-]+\.yaml)\b", lambda match: str(self.folder / match[1]), command)
        process = await asyncio.create_subprocess_shell(
            command, cwd=DEPLOY.parent, env=self.environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        said = (await process.communicate())[0].decode()
        assert process.returncode == 0, f"$ {command}\n{said}"
        return said

    async def follow(self, name: str, since: str = "") -> list[str]:
        """Type what a guide says, from a command on; returns what was run."""
        run = []
        for command in commands(name):
            if command.startswith(since) or run:
                if any(command.startswith(beginning) for beginning in BEYOND):
                    continue
                await self.type(command)
                run.append(command)
        return run

    async def model_server(self) -> None:
        """A Pod of step 2, as a kubelet would report it."""
        body = {"spec": {"nodeName": "n", "containers": [{"name": "vllm", "image": "none"}]}, "kind": "Pod", "apiVersion": "v1"}
        path = path_of("pods", "vllm-0", "models")
        await self.real.apply(path, {**body, "metadata": {"name": "vllm-0", "labels": {"app": "vllm"}}})
        status = {"phase": "Running", "podIP": "10.1.0.7", "conditions": [{"type": "Ready", "status": "True"}]}
        await self.real.call("PATCH", f"{path}/status", {"status": status}, "application/merge-patch+json")

    async def routes(self, deployment: str) -> None:
        """Start what a Deployment says, with its configuration and its service account, and send a request."""
        root = f"/apis/apps/v1/namespaces/models/deployments/{deployment}"
        pod = (await self.real.call("GET", root))["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        mounted = (await self.real.call("GET", f"/api/v1/namespaces/models/configmaps/{deployment}"))["data"]
        for name, text in mounted.items():
            (self.folder / name).write_text(text)
        arguments = [argument.replace("/config/", f"{self.folder}/") for argument in container["args"]]
        token = await self.real.service_account_token("models", pod["serviceAccountName"])
        (self.folder / "config.yaml").unlink(missing_ok=True)
        kept = self.real.kubeconfig(token).rename(self.folder / "of-the-pod")
        plain = (
            "--secure-serving=false",
            "--log-format=json",
            "--host=127.0.0.1",
            "--grpc-port=0",
            "--grpc-health-port=0",
            "--metrics-port=0",
        )
        python = self.folder / "python"
        python.write_text(f'#!/bin/sh\nshift 4\nexec {shlex.quote(str(BINARIES / "endpick"))} serve "$@"\n')
        python.chmod(0o755)
        async with serving(self.folder, *arguments, f"--kubeconfig={kept}", *plain, python=python) as picker:
            assert await picker.ask() == ("10.1.0.7:8000", 0)
            assert [event["joined"] for event in await picker.logged("the pool has changed")] == ["models/vllm-0-rank-0"]


@asynccontextmanager
async def terminal(folder: Path) -> AsyncIterator[Terminal]:
    for tool in ("kubectl", "helm"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on the PATH")
    async with RealApiServer(folder) as real:
        for plural, kind in GATEWAY_KINDS.items():
            await real.install_kind(plural, kind, "gateway.networking.k8s.io", "v1")
        admin = real.kubeconfig(real.token).rename(folder / "admin")
        environment = {**os.environ, "KUBECONFIG": str(admin), "HOME": str(folder), "PATH": f"{BINARIES}:{os.environ['PATH']}"}
        yield Terminal(real, folder, environment)


async def test_from_nothing_to_a_routed_request(tmp_path):
    guide = "kubernetes-first-request.md"
    for name, text in zip(("vllm.yaml", "gateway.yaml"), written(guide), strict=True):
        (tmp_path / name).write_text(text)
    async with terminal(tmp_path) as shell:
        (first, *_) = commands(guide)
        assert "inferencepools" in await shell.type(first)
        await shell.type("kubectl create namespace models")
        await shell.model_server()
        run = await shell.follow(guide, "kubectl apply -f vllm.yaml")
        assert [command.split()[0:2] for command in run] == [
            ["kubectl", "apply"],
            ["kubectl", "wait"],
            ["helm", "install"],
            ["kubectl", "apply"],
        ]
        await shell.routes("vllm-pool-epp")
        await shell.type("kubectl apply -k deploy/kustomize --namespace default")
        await shell.type("helm uninstall vllm-pool --namespace models")


async def test_from_llm_ds_picker_to_endpick_and_back(tmp_path):
    guide = "change-from-llm-d.md"
    async with terminal(tmp_path) as shell:
        (tmp_path / "epp.yaml").write_text(EPP)
        (tmp_path / "chart.yaml").write_text(
            "router: {modelServers: {matchLabels: {app: vllm}}, monitoring: {prometheus: {enabled: false}}}\n"
        )
        await shell.type("kubectl create namespace models")
        await shell.model_server()
        await shell.type("kubectl apply -f epp.yaml")
        (values,) = [command for command in commands(guide) if command.startswith("helm get values")]
        assert values.endswith("> values.yaml")
        (tmp_path / "values.yaml").write_text("router: {modelServers: {matchLabels: {app: vllm}}}\n")
        for command in commands(guide):
            if command != values and not any(command.startswith(beginning) for beginning in BEYOND):
                await shell.type(command)
        await shell.routes("vllm-pool-endpick-epp")
        await shell.type("kubectl set image --namespace models deployment/vllm-pool-epp epp=registry.example/endpick:1")
        await shell.routes("vllm-pool-epp")
        await shell.type("helm uninstall vllm-pool-endpick --namespace models")
