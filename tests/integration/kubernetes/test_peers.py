"""k8s-peer-discovery against the fake API server."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager

import pytest

from endpick.api import ConfigurationError, PluginContext
from endpick.api.discovery import Peer
from endpick_kubernetes.peers import KubernetesPeerDiscovery, PeerParameters
from integration.kubernetes.api_server import kubeconfig, pod, serving
from integration.kubernetes.conftest import eventually

pytestmark = pytest.mark.asyncio

A, B, C = (Peer(f"default/{name}", f"10.0.0.{number}", 9002) for number, name in enumerate("abc", 1))


def made(file, **parameters):
    given = {"selector": "app=vllm", "port": "9002", "kubeconfig": str(file), **parameters}
    return KubernetesPeerDiscovery("peers", PeerParameters.model_validate(given), PluginContext(clock=time.monotonic))


@asynccontextmanager
async def started(server, folder, **parameters):
    async with serving(server) as url:
        discovery = made(kubeconfig(folder / "kubeconfig", url), **parameters)
        await discovery.start()
        try:
            yield discovery
        finally:
            await discovery.stop()


async def become(discovery, *peers):
    await eventually(lambda: discovery.peers == peers, lambda: f"the peers are {discovery.peers}, not {peers}")


async def test_peers_follow_ready_pods_without_the_own_one(server, tmp_path, monkeypatch):
    monkeypatch.setenv("POD_IP", "10.0.0.1")
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        pod(server, name, address)
    async with started(server, tmp_path) as discovery:
        await become(discovery, B)
        pod(server, "c", "10.0.0.3")
        await become(discovery, B, C)
        pod(server, "b", "10.0.0.2", ready=False)
        await become(discovery, C)
    assert any("labelSelector" in str(asked.query) for asked in server.asked)


async def test_own_pod_is_known_by_its_host_name_without_pod_ip(server, tmp_path, monkeypatch):
    monkeypatch.delenv("POD_IP", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "b")
    for name, address in (("a", "10.0.0.1"), ("b", "10.0.0.2")):
        pod(server, name, address)
    async with started(server, tmp_path) as discovery:
        await become(discovery, A)


async def test_other_namespace_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("NAMESPACE", "mine")
    with pytest.raises(ConfigurationError, match="`namespace` is 'other', but this Pod runs in 'mine'"):
        await made(tmp_path / "none", namespace="other").start()
