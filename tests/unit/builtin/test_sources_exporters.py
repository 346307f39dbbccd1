"""Where the sources of GPU exporters and of other clusters ask, against real servers."""

from __future__ import annotations

import logging

import pytest
from aiohttp import web

from endpick.api import Endpoint, PluginContext, Unavailable
from endpick_builtin.collection.exporters import (
    NODE_ADDRESS_LABEL,
    DcgmDataSource,
    DcgmSourceParameters,
    MulticlusterMetricsDataSource,
    MulticlusterSourceParameters,
)
from endpick_builtin.collection.sources import KubernetesNotificationParameters, KubernetesNotificationSource
from unit.builtin.pages import PAGE, serving, started

pytestmark = pytest.mark.asyncio


async def answer(_request):
    return web.Response(body=PAGE)


def dcgm(**parameters) -> DcgmDataSource:
    return DcgmDataSource("dcgm", DcgmSourceParameters.model_validate(parameters), PluginContext())


async def test_a_gpu_exporter_is_asked_at_its_own_port():
    assert DcgmSourceParameters().port == 9400
    async with serving(answer) as port, started(dcgm(port=port)) as source:
        assert (await source.poll(Endpoint("default/a", "127.0.0.1", 1))).body == PAGE


@pytest.mark.parametrize("by_metrics_port", [False, True])
async def test_a_gpu_exporter_of_a_node_is_asked_at_the_nodes_address(by_metrics_port):
    async with serving(answer) as port, started(dcgm(port=0 if by_metrics_port else port, useNodeAddress=True)) as source:
        endpoint = Endpoint("default/a", "192.0.2.1", port if by_metrics_port else 1, {NODE_ADDRESS_LABEL: "127.0.0.1"})
        assert (await source.poll(endpoint)).body == PAGE
        with pytest.raises(Unavailable, match="'default/b' has no label 'endpick/node-address', which useNodeAddress needs"):
            await source.poll(Endpoint("default/b", "127.0.0.1", port))


async def test_other_clusters_are_asked_over_verified_tls():
    parameters = MulticlusterSourceParameters()
    assert (parameters.scheme, parameters.insecure_skip_verify, parameters.path) == ("https", False, "/metrics")
    plain = MulticlusterMetricsDataSource("peers", MulticlusterSourceParameters(scheme="http"), PluginContext())
    async with serving(answer) as port, started(plain) as source:
        assert (await source.poll(Endpoint("default/east", "localhost", 1, metrics_address=f"localhost:{port}"))).body == PAGE


async def test_watch_on_kubernetes_objects_warns_of_no_data(caplog):
    parameters = KubernetesNotificationParameters(group="apps", version="v1", kind="Deployment")
    source = KubernetesNotificationSource("watch", parameters, PluginContext(logger=logging.getLogger("tests.watch")))
    async with started(source):
        assert source.notify(None) is None
    assert [record.getMessage() for record in caplog.records] == [
        "no objects of kind apps/v1/Deployment are watched: without Kubernetes the source has nothing to deliver"
    ]
