"""How kubernetes-discovery follows pools, Pods, objectives and rewrites."""

from __future__ import annotations

import asyncio
import logging

import pytest

from endpick.api import ConfigurationError, PluginContext
from endpick.api.discovery import ModelTarget
from endpick_kubernetes.discovery import KubernetesDiscovery, KubernetesDiscoveryParameters
from integration.kubernetes.api_server import NEW, OLD, PODS, POOLS, RULES, ApiServer, kubeconfig, pod, pool, serving, status
from integration.kubernetes.conftest import discovering, eventually, following, ready

ONE = {"a-rank-0": "10.0.0.1:8000"}


@pytest.mark.asyncio
async def test_pods_join_when_ready_and_leave_when_terminating(server, tmp_path):
    pool(server)
    pod(server, "a", "10.0.0.1")
    pod(server, "not-ready", "10.0.0.2", ready=False)
    pod(server, "other", "10.0.0.3", labels={"app": "other"})
    async with following(server, tmp_path) as followed:
        assert followed.members() == ONE

        pod(server, "b", "10.0.0.4")
        await followed.becomes({**ONE, "b-rank-0": "10.0.0.4:8000"})
        pod(server, "b", "10.0.0.4", deletionTimestamp="2026-08-22T00:00:00Z")
        await followed.becomes(ONE)
        server.delete(PODS, "b")
        pod(server, "not-ready", "10.0.0.2")
        await followed.becomes({**ONE, "not-ready-rank-0": "10.0.0.2:8000"})
        pod(server, "not-ready", "10.0.0.2", ready=False)
        await followed.becomes(ONE)
        pod(server, "a", "10.0.0.1", labels={"app": "other"})
        await followed.becomes({})

        assert server.lists(PODS) == 1


@pytest.mark.asyncio
async def test_each_active_port_is_a_rank(server, tmp_path):
    pool(server, 8000, 8001, 8002)
    pod(server, "a", "10.0.0.1")
    pod(server, "b", "10.0.0.2", annotations={"llm-d.ai/active-ports": "8002, 8000x,9000"})
    pod(server, "c", "fd00::3", annotations={"inference.networking.k8s.io/active-ports": "8001"})
    expected = {
        **{f"a-rank-{rank}": f"10.0.0.1:800{rank}" for rank in range(3)},
        "b-rank-0": "10.0.0.2:8000",
        "b-rank-2": "10.0.0.2:8002",
        "c-rank-1": "[fd00::3]:8001",
    }
    async with following(server, tmp_path) as followed:
        assert followed.members() == expected

        pool(server, 8001)
        await followed.becomes({"a-rank-0": "10.0.0.1:8001", "c-rank-0": "[fd00::3]:8001"})


@pytest.mark.asyncio
async def test_pool_may_be_deleted_and_created_again(server, tmp_path, caplog):
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with following(server, tmp_path) as followed:
        with caplog.at_level(logging.WARNING):
            server.delete(POOLS, "pool")
            await followed.becomes({})
        assert "InferencePool default/pool of inference.networking.k8s.io does not exist" in caplog.text
        pod(server, "b", "10.0.0.2")
        pool(server, labels={"app": "none"})
        pool(server, 9000)
        await followed.becomes({"a-rank-0": "10.0.0.1:9000", "b-rank-0": "10.0.0.2:9000"})


@pytest.mark.asyncio
async def test_discovery_is_ready_once_the_pool_exists(server, tmp_path):
    async with serving(server) as url, discovering(server, kubeconfig(tmp_path / "k", url)) as followed:
        await eventually(lambda: len(server.watched(POOLS)) == 1, lambda: "the pool is not watched")
        assert not followed.table.is_ready.is_set()
        pool(server, labels={"app": "none"})
        await ready(followed)
        assert followed.members() == {}


@pytest.mark.asyncio
async def test_pool_of_the_older_group(server, tmp_path):
    old = f"{OLD}/inferencepools"
    server.objects[old] = {}
    server.put(old, "pool", spec={"selector": {"app": "vllm"}, "targetPortNumber": 8000})
    pod(server, "a", "10.0.0.1")
    async with following(server, tmp_path, poolGroup="inference.networking.x-k8s.io") as followed:
        assert followed.members() == ONE


@pytest.mark.asyncio
async def test_label_selector_replaces_a_pool(server, tmp_path):
    pod(server, "a", "10.0.0.1", labels={"app": "vllm", "env": "a"})
    pod(server, "other", "10.0.0.3", labels={"app": "other"})
    async with following(server, tmp_path, endpointSelector="app=vllm,env=a", endpointTargetPorts=[8000, 8001]) as followed:
        assert followed.members() == {**ONE, "a-rank-1": "10.0.0.1:8001"}
        assert {asked.path for asked in server.asked} == {PODS}


@pytest.mark.asyncio
async def test_pod_may_take_over_the_address_of_another(server, tmp_path):
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with following(server, tmp_path) as followed:
        followed.table.on_removed.append((removed := []).append)
        pod(server, "b", "10.0.0.1")
        pod(server, "a", "10.0.0.9")
        await followed.becomes({"a-rank-0": "10.0.0.9:8000", "b-rank-0": "10.0.0.1:8000"})
        assert removed == ["default/a-rank-0"], "what was learnt about the name at its old address is void"


@pytest.mark.asyncio
async def test_thousand_pods_that_flap_end_in_the_last_state(server, tmp_path):
    pool(server)
    async with following(server, tmp_path) as followed:
        for round_ in range(4):
            for number in range(1000):
                pod(server, f"p{number}", f"10.0.{number // 250}.{number % 250}", ready=round_ % 2 == 1 and number != 7)
        await eventually(lambda: len(followed.members()) == 999, lambda: f"{len(followed.members())} Pods")
        assert "p7-rank-0" not in followed.members()
        assert server.lists(PODS) == 1


def reference(group: str = "", name: str = "pool") -> dict:
    return {"poolRef": {"name": name, **({"group": group} if group else {})}}


@pytest.mark.asyncio
async def test_objectives_and_rewrites_come_from_the_newer_group(server, tmp_path):
    pool(server)
    server.put(f"{NEW}/inferenceobjectives", "batch", spec={"priority": -1, **reference()})
    server.put(f"{NEW}/inferenceobjectives", "of-another-pool", spec={"priority": 5, **reference(name="another")})
    server.put(f"{NEW}/inferenceobjectives", "plain", spec=reference("inference.networking.k8s.io"))
    server.put(f"{OLD}/inferenceobjectives", "legacy", spec={"priority": 7, **reference()})
    async with following(server, tmp_path) as followed:
        rules = followed.table.rules
        assert rules.objectives == {"batch": -1, "plain": 0}
        server.delete(f"{NEW}/inferenceobjectives", "plain")
        server.put(f"{NEW}/inferenceobjectives", "batch", spec={"priority": 3, **reference()})
        await eventually(lambda: rules.objectives == {"batch": 3}, lambda: f"{rules.objectives}")

        targets = [{"modelRewrite": "m-2", "weight": 9}, {"modelRewrite": "m-3", "weight": 1}]
        rules_of_young = [{"matches": [{"model": {"value": "m"}}], "targets": targets}, {"targets": [{"modelRewrite": "no"}]}]
        young = {"metadata": {"creationTimestamp": "2026-02-01T00:00:00Z"}}
        server.put(f"{NEW}/inferencemodelrewrites", "young", spec={"rules": rules_of_young, **reference()}, **young)
        old = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
        default = {"rules": [{"targets": [{"modelRewrite": "old-default"}]}], **reference()}
        server.put(f"{NEW}/inferencemodelrewrites", "zz-old", spec=default, **old)
        expected = {"m": (ModelTarget("m-2", 9), ModelTarget("m-3", 1)), "": (ModelTarget("old-default"),)}
        await eventually(lambda: rules.rewrites == expected, lambda: f"{rules.rewrites}")
        server.delete(f"{NEW}/inferencemodelrewrites", "young")
        await eventually(lambda: "m" not in rules.rewrites, lambda: f"{rules.rewrites}")


@pytest.mark.asyncio
async def test_older_group_counts_if_the_newer_is_not_installed(server, tmp_path):
    pool(server)
    for kind in ("inferenceobjectives", "inferencemodelrewrites"):
        del server.objects[f"{NEW}/{kind}"]
    server.put(f"{OLD}/inferenceobjectives", "legacy", spec={"priority": 7, **reference()})
    async with following(server, tmp_path) as followed:
        assert followed.table.rules.objectives == {"legacy": 7}


@pytest.mark.asyncio
async def test_forbidden_objectives_are_skipped(server, tmp_path, caplog):
    pool(server)
    pod(server, "a", "10.0.0.1")
    server.instead = lambda request: status(403, "Forbidden") if "inferenceobjectives" in request.path else None
    async with following(server, tmp_path) as followed:
        assert followed.members() == ONE
        assert "inferenceobjectives.llm-d.ai cannot be listed, trying again: 403 Forbidden" in caplog.text


@pytest.mark.asyncio
async def test_request_that_the_server_rejects_ends_the_start(server: ApiServer, tmp_path):
    server.instead = lambda _request: status(400, "BadRequest")
    selector = {"endpointSelector": "app in (", "endpointTargetPorts": [8000]}
    async with serving(server) as url, discovering(server, kubeconfig(tmp_path / "k", url), **selector) as followed:
        with pytest.raises(ConfigurationError, match="refuses to list pods: 400 BadRequest: as the test wants it"):
            await asyncio.wait_for(followed.task, 10)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({}, "either `poolName`"),
        ({"poolName": "p", "endpointSelector": "a=b"}, "either `poolName`"),
        ({"endpointSelector": "a=b"}, "needs `endpointTargetPorts`"),
        ({"poolName": "p", "poolGroup": "example.com"}, "`poolGroup` is inference.networking.k8s.io or inference.networking.x-k8s.io"),
        ({"poolName": "p", "leaseDuration": "1s", "renewDeadline": "1s", "retryPeriod": "50ms"}, "two replicas could lead"),
        ({"poolName": "p", "retryPeriod": "3s", "renewDeadline": "2s"}, "two replicas could lead"),
    ],
)
def test_contradicting_parameters_are_refused(parameters, message):
    discovery = KubernetesDiscovery("k", KubernetesDiscoveryParameters.model_validate(parameters), PluginContext())
    with pytest.raises(ConfigurationError, match=message):
        asyncio.run(discovery.start())


@pytest.mark.asyncio
async def test_discovery_is_ready_after_endpoints_were_reported(server, tmp_path, monkeypatch):
    monkeypatch.setattr("endpick_kubernetes.discovery._REPORT_INTERVAL_SECONDS", 0.5)
    pool(server)
    pod(server, "a", "10.0.0.1")
    answers_pool, truth = asyncio.Event(), server.handle

    async def handle(request):
        if request.path == POOLS:
            await answers_pool.wait()
        return await truth(request)

    server.handle = handle
    async with serving(server) as url, discovering(server, kubeconfig(tmp_path / "k", url)) as followed:
        await eventually(lambda: all(server.watched(path) for path in RULES), lambda: "rules are not watched")
        answers_pool.set()
        await ready(followed)
        assert followed.members() == ONE
