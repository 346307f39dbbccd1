"""What kubernetes-discovery makes of pools, Pods, objectives and rewrites, as they come, change and go."""

from __future__ import annotations

import asyncio
import logging

import pytest

from endpick.api import ConfigurationError, ModelTarget, PluginContext
from endpick_builtin.kubernetes.discovery import KubernetesDiscovery, KubernetesDiscoveryParameters
from integration.kubernetes.api_server import NEW, OLD, POOLS, ApiServer, kubeconfig, pod, pool, serving, status
from integration.kubernetes.conftest import discovering, eventually, following, ready

ONE = {"a-rank-0": "10.0.0.1:8000"}


@pytest.mark.asyncio
async def test_pods_join_while_they_are_ready_and_leave_at_once_when_they_are_being_deleted(server, tmp_path):
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
        server.delete("/api/v1/namespaces/default/pods", "b")
        pod(server, "not-ready", "10.0.0.2")
        await followed.becomes({**ONE, "not-ready-rank-0": "10.0.0.2:8000"})
        pod(server, "not-ready", "10.0.0.2", ready=False)
        await followed.becomes(ONE)
        pod(server, "a", "10.0.0.1", labels={"app": "other"})
        await followed.becomes({})

        assert server.lists("/api/v1/namespaces/default/pods") == 1


@pytest.mark.asyncio
async def test_each_port_is_a_rank_and_annotations_say_which_are_in_use(server, tmp_path):
    pool(server, 8000, 8001, 8002)
    pod(server, "a", "10.0.0.1")
    pod(server, "b", "10.0.0.2", annotations={"llm-d.ai/active-ports": "8002, 8000x,9000"})
    pod(server, "c", "fd00::3", annotations={"inference.networking.k8s.io/active-ports": "8001"})
    pod(server, "d", "10.0.0.4", annotations={"llm-d.ai/active-ports": "", "inference.networking.k8s.io/active-ports": "8001"})
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
async def test_a_pool_that_is_deleted_and_made_again(server, tmp_path, caplog):
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with following(server, tmp_path) as followed:
        with caplog.at_level(logging.WARNING):
            server.delete(POOLS, "pool")
            await followed.becomes({})
        assert "InferencePool default/pool of inference.networking.k8s.io is not there" in caplog.text
        pod(server, "b", "10.0.0.2")
        pool(server, labels={"app": "none"})
        pool(server, 9000)
        await followed.becomes({"a-rank-0": "10.0.0.1:9000", "b-rank-0": "10.0.0.2:9000"})


@pytest.mark.asyncio
async def test_it_is_not_ready_before_the_pool_is_there_and_is_then_also_with_a_pool_that_selects_nothing(server, tmp_path):
    async with serving(server) as url, discovering(server, kubeconfig(tmp_path / "k", url)) as followed:
        await eventually(lambda: len(server.watched(POOLS)) == 1, lambda: "the pool is not watched")
        assert not followed.table.is_ready.is_set()
        pool(server, labels={"app": "none"})
        await ready(followed)
        assert followed.members() == {}


@pytest.mark.asyncio
async def test_the_older_group_of_pools(server, tmp_path):
    old = f"{OLD}/inferencepools"
    server.objects[old] = {}
    server.put(old, "pool", spec={"selector": {"app": "vllm"}, "targetPortNumber": 8000})
    pod(server, "a", "10.0.0.1")
    async with following(server, tmp_path, poolGroup="inference.networking.x-k8s.io") as followed:
        assert followed.members() == ONE


@pytest.mark.asyncio
async def test_a_label_selector_instead_of_a_pool(server, tmp_path):
    pod(server, "a", "10.0.0.1")
    pod(server, "other", "10.0.0.3", labels={"app": "other"})
    async with following(server, tmp_path, endpointSelector="app=vllm", endpointTargetPorts=[8000, 8000, 8001]) as followed:
        assert followed.members() == {**ONE, "a-rank-1": "10.0.0.1:8001"}
        assert {asked.path for asked in server.asked} == {"/api/v1/namespaces/default/pods"}


@pytest.mark.asyncio
async def test_a_pod_that_takes_over_the_address_of_another(server, tmp_path):
    pool(server)
    pod(server, "a", "10.0.0.1")
    async with following(server, tmp_path) as followed:
        followed.table.on_removed.append((removed := []).append)
        pod(server, "b", "10.0.0.1")
        pod(server, "a", "10.0.0.9")
        await followed.becomes({"a-rank-0": "10.0.0.9:8000", "b-rank-0": "10.0.0.1:8000"})
        assert removed == ["default/a-rank-0"], "what was learnt of the name at its old address is void"


@pytest.mark.asyncio
async def test_pods_that_share_an_address_come_and_go_each_for_itself(server, tmp_path):
    pool(server, 8000, 8001)
    for name, port in (("a", "8000"), ("b", "8001")):
        pod(server, name, "10.0.0.1", annotations={"llm-d.ai/active-ports": port})
    pod(server, "c", "10.0.0.1")
    both = {"b-rank-1": "10.0.0.1:8001", "c-rank-0": "10.0.0.1:8000", "c-rank-1": "10.0.0.1:8001"}
    async with following(server, tmp_path) as followed:
        assert followed.members() == {"a-rank-0": "10.0.0.1:8000", **both}
        pod(server, "a", "10.0.0.1", ready=False, annotations={"llm-d.ai/active-ports": "8000"})
        await followed.becomes(both)
        server.delete("/api/v1/namespaces/default/pods", "c")
        await followed.becomes({"b-rank-1": "10.0.0.1:8001"})


@pytest.mark.asyncio
async def test_pods_that_flap_end_in_the_last_state(server, tmp_path):
    pool(server)
    async with following(server, tmp_path) as followed:
        for turn in range(100):
            pod(server, "a", "10.0.0.1", ready=turn % 2 == 0)
            pod(server, "b", f"10.0.1.{turn}")
            if turn % 10 == 0:
                await asyncio.sleep(0)
        await followed.becomes({"b-rank-0": "10.0.1.99:8000"})


def reference(group: str = "", name: str = "pool") -> dict:
    return {"poolRef": {"name": name, **({"group": group} if group else {})}}


@pytest.mark.asyncio
async def test_objectives_and_rewrites_are_those_of_this_pool_in_the_newer_group(server, tmp_path):
    pool(server)
    server.put(f"{NEW}/inferenceobjectives", "batch", spec={"priority": -1, **reference()})
    server.put(f"{NEW}/inferenceobjectives", "elsewhere", spec={"priority": 5, **reference(name="another")})
    server.put(f"{NEW}/inferenceobjectives", "other-group", spec={"priority": 5, **reference("inference.networking.x-k8s.io")})
    server.put(f"{NEW}/inferenceobjectives", "plain", spec=reference("inference.networking.k8s.io"))
    server.put(f"{OLD}/inferenceobjectives", "legacy", spec={"priority": 7, **reference()})
    async with following(server, tmp_path) as followed:
        rules = followed.table.rules
        assert rules.objectives == {"batch": -1, "plain": 0}
        server.delete(f"{NEW}/inferenceobjectives", "plain")
        server.put(f"{NEW}/inferenceobjectives", "batch", spec={"priority": 3, **reference()})
        await eventually(lambda: rules.objectives == {"batch": 3}, lambda: f"{rules.objectives}")

        rule = {
            "matches": [{"model": {"value": "m"}}],
            "targets": [{"modelRewrite": "m-2", "weight": 9}, {"modelRewrite": "m-3", "weight": 1}],
        }
        young = {"metadata": {"creationTimestamp": "2026-02-01T00:00:00Z"}}
        generic = {"targets": [{"modelRewrite": "old-default"}]}
        server.put(
            f"{NEW}/inferencemodelrewrites", "young", spec={"rules": [rule, {"targets": [{"modelRewrite": "no"}]}], **reference()}, **young
        )
        old = {"metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"}}
        server.put(f"{NEW}/inferencemodelrewrites", "zz-old", spec={"rules": [generic], **reference()}, **old)
        expected = {"m": (ModelTarget("m-2", 9), ModelTarget("m-3", 1)), "": (ModelTarget("old-default"),)}
        await eventually(lambda: rules.rewrites == expected, lambda: f"{rules.rewrites}")
        server.delete(f"{NEW}/inferencemodelrewrites", "young")
        await eventually(lambda: "m" not in rules.rewrites, lambda: f"{rules.rewrites}")


@pytest.mark.asyncio
async def test_the_older_group_of_objectives_counts_where_the_newer_is_not_installed(server, tmp_path):
    pool(server)
    for kind in ("inferenceobjectives", "inferencemodelrewrites"):
        del server.objects[f"{NEW}/{kind}"]
    server.put(f"{OLD}/inferenceobjectives", "legacy", spec={"priority": 7, **reference()})
    async with following(server, tmp_path) as followed:
        assert followed.table.rules.objectives == {"legacy": 7}


@pytest.mark.asyncio
async def test_objectives_that_may_not_be_read_do_not_keep_it_from_serving(server, tmp_path, caplog):
    pool(server)
    pod(server, "a", "10.0.0.1")
    server.instead = lambda request: status(403, "Forbidden") if "inferenceobjectives" in request.path else None
    async with following(server, tmp_path) as followed:
        assert followed.members() == ONE
        assert "inferenceobjectives.llm-d.ai cannot be listed, trying again: 403 Forbidden" in caplog.text


@pytest.mark.asyncio
async def test_a_question_that_the_server_calls_wrong_ends_the_start(server: ApiServer, tmp_path):
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
    ],
)
def test_parameters_that_cannot_work_together(parameters, message):
    discovery = KubernetesDiscovery("k", KubernetesDiscoveryParameters.model_validate(parameters), PluginContext())
    with pytest.raises(ConfigurationError, match=message):
        asyncio.run(discovery.start())
