"""What is read of Kubernetes objects, well formed or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import ModelRewrite, ModelTarget
from endpick_builtin.kubernetes import objects
from endpick_builtin.kubernetes.objects import (
    POOL_GROUP,
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

POOL = PoolName("inference.networking.k8s.io", "pool")
FIELDS = (
    *("metadata", "spec", "status", "name", "labels", "annotations", "deletionTimestamp", "podIP", "conditions", "type", "poolRef"),
    *("selector", "matchLabels", "targetPorts", "targetPortNumber", "number", "priority", "rules", "matches", "model", "value"),
    *("targets", "modelRewrite", "weight", "creationTimestamp", "llm-d.ai/active-ports"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=5), inner, max_size=5),
    max_leaves=25,
)


def a_pod(annotations: dict[str, str] | None = None) -> dict:
    metadata = {"name": "p", "labels": {"app": "vllm"}, "annotations": annotations or {}}
    return {"metadata": metadata, "status": {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}}


@pytest.mark.parametrize(
    ("annotations", "ranks"),
    [
        ({}, [0, 1, 2]),
        ({"llm-d.ai/active-ports": ""}, []),
        ({"llm-d.ai/active-ports": "8000"}, [0]),
        ({"llm-d.ai/active-ports": "8000, 8001 , 8002"}, [0, 1, 2]),
        ({"llm-d.ai/active-ports": "8000,invalid,8002"}, [0, 2]),
        ({"llm-d.ai/active-ports": "8000,-1,8002"}, [0, 2]),
        ({"llm-d.ai/active-ports": "8000,8001,8000"}, [0, 1]),
        ({"llm-d.ai/active-ports": "8000,9000"}, [0]),
        ({"llm-d.ai/active-ports": "8000abc"}, [0]),
        ({"inference.networking.k8s.io/active-ports": "8001"}, [1]),
        ({"inference.networking.k8s.io/active-ports": "8001", "llm-d.ai/active-ports": "8002"}, [2]),
    ],
)
def test_active_ports(annotations, ranks):
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
        {"status": {"podIP": "", "conditions": [{"type": "Ready", "status": "True"}]}},
        {"status": None},
        {"metadata": {"name": "p", "deletionTimestamp": "2026-08-22T00:00:00Z"}},
    ],
)
def test_pods_that_may_get_no_requests(change):
    assert read_pod(a_pod()) is not None
    assert read_pod({**a_pod(), **change}) is None


def test_pools_of_both_groups():
    new = {
        "spec": {"selector": {"matchLabels": {"a": "b", "c": "d"}}, "targetPorts": [{"number": 8000}, {"number": 8001}, {"number": 8000}]}
    }
    assert read_pool(new) == Pool((("a", "b"), ("c", "d")), (8000, 8001))
    assert Pool((("a", "b"), ("c", "d")), (1,)).label_selector == "a=b,c=d"
    assert read_pool({"spec": {"selector": {"a": "b"}, "targetPortNumber": 8000}}) == Pool((("a", "b"),), (8000,))
    assert read_pool({"spec": {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 8000}]}}) is None, "it would select every Pod"
    assert read_pool({**new, "metadata": {"deletionTimestamp": "2026-08-22T00:00:00Z"}}) is None


def test_rules_of_older_objects_come_first():
    def rewrites(created: str, target: str) -> dict:
        rule = {"matches": [{"model": {"type": "Exact", "value": "m"}}], "targets": [{"modelRewrite": target, "weight": 3}]}
        return {"metadata": {"creationTimestamp": created}, "spec": {"poolRef": {"name": "pool"}, "rules": [rule]}}

    read = {name: read_rewrites(rewrites(created, name), POOL) for name, created in (("a", "2026-02"), ("b", "2026-01"), ("c", "2026-02"))}
    rules = rules_in_order({name: dated for name, dated in read.items() if dated is not None})
    assert rules == tuple(ModelRewrite(("m",), (ModelTarget(name, 3),)) for name in ("b", "a", "c"))


def rewriting(rules: int, length: int = 1) -> dict:
    rule = {"matches": [{"model": {"value": "m" * length}}], "targets": [{"modelRewrite": "n"}]}
    return {"spec": {"poolRef": {"name": "pool"}, "rules": [rule] * rules}}


def test_of_rules_without_measure_the_first_are_known():
    many, long = read_rewrites(rewriting(9000), POOL), read_rewrites(rewriting(3, 1_000_000), POOL)
    assert many is not None
    assert len(many.rules) == objects.MOST_RULE_CHARACTERS // 128
    assert long is not None
    assert long.rules == ()
    told = rules_in_order({f"w{number}": many for number in range(1000)})
    assert sum(len(rule.models) + len(rule.targets) for rule in told) == objects.MOST_RULE_PARTS


@pytest.mark.parametrize(("most", "taken"), [(7, 6), (8, 8), (10_000, 10_000)])
def test_as_many_parts_of_rules_are_told_as_max_rule_parts_allows(most, taken):
    many = read_rewrites(rewriting(100), POOL)
    assert many is not None
    told = rules_in_order({f"w{number}": many for number in range(100)}, most)
    assert sum(len(rule.models) + len(rule.targets) for rule in told) == taken


def test_texts_of_megabytes_are_no_ports_and_no_address():
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    ports = ",".join(map(str, range(1, 60_000)))
    pod = read_pod({"metadata": {"name": "a", "annotations": {objects.ACTIVE_PORTS[0]: ports}}, "status": {"podIP": "10.0.0.1", **ready}})
    assert pod is not None
    assert len(pod.active_ports or ()) < 1100
    assert read_pod({"metadata": {"name": "a"}, "status": {"podIP": "1" * 65, **ready}}) is None


@given(JSON.filter(lambda value: isinstance(value, dict)))
def test_objects_of_any_shape_are_read_without_an_exception(item):
    pod, pool = read_pod(item), read_pool(item)
    assert pod is None or isinstance(pod, Pod)
    assert pool is None or (pool.selector and all(0 < port <= 65535 for port in pool.ports))
    metadata = item.get("metadata")
    is_going = isinstance(metadata, dict) and bool(metadata.get("deletionTimestamp"))
    assert (read_objective({**item, "spec": {"poolRef": {"name": "pool"}}}, POOL) is None) == is_going
    read_rewrites(item, POOL)
    list(endpoints_of([] if pod is None else [pod], (8000,), "default"))


@pytest.mark.parametrize("ip", ["no address", "fe80::1%\r\nx: 1", "10.0.0.1:80", "a/b", "10.0.0.1\n", "\U0001f999", "1.2.3"])
def test_a_pod_whose_address_is_none_does_not_count(ip):
    assert read_pod({"metadata": {"name": "a"}, "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": "True"}]}}) is None


def test_numbers_beyond_what_kubernetes_takes_are_the_greatest_that_it_does():
    reference = {"poolRef": {"name": "pool"}}
    pool = PoolName(POOL_GROUP, "pool")
    assert [read_objective({"spec": {**reference, "priority": number}}, pool) for number in (10**30, -(10**30))] == [2**31 - 1, 1 - 2**31]
    rule = {"matches": [], "targets": [{"modelRewrite": "m", "weight": 10**30}, {"modelRewrite": "m", "weight": -1}]}
    rewrites = read_rewrites({"spec": {**reference, "rules": [rule]}}, pool)
    assert [target.weight for target in rewrites.rules[0].targets] == [2**31 - 1, 0]
