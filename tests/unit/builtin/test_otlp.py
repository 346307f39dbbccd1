"""`otlp-source`: exports over HTTP and gRPC become pages of the endpoint that they name."""

from __future__ import annotations

import asyncio
import io
import shutil
import ssl
from contextlib import asynccontextmanager

import aiohttp
import grpc
import grpc.aio
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2_grpc import MetricsServiceStub
from prometheus_client import CollectorRegistry
from pydantic import ValidationError

from endpick.api import ConfigurationError, Endpoint, PluginContext
from endpick_builtin.collection.otlp import MAX_BODY_BYTES, OtlpParameters, OtlpSource
from endpick_builtin.collection.otlp_messages import page_line, pages_of, parse_export
from unit.builtin.pages import make_certificate

pytestmark = pytest.mark.asyncio
A = Endpoint("default/a", "10.0.0.1", 8000)


def export(name: str = "default/a", metric: str = "vllm:num_requests_waiting", value: float = 3.0) -> ExportMetricsServiceRequest:
    request = ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    attribute = resource.resource.attributes.add(key="service.instance.id")
    attribute.value.string_value = name
    point = resource.scope_metrics.add().metrics.add(name=metric).gauge.data_points.add(as_double=value)
    point.attributes.add(key="model.name").value.string_value = 'm"1'
    return request


@asynccontextmanager
async def serving(**parameters):
    """A started source, and the pages it publishes for endpoint A."""
    registry, pages = CollectorRegistry(), []
    given = OtlpParameters.model_validate({"port": 0, "grpcPort": 0, **parameters})
    source = OtlpSource("otlp", given, PluginContext(registry=registry))
    await source.start()
    watching = asyncio.create_task(source.watch(A, pages.append))
    await asyncio.sleep(0)
    try:
        yield source, pages, registry
    finally:
        watching.cancel()
        await source.stop()


async def post(source, body: bytes, content_type: str = "application/x-protobuf") -> tuple[int, bytes]:
    url, headers = f"http://127.0.0.1:{source.port}/v1/metrics", {"Content-Type": content_type}
    async with aiohttp.ClientSession(headers=headers) as session, session.post(url, data=io.BytesIO(body)) as answer:
        return answer.status, await answer.read()


@pytest.mark.parametrize("name", ["default/a", "a", "10.0.0.1:8000"])
async def test_an_export_over_http_is_published(name):
    async with serving() as (source, pages, registry):
        status, body = await post(source, export(name).SerializeToString())
    assert (status, body) == (200, b"")
    (page,) = pages
    assert page.newest("vllm:num_requests_waiting") == ({"model_name": 'm"1'}, 3.0, None)
    assert registry.get_sample_value("endpick_otlp_points_total", {"outcome": "delivered"}) == 1.0


async def test_an_export_in_json_is_published():
    body = b"""{"resourceMetrics": [{"resource": {"attributes": [{"key": "service.instance.id", "value": {"stringValue": "a"}}]},
        "scopeMetrics": [{"metrics": [{"name": "up", "sum": {"dataPoints": [{"asInt": "7", "timeUnixNano": "2000000000"}]}}]}],
        "unknownField": 1}]}"""
    async with serving() as (source, pages, _):
        assert (await post(source, body, "application/json"))[0] == 200
    assert pages[0].newest("up") == ({}, 7.0, 2.0)


async def test_an_export_over_grpc_is_published():
    async with serving() as (source, pages, _), grpc.aio.insecure_channel(f"127.0.0.1:{source.grpc_port}") as channel:
        answer = await MetricsServiceStub(channel).Export(export(value=5.0))
    assert answer == ExportMetricsServiceResponse()
    assert pages[0].newest("vllm:num_requests_waiting").value == 5.0


async def test_points_of_unknown_endpoints_are_reported_to_the_sender():
    async with serving() as (source, pages, registry):
        _, body = await post(source, export("elsewhere").SerializeToString())
    partial = ExportMetricsServiceResponse.FromString(body).partial_success
    assert (partial.rejected_data_points, pages) == (1, [])
    assert "'service.instance.id' is 'elsewhere', which is the name of 0 endpoints" in partial.error_message
    assert registry.get_sample_value("endpick_otlp_points_total", {"outcome": "dropped"}) == 1.0


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"\xff\xff", "application/x-protobuf", 400),
        (b"{", "application/json", 400),
        (b"up 1", "text/plain", 415),
        (b"x" * (MAX_BODY_BYTES + 1), "application/x-protobuf", 413),
    ],
)
async def test_a_body_that_is_no_export_is_refused(body, content_type, status):
    async with serving() as (source, pages, _):
        assert (await post(source, body, content_type))[0] == status
        assert pages == []


async def test_histograms_and_summaries_give_count_and_sum():
    request = export()
    metrics = request.resource_metrics[0].scope_metrics[0].metrics
    metrics.add(name="ttft").histogram.data_points.add(count=4, sum=2.5)
    metrics.add(name="e2e").summary.data_points.add(count=2, sum=1.5)
    metrics.add(name="absent").gauge.data_points.add(as_double=1, flags=1)
    (resource,) = pages_of(parse_export(request.SerializeToString(), is_json=False))
    values = {name: resource.page.newest(name).value for name in ("ttft_count", "ttft_sum", "e2e_count", "e2e_sum")}
    assert values == {"ttft_count": 4.0, "ttft_sum": 2.5, "e2e_count": 2.0, "e2e_sum": 1.5}
    assert resource.page.newest("absent") is None
    assert resource.points == 5


async def test_names_are_written_as_prometheus_allows_them():
    assert page_line("gen.ai/x", {"a-b": "1\n"}, float("nan"), 0) == 'gen_ai_x{a_b="1\\n"} nan\n'


async def test_an_address_of_another_machine_ends_start_up():
    source = OtlpSource("otlp", OtlpParameters(host="192.0.2.1", port=0), PluginContext())
    with pytest.raises(ConfigurationError, match=r"cannot listen on 192\.0\.2\.1"):
        await source.start()


@pytest.mark.parametrize("parameters", [{"certPath": "a"}, {"keyPath": "a"}, {"clientCaPath": "a"}])
async def test_half_a_certificate_is_refused(parameters):
    with pytest.raises(ValidationError, match="certPath and keyPath"):
        OtlpParameters.model_validate(parameters)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="making a certificate needs the command openssl")
async def test_both_ports_use_tls_and_ask_for_client_certificates(tmp_path):
    cert, key = make_certificate(tmp_path, "server")
    other_cert, other_key = make_certificate(tmp_path, "client")
    async with serving(certPath=str(cert), keyPath=str(key), clientCaPath=str(other_cert)) as (source, pages, _):
        tls = ssl.create_default_context(cafile=cert)
        tls.load_cert_chain(other_cert, other_key)
        url = f"https://127.0.0.1:{source.port}/v1/metrics"
        async with aiohttp.ClientSession(headers={"Content-Type": "application/x-protobuf"}) as session:
            async with session.post(url, data=export().SerializeToString(), ssl=tls) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.post(url, data=b"", ssl=ssl.create_default_context(cafile=cert))
        credentials = grpc.ssl_channel_credentials(cert.read_bytes(), other_key.read_bytes(), other_cert.read_bytes())
        async with grpc.aio.secure_channel(f"127.0.0.1:{source.grpc_port}", credentials) as channel:
            await MetricsServiceStub(channel).Export(export())
    assert len(pages) == 2
