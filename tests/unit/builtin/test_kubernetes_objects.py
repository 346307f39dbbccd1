"""Reading Kubernetes objects."""

from __future__ import annotations

import pytest

from endpick.api.discovery import ModelRewrite, ModelTarget
from endpick_kubernetes.parameters import (
    Pod,
    Pool,
    PoolName,
    endpoints_of,
    read_objective,
    read_pod,
    read_pool,
    read_rewrites,
    rules_in_order,
)
from endpick_kubernetes.peers import others_than

POOL = PoolName("inference.networking.k8s.io", "pool")
GOING = {"name": "p", "deletionTimestamp": "2026-08-22T00:00:00Z"}


def a_pod(annotations: dict[str, str] | None = None) -> dict:
    metadata = {"name": "p", "labels": {"app": "vllm"}, "annotations": annotations or {}}
    return {"metadata": metadata, "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}}


@pytest.mark.parametrize(
    ("annotations", "ranks"),
    [
        ({}, [0, 1, 2]),
        ({"llm-d.ai/active-ports": ""}, []),
        ({"llm-d.ai/active-ports": "8000, 8001 , 8000"}, [0, 1]),
        ({"llm-d.ai/active-ports": "8000abc,invalid,-1,9000"}, [0]),
        ({"inference.networking.k8s.io/active-ports": "8001", "llm-d.ai/active-ports": "8002"}, [2]),
        ({"inference.networking.k8s.io/active-ports": "8001"}, [1]),
    ],
)
def test_active_ports_restrict_endpoints(annotations, ranks):
    pod = read_pod(a_pod(annotations))
    assert pod is not None
    found = list(endpoints_of([pod], (8000, 8001, 8002), "models"))
    assert [endpoint.name for endpoint in found] == [f"models/p-rank-{rank}" for rank in ranks]
    assert [endpoint.port for endpoint in found] == [8000 + rank for rank in ranks]
    assert all(endpoint.labels == {"app": "vllm"} and endpoint.host == "10.0.0.1" for endpoint in found)


@pytest.mark.parametrize(
    "change",
    [
        {"status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"podIP": "10.0.0.1", "conditions": [{"type": "ContainersReady", "status": "True"}]}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": {}},
        {"metadata": GOING},
    ],
)
def test_read_pod_ignores_pods_that_cannot_serve(change):
    assert read_pod({**a_pod(), **change}) is None


def test_read_pool_knows_both_groups():
    ports = [{"number": 8000}, {"number": 8001}, {"number": 8000}]
    new = {"metadata": {}, "spec": {"selector": {"matchLabels": {"a": "b", "c": "d"}}, "targetPorts": ports}}
    assert read_pool(new) == Pool({"a": "b", "c": "d"}, (8000, 8001))
    assert Pool({"a": "b", "c": "d"}, (1,)).label_selector == "a=b,c=d"
    old = {"metadata": {}, "spec": {"selector": {"a": "b"}, "targetPortNumber": 8000}}
    assert read_pool(old) == Pool({"a": "b"}, (8000,))
    everything = {"metadata": {}, "spec": {"selector": {"matchLabels": {}}, "targetPorts": ports}}
    assert read_pool(everything) is None
    assert read_pool({**new, "metadata": GOING}) is None


def test_read_objective_takes_those_of_the_pool():
    def objective(spec: dict, metadata: dict | None = None) -> int | None:
        return read_objective({"metadata": metadata or {}, "spec": spec}, POOL)

    assert objective({"poolRef": {"name": "pool"}, "priority": -3}) == -3
    assert objective({"poolRef": {"name": "pool", "group": POOL.group}}) == 0
    assert objective({"poolRef": {"name": "other"}}) is None
    assert objective({"poolRef": {"name": "pool", "group": "inference.networking.x-k8s.io"}}) is None
    assert objective({"poolRef": {"name": "pool"}}, GOING) is None


def test_rules_of_older_objects_come_first():
    def rewrites(created: str, target: str) -> dict:
        rule = {"matches": [{"model": {"type": "Exact", "value": "m"}}], "targets": [{"modelRewrite": target, "weight": 3}]}
        return {"metadata": {"creationTimestamp": created}, "spec": {"poolRef": {"name": "pool"}, "rules": [rule]}}

    read = {name: read_rewrites(rewrites(created, name), POOL) for name, created in (("a", "2026-02"), ("b", "2026-01"), ("c", "2026-02"))}
    rules = rules_in_order({name: dated for name, dated in read.items() if dated is not None})
    assert tuple(rules) == tuple(ModelRewrite(("m",), (ModelTarget(name, 3),)) for name in ("b", "a", "c"))


@pytest.mark.parametrize(
    ("own_ip", "own_name", "others"),
    [("10.0.0.1", "", ["b", "c"]), ("", "b", ["a", "c"]), ("10.0.0.1", "b", ["b", "c"]), ("", "", ["a", "b", "c"])],
)
def test_peers_are_other_pods(own_ip, own_name, others):
    pods = [Pod(name, f"10.0.0.{number}", {}, None) for number, name in enumerate("abc", 1)]
    assert [pod.name for pod in others_than(own_ip, own_name, pods)] == others
