"""`otlp-source`: exports over real sockets, and what they say of which endpoint."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import subprocess
import threading
from contextlib import asynccontextmanager

import aiohttp
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from endpick.api import ConfigurationError, Endpoint, PluginContext
from endpick_builtin.collection import otlp, otlp_messages, otlp_ports, push_server
from endpick_builtin.collection.otlp import OtlpParameters, OtlpSource
from endpick_builtin.collection.otlp_messages import MAX_POINTS, MalformedExport, answer_of, line_of, read_json, read_protobuf
from unit.builtin.kv_publisher import until

PROTOBUF, JSON = {"content-type": "application/x-protobuf"}, {"content-type": "application/json"}
A, B, TWIN = Endpoint("default/a", "10.0.0.1", 8000), Endpoint("default/b", "10.0.0.2", 8000), Endpoint("other/b", "10.0.0.3", 8000)
NANOSECONDS = "1700000000123456789"


def resource(who: str, *metrics: dict, attribute: str = "service.instance.id") -> dict:
    attributes = [{"key": attribute, "value": {"stringValue": who}}, {"key": "service.version", "value": {"intValue": "3"}}]
    return {"resource": {"attributes": attributes}, "scopeMetrics": [{"metrics": list(metrics)}]}


def gauge(name: str, value: float, **labels: str) -> dict:
    attributes = [{"key": key, "value": {"stringValue": text}} for key, text in labels.items()]
    return {"name": name, "gauge": {"dataPoints": [{"asDouble": value, "timeUnixNano": NANOSECONDS, "attributes": attributes}]}}


def export(*resources: dict) -> bytes:
    return orjson.dumps({"resourceMetrics": list(resources)})


class Running:
    """A source that listens, and the pages it has handed on."""

    def __init__(self, **parameters) -> None:
        self.registry = CollectorRegistry()
        self.source = OtlpSource("otlp", OtlpParameters(**{"port": 0, "grpcPort": 0, **parameters}), PluginContext(registry=self.registry))
        self.pages: list[tuple[str, bytes]] = []
        self.watching: dict[str, asyncio.Task] = {}

    async def watch(self, *endpoints: Endpoint) -> None:
        for each in endpoints:
            publish = lambda page, name=each.name: self.pages.append((name, page.body))  # noqa: E731
            self.watching[each.name] = asyncio.create_task(self.source.watch(each, publish))
        await asyncio.sleep(0)

    async def leave(self, endpoint: Endpoint) -> None:
        task = self.watching.pop(endpoint.name)
        task.cancel()
        await asyncio.wait([task])

    async def post(self, body, headers=JSON, path="/v1/metrics") -> tuple[int, bytes]:
        url = f"http://127.0.0.1:{self.source.port}{path}"
        async with aiohttp.ClientSession() as session, session.post(url, data=body, headers=headers) as response:
            return response.status, await response.read()

    def count(self, name: str, outcome: str) -> float:
        return self.registry.get_sample_value(f"endpick_otlp_{name}_total", {"outcome": outcome}) or 0.0


@asynccontextmanager
async def running(**parameters):
    it = Running(**parameters)
    await it.source.start()
    try:
        await it.watch(A, B)
        yield it
    finally:
        for task in it.watching.values():
            task.cancel()
        await it.source.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("name", ["default/a", "a", "10.0.0.1:8000"])
async def test_a_push_becomes_a_page_of_the_endpoint_it_names(name):
    async with running() as it:
        answer = await it.post(export(resource(name, gauge("vllm:num_requests_waiting", 3.0, model_name='say "x"\n'))))

    assert answer == (200, b"{}")
    assert it.pages == [("default/a", b'vllm:num_requests_waiting{model_name="say \\"x\\"\\n"} 3.0 1700000000123\n')]
    assert (it.count("exports", "read"), it.count("points", "delivered"), it.count("points", "left_out")) == (1, 1, 0)


@pytest.mark.asyncio
async def test_a_connection_is_closed_that_pushes_nothing_for_idle_timeout(monkeypatch, caplog):
    monkeypatch.setattr(push_server, "_SWEEP_SECONDS", 0.02)
    async with running(idleTimeout="50ms") as it, asyncio.timeout(20), aiohttp.ClientSession() as session:
        url = f"http://127.0.0.1:{it.source.port}/v1/metrics"
        async with session.post(url, data=b"{}", headers=JSON) as response:
            assert response.status == 200
        while "raise idleTimeout" not in caplog.text:  # noqa: ASYNC110 - what is waited for happens in the plugin
            await asyncio.sleep(0.01)
        assert it.registry.get_sample_value("endpick_plugin_limits_total", {"limit": "idleTimeout"}) == 1


@pytest.mark.asyncio
async def test_packed_bodies_are_read_and_each_endpoint_gets_its_own():
    body = gzip.compress(export(resource("a", gauge("x", 1.0)), resource("b", gauge("x", 2.0), gauge("y.z-%", 0.5))))
    async with running() as it:
        assert (await it.post(body, {**JSON, "content-encoding": "gzip"}))[0] == 200

    assert it.pages == [("default/a", b"x{} 1.0 1700000000123\n"), ("default/b", b"x{} 2.0 1700000000123\ny_z__{} 0.5 1700000000123\n")]


@pytest.mark.asyncio
async def test_points_of_endpoints_that_are_unknown_or_unclear_are_left_out_and_the_sender_is_told():
    async with running() as it:
        await it.watch(TWIN)
        status, body = await it.post(
            export(resource("b", gauge("x", 1.0)), resource("gone", gauge("x", 1.0)), resource("other/b", gauge("x", 7.0)))
        )
        partial = json.loads(body)["partialSuccess"]
        assert (status, partial["rejectedDataPoints"]) == (200, "2")
        assert partial["errorMessage"] == "'service.instance.id' is 'gone', which is the name of 0 endpoints"
        await it.leave(TWIN)
        assert (await it.post(export(resource("b", gauge("x", 1.0)))))[1] == b"{}", "the twin has left"

    assert [name for name, _ in it.pages] == ["other/b", "default/b"]
    assert it.count("points", "left_out") == 2


@pytest.mark.asyncio
async def test_another_attribute_may_name_the_endpoint():
    async with running(endpointAttribute="k8s.pod.name") as it:
        await it.post(export(resource("a", gauge("x", 1.0), attribute="k8s.pod.name")))

    assert [name for name, _ in it.pages] == ["default/a"]


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("body", "headers", "status", "outcome"),
    [
        (b"{", JSON, 400, "malformed"),
        (b"[]", JSON, 400, "malformed"),
        (b'{"resourceMetrics": {}}', JSON, 400, "malformed"),
        (
            b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [{"gauge": {"dataPoints": [{"asDouble": "x"}]}}]}]}]}',
            JSON,
            400,
            "malformed",
        ),
        (b"\xff\xff", PROTOBUF, 400, "malformed"),
        (b"not gzip", {**PROTOBUF, "content-encoding": "gzip"}, 400, None),
        (b"x", {"content-type": "text/plain"}, 415, "malformed"),
        (b" " * 5000, JSON, 413, "too_large"),
        (gzip.compress(b" " * 50_000_000), {**JSON, "content-encoding": "gzip"}, 413, "too_large"),
    ],
    ids=["no json", "a list", "no list", "no number", "no protobuf", "no gzip", "no type", "long", "bomb"],
)
async def test_what_makes_no_sense_is_refused_and_the_next_export_is_read(body, headers, status, outcome):
    async with running(maxBodyBytes=4096) as it:
        assert (await it.post(body, headers))[0] == status
        assert (await it.post(export(resource("a", gauge("x", 1.0)))))[0] == 200

    assert outcome is None or it.count("exports", outcome) == 1
    assert len(it.pages) == 1


@pytest.mark.asyncio
async def test_other_paths_are_not_there_and_a_port_that_is_taken_ends_the_start():
    async with running() as it:
        assert (await it.post(b"", path="/v1/traces"))[0] == 404
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    async with taken:
        port = taken.sockets[0].getsockname()[1]
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
            await OtlpSource("otlp", OtlpParameters(port=port, grpcPort=None), PluginContext()).start()


@asynccontextmanager
async def half_sent(it: Running, count: int):
    """So many exports whose bodies do not come."""
    head = b"POST /v1/metrics HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    writers = []
    readers = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", it.source.port)
        writer.write(head)
        readers.append(reader)
        writers.append(writer)
    try:
        yield readers
    finally:
        for writer in writers:
            writer.close()


@pytest.mark.asyncio
async def test_more_than_eight_at_once_are_told_to_come_again():
    async with running() as it, half_sent(it, 8):
        async with asyncio.timeout(10):
            while (await it.post(b"{}"))[0] != 503:  # noqa: ASYNC110 - until all eight are being read
                await asyncio.sleep(0)
    assert it.count("exports", "busy") == 1


@pytest.mark.asyncio
async def test_a_body_that_does_not_come_is_waited_for_only_so_long():
    async with running(bodyTimeout="50ms") as it, half_sent(it, 1) as (reader,), asyncio.timeout(10):
        assert b" 408 " in await reader.readline()
    assert it.count("exports", "too_slow") == 1


def test_points_without_a_value_and_beyond_the_limit_are_left_out_and_histograms_tell_count_and_sum():
    histogram = {"name": "h", "histogram": {"dataPoints": [{"count": "4", "sum": 2.5}]}}
    empty = {"name": "e", "sum": {"dataPoints": [{"flags": 1}, {"asInt": "9007199254740993"}]}}
    many = {"name": "m", "gauge": {"dataPoints": [{"asDouble": 1.0}] * (MAX_POINTS + 7)}}
    (first, second) = read_json(export(resource("a", histogram, empty), resource("b", many))).resources

    assert first.page.body == b"h_count{} 4.0\nh_sum{} 2.5\ne{} 9007199254740992.0\n"
    assert second.points == MAX_POINTS - 3
    assert read_json(export(resource("a", histogram, empty), resource("b", many))).dropped == 10


@given(st.binary(max_size=200))
def test_no_bytes_make_trouble(body):
    for read in (read_protobuf, read_json):
        try:
            read(body)
        except MalformedExport:
            continue


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "resourceMetrics",
                        "resource",
                        "scopeMetrics",
                        "metrics",
                        "gauge",
                        "sum",
                        "histogram",
                        "dataPoints",
                        "attributes",
                        "asDouble",
                        "asInt",
                        "flags",
                    ]
                ),
                inner,
            )
        ),
    )
)
def test_no_document_makes_trouble(document):
    try:
        read_json(json.dumps(document, allow_nan=False).encode())
    except (MalformedExport, ValueError):
        return


@given(st.text(), st.dictionaries(st.text(min_size=1), st.text()), st.floats(), st.integers(0, 2**64 - 1))
def test_a_point_is_one_line(name, labels, value, nanoseconds):
    assert line_of(name, labels, value, nanoseconds).splitlines(keepends=True)[0].count("{") >= 1
    assert line_of(name, labels, value, nanoseconds).count("\n") == 1


def test_answers_say_how_much_was_left_out():
    assert (answer_of(0, "", as_json=False), answer_of(0, "", as_json=True)) == (b"", b"{}")
    assert answer_of(3, "no", as_json=False) == b"\x0a\x06\x08\x03\x12\x02no"


EXPORTERS = {
    "http": """
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
exporter = OTLPMetricExporter(f"http://127.0.0.1:{sys.argv[1]}/v1/metrics", compression=Compression.Gzip)
""",
    "grpc": """
from grpc import Compression
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
exporter = OTLPMetricExporter(f"127.0.0.1:{sys.argv[1]}", insecure=True, compression=Compression.Gzip)
""",
}
PUSHING = """
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
provider = MeterProvider([reader], resource=Resource({"service.instance.id": "a"}))
meter = provider.get_meter("server")
meter.create_observable_gauge("vllm.num_requests_waiting", [lambda _: [Observation(3, {"model_name": "m"})]])
meter.create_observable_gauge("vllm.kv_cache_usage_perc", [lambda _: [Observation(0.25, {"model_name": "m"})]])
meter.create_histogram("ttft").record(0.5)
assert reader.force_flush()
provider.shutdown()
"""


@pytest.mark.asyncio
@pytest.mark.parametrize("protocol", EXPORTERS)
async def test_the_exporters_of_opentelemetrys_own_sdk_are_understood(protocol):
    python = os.environ.get("ENDPICK_OTEL_PYTHON", "")
    if not os.access(python, os.X_OK):
        pytest.skip("set ENDPICK_OTEL_PYTHON to a Python with opentelemetry-exporter-otlp")
    async with running() as it:
        port, script = it.source.grpc_port if protocol == "grpc" else it.source.port, f"import sys\n{EXPORTERS[protocol]}{PUSHING}"
        done = await asyncio.to_thread(subprocess.run, [python, "-c", script, str(port)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    lines = {line.rsplit(b" ", 1)[0] for name, body in it.pages for line in body.splitlines() if name == "default/a"}
    assert {b'vllm_num_requests_waiting{model_name="m"} 3.0', b'vllm_kv_cache_usage_perc{model_name="m"} 0.25', b"ttft_sum{} 0.5"} <= lines


@pytest.mark.asyncio
async def test_a_packed_body_is_unpacked_beside_the_event_loop_and_no_further_than_it_may_be_long(monkeypatch):
    unpacked_in = []

    def watched(packed, most):
        unpacked_in.append((threading.get_ident(), len(packed) < 100_000))
        return unpack(packed, most)

    unpack = otlp_ports._unpacked
    monkeypatch.setattr(otlp_ports, "_unpacked", watched)
    async with running() as it:
        bomb = gzip.compress(b" " * 50_000_000)
        assert (await it.post(bomb, {**JSON, "content-encoding": "gzip"}))[0] == 413
        twice = gzip.compress(b"{") + gzip.compress(b"}")
        assert (await it.post(twice, {**JSON, "content-encoding": "gzip"}))[0] == 400
        assert (await it.post(b"{}", {**JSON, "content-encoding": "br"}))[0] == 415
    assert [small for _, small in unpacked_in] == [True, True]
    assert threading.get_ident() not in {thread for thread, _ in unpacked_in}


@pytest.mark.asyncio
async def test_bodies_that_come_slowly_give_their_place_to_one_that_is_there(monkeypatch):
    monkeypatch.setattr(otlp, "_GRACE_SECONDS", 0.0)
    async with running(maxExports=1) as it, half_sent(it, 1) as (reader,):
        await until(lambda: it.source._reading == 1)
        assert (await it.post(export(resource("a", gauge("x", 1.0)))))[0] == 200
        assert b" 408 " in await reader.readline()
    assert len(it.pages) == 1


@pytest.mark.parametrize("body", [b"\x0a\x00" * 50_000, b"\x0a\x82\x9a\x0c" + b"\x12\xfe\x99\x0c" + b"\x12\x00" * 100_000])
def test_an_export_of_nothing_but_messages_is_refused_before_they_are_made(body, monkeypatch):
    monkeypatch.setattr(otlp_messages, "_messages", lambda: pytest.fail("it was decoded"))
    with pytest.raises(MalformedExport, match="more than 20000 parts"):
        read_protobuf(body, 1000)


@pytest.mark.asyncio
async def test_clients_that_hang_up_or_speak_no_http_are_counted_and_leave_no_stack_in_the_log(caplog):
    async with running() as it:
        async with half_sent(it, 3):
            await until(lambda: it.source._reading == 3)
        await until(lambda: it.count("exports", "gone") == 3)
        for spoken in (b"POST http://[::1/v1 HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 50, b"GET / HTTP/1.1\r\n:\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", it.source.port)
            writer.write(spoken)
            assert b" 400 " in await reader.readline()
            writer.close()
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
