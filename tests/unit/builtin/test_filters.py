"""Label filters and the utilization detector."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Endpoint
from endpick.api.state import CycleState
from endpick.data.table import EndpointTable
from endpick_builtin.admission.detectors import UtilizationDetector
from endpick_builtin.label_filters import DecodeFilter, EncodeFilter, LabelSelectorFilter, PrefillFilter
from unit.scheduling.workbench import REQUEST, access, instance, names, pool

ROLES = ["decode", "prefill", "encode", "prefill-decode", "encode-prefill", "both", "encode-prefill-decode", "other", None]


def kept(built, endpoints):
    mask = built.plugin.filter(REQUEST, endpoints, CycleState(access()))
    return names(endpoints.where(mask))


@pytest.mark.parametrize(
    ("role_filter", "roles"),
    [
        (DecodeFilter, {"decode", "prefill-decode", "both", "encode-prefill-decode", None}),
        (PrefillFilter, {"prefill", "encode-prefill", "prefill-decode", "both", "encode-prefill-decode"}),
        (EncodeFilter, {"encode", "encode-prefill", "encode-prefill-decode"}),
    ],
)
def test_role_filter_keeps_its_roles(role_filter, roles):
    table = pool(labels=[{} if role is None else {"llm-d.ai/role": role} for role in ROLES])
    survivors = kept(instance(role_filter), table.view())
    assert {ROLES[int(name[1:])] for name in survivors} == roles


LABELS = [{"tier": "gold", "zone": "a"}, {"tier": "silver", "zone": "a"}, {"zone": "b"}, {}]


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ["e0", "e1", "e2", "e3"]),
        ({"matchLabels": {"zone": "a", "tier": "gold"}}, ["e0"]),
        ({"matchExpressions": [{"key": "tier", "operator": "In", "values": ["gold", "silver"]}]}, ["e0", "e1"]),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["gold"]}]}, ["e1", "e2", "e3"]),
        ({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, ["e0", "e1", "e2"]),
        ({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, ["e3"]),
        (
            {
                "matchLabels": {"zone": "a"},
                "matchExpressions": [{"key": "tier", "operator": "Exists"}, {"key": "tier", "operator": "NotIn", "values": ["silver"]}],
            },
            ["e0"],
        ),
    ],
)
def test_label_selector_keeps_matching_endpoints(parameters, expected):
    assert kept(instance(LabelSelectorFilter, **parameters), pool(labels=LABELS).view()) == expected


@pytest.mark.parametrize(
    "expression",
    [
        {"key": "tier", "operator": "In"},
        {"key": "tier", "operator": "Exists", "values": ["gold"]},
    ],
)
def test_label_selector_with_wrong_values_is_refused(expression):
    with pytest.raises(ValidationError):
        instance(LabelSelectorFilter, matchExpressions=[expression])


def test_label_selector_follows_label_changes():
    table = EndpointTable(clock=lambda: 0.0)
    table.replace_all([Endpoint("pool/e0", "10.0.0.1", 1, {"zone": "a"}), Endpoint("pool/e1", "10.0.0.2", 1, {"zone": "b"})])
    selector = instance(LabelSelectorFilter, matchLabels={"zone": "a"})
    assert kept(selector, table.view()) == ["e0"]
    assert kept(selector, table.view().take([1])) == []

    table.upsert(Endpoint("pool/e1", "10.0.0.2", 1, {"zone": "a"}))
    assert kept(selector, table.view().take([1, 0])) == ["e1", "e0"]


def pressed(queue, usage, now=100.0, written=100.0):
    table = EndpointTable(clock=lambda: clock[0], keys=(WAITING_QUEUE_SIZE, KV_CACHE_USAGE))
    clock = [written]
    table.replace_all(Endpoint(f"pool/e{n}", f"10.0.0.{n + 1}", 1) for n in range(len(queue)))
    for endpoint, waiting, used in zip(table.generation.endpoints, queue, usage, strict=True):
        for key, value in ((WAITING_QUEUE_SIZE, waiting), (KV_CACHE_USAGE, used)):
            if value is not None:
                table.writer(None, endpoint).set(key, value)
    clock[0] = now
    return table.view()


@pytest.mark.parametrize(
    ("queue", "usage", "expected"),
    [
        ([5.0, 0.0], [0.4, 0.0], 0.5),
        ([0.0, None], [0.0, None], 0.5),
        ([], [], 1.0),
    ],
)
def test_detector_saturation_is_the_mean(queue, usage, expected):
    assert instance(UtilizationDetector).plugin.saturation(pressed(queue, usage)) == pytest.approx(expected)


def test_detector_counts_stale_metrics_as_full():
    detector = instance(UtilizationDetector, metricsStalenessThreshold="2s").plugin
    assert detector.saturation(pressed([0.0], [0.0], now=102.0)) == 0.0
    assert detector.saturation(pressed([0.0], [0.0], now=102.1)) == 1.0


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, ["e0"]),
        ({"headroom": 0.5}, ["e0", "e1"]),
        ({"queueDepthThreshold": 1}, ["e0", "e1", "e2", "e3"]),
    ],
)
def test_detector_as_a_filter_never_drops_all(parameters, expected):
    view = pressed([4.0, 6.0, 0.0, None], [0.1, 0.1, 1.3, None])
    assert kept(instance(UtilizationDetector, **parameters), view) == expected
