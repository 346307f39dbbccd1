"""How the limits of sources, of pushes and of discoveries are made to act once; each function gives the registry that counts it."""

from __future__ import annotations

import asyncio
import gzip
import time
from contextlib import asynccontextmanager, suppress

import orjson
import pytest
from prometheus_client import CollectorRegistry

from endpick.api import Limits, PluginContext, Unavailable
from endpick.data.table import EndpointTable
from endpick.transport.tls import make_self_signed
from endpick_builtin.collection import answers, connection_room, otlp, page_limits, pool_data, push_server
from endpick_builtin.collection.pool_data import HttpPoolSource, PoolSourceParameters
from endpick_builtin.collection.sources import MetricsDataSource, MetricsSourceParameters
from endpick_builtin.discovery import dns_discovery, endpoint_file, file_discovery
from endpick_builtin.discovery.dns_discovery import DnsDiscovery, DnsDiscoveryParameters
from endpick_builtin.discovery.file_discovery import FileDiscovery, FileDiscoveryParameters
from endpick_builtin.producers.json_service import JsonService
from unit.builtin.kv_publisher import until
from unit.builtin.name_server import CNAME, SRV, A, NameServer, answering, record
from unit.builtin.pages import at, serving, started
from unit.builtin.test_endpoint_load import Observed
from unit.builtin.test_http_pages import CHUNKED, answer, speaking
from unit.builtin.test_otlp import export, gauge, half_sent, resource, running
from unit.builtin.test_pages_over_tls import hanging_up, listening, server_tls

KIB64 = 64 * 1024
MANY_LISTS = b"[" + b"[]," * 200_000 + b"[]]"


def context_of(registry: CollectorRegistry) -> PluginContext:
    return PluginContext(registry=registry, clock=time.monotonic)


def acted(registry: CollectorRegistry) -> float:
    """How often any limit has acted."""
    samples = [sample for family in registry.collect() if family.name == "endpick_plugin_limits" for sample in family.samples]
    return sum(sample.value for sample in samples)


def page_that_says(spoken: bytes):
    async def act(monkeypatch, tmp_path):
        registry = CollectorRegistry()
        source = MetricsDataSource("metrics", MetricsSourceParameters(maxPageBytes=KIB64), context_of(registry))
        async with speaking(spoken) as (port, _), started(source):
            with pytest.raises(Unavailable):
                await source.poll(at(port))
        return registry

    return act


def service_that_says(spoken: bytes, most: int = KIB64):
    async def act(monkeypatch, tmp_path):
        registry = CollectorRegistry()
        async with speaking(spoken) as (port, _):
            service = JsonService(
                f"http://127.0.0.1:{port}", Limits(context_of(registry), page_limits.PAGE_LIMITS), page_limits.service_size(most)
            )
            service.open()
            with pytest.raises(Unavailable):
                await service.ask("/", {})
            await service.close()
        return registry

    return act


async def look_that_takes_long(monkeypatch, tmp_path):
    async def handler(request):
        await asyncio.Event().wait()

    registry = CollectorRegistry()
    async with serving(handler) as port:
        parameters = PoolSourceParameters(url=f"http://127.0.0.1:{port}/", timeout="50ms")
        async with started(HttpPoolSource("pool", parameters, context_of(registry))) as source:
            with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
                await source.poll_pool()
    return registry


async def document_of_many_parts(monkeypatch, tmp_path):
    registry = CollectorRegistry()
    async with speaking(answer(MANY_LISTS)) as (port, _):
        parameters = PoolSourceParameters(url=f"http://127.0.0.1:{port}/", maxPageBytes=2**22)
        async with started(HttpPoolSource("pool", parameters, context_of(registry))) as source:
            with pytest.raises(Unavailable, match="more than 262144 parts"):
                await source.poll_pool()
    return registry


async def long_load_report(monkeypatch, tmp_path):
    observed = Observed(maxHeaderCharacters=64)
    observed.answered("JSON " + "x" * 64)
    assert observed.count("unreadable") == 1
    return observed.registry


async def long_export(monkeypatch, tmp_path):
    async with running(maxBodyBytes=1024) as it:
        packed = gzip.compress(b"\0" * 100_000)
        assert (await it.post(packed, {"content-type": "application/json", "content-encoding": "gzip"}))[0] == 413
        return it.registry


async def many_points(monkeypatch, tmp_path):
    async with running(maxPoints=2) as it:
        status, body = await it.post(export(resource("a", *[gauge(f"m{number}", 1.0) for number in range(5)])))
        assert (status, orjson.loads(body)["partialSuccess"]["rejectedDataPoints"]) == (200, "3")
        return it.registry


async def many_parts(monkeypatch, tmp_path):
    async with running(maxPoints=1) as it:
        status, why = await it.post(export(resource("a", *[gauge(f"m{number}", 1.0) for number in range(5)])))
        assert (status, b"more than 20 parts" in why) == (413, True)
        return it.registry


async def crowd_of_exports(monkeypatch, tmp_path):
    async with running(maxExports=1) as it, half_sent(it, 1):
        await until(lambda: it.source._reading == 1, "an export that is read")
        assert (await it.post(b"{}"))[0] == 503
        return it.registry


async def slow_export(monkeypatch, tmp_path):
    async with running(bodyTimeout="50ms") as it, half_sent(it, 1) as (reader,):
        assert b" 408 " in await reader.readline()
        return it.registry


@asynccontextmanager
async def silent_connections(it, count):
    opened = [await asyncio.open_connection("127.0.0.1", it.source.port) for _ in range(count)]
    yield
    for _, writer in opened:
        writer.close()


async def crowd_of_connections(monkeypatch, tmp_path):
    async with running(maxConnections=1) as it, silent_connections(it, 2):
        await until(lambda: acted(it.registry), "a connection that is closed")
        return it.registry


async def silent_connection(monkeypatch, tmp_path):
    monkeypatch.setattr(push_server, "FIRST_SECONDS", 0.02)
    monkeypatch.setattr(push_server, "_SWEEP_SECONDS", 0.02)
    async with running() as it, silent_connections(it, 1):
        await until(lambda: acted(it.registry), "a connection that is closed")
        return it.registry


async def long_handshake(monkeypatch, tmp_path):
    certificate, key = make_self_signed()
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    parts = (b"\x01" + (32768).to_bytes(3, "big")).ljust(16384, b"x")  # half of a first message that says that it has so much
    records = b"".join(b"\x16\x03\x01" + (8192).to_bytes(2, "big") + parts[at : at + 8192] for at in range(0, len(parts), 8192))
    files = {"certPath": str(tmp_path / "cert.pem"), "keyPath": str(tmp_path / "key.pem")}
    async with running(**files, grpcPort=None, maxHandshakeBytes=12 * 1024) as it:
        reader, writer = await asyncio.open_connection("127.0.0.1", it.source.port)
        writer.write(records)
        with suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        await until(lambda: acted(it.registry), "a connection that is closed")
        return it.registry


@asynccontextmanager
async def discovering(plugin):
    table = EndpointTable(lambda: 0.0)
    task = asyncio.create_task(plugin.run(table))
    yield table
    task.cancel()
    await asyncio.wait([task])


async def circle_of_aliases(monkeypatch, tmp_path):
    registry = CollectorRegistry()
    async with answering(NameServer([record("a.svc", CNAME, 30, "b.svc"), record("b.svc", CNAME, 30, "a.svc")])) as server:
        given = {"hostname": "a.svc", "nameserver": "127.0.0.1", "nameserverPort": server.port}
        async with discovering(DnsDiscovery("dns", DnsDiscoveryParameters.model_validate(given), context_of(registry))) as table:
            await until(lambda: acted(registry), "an answer")
            assert not table.is_ready.is_set(), "nothing is known of the pool"
    return registry


async def crowd_of_targets(monkeypatch, tmp_path):
    registry, targets = CollectorRegistry(), ("a.svc", "b.svc", "c.svc")
    records = [record("svc", SRV, 30, target, 8000) for target in targets]
    records += [record(target, A, 30, f"10.0.0.{number}") for number, target in enumerate(targets)]
    async with answering(NameServer(records)) as server:
        given = {"hostname": "svc", "records": "SRV", "nameserver": "127.0.0.1", "nameserverPort": server.port, "maxTargets": 2}
        async with discovering(DnsDiscovery("dns", DnsDiscoveryParameters.model_validate(given), context_of(registry))) as table:
            await table.is_ready.wait()
            assert [endpoint.address for endpoint in table.view()] == ["10.0.0.0:8000", "10.0.0.1:8000"]
    return registry


def file_that_becomes(content: bytes):
    async def act(monkeypatch, tmp_path):
        monkeypatch.setattr(file_discovery, "LOOK_INTERVAL_SECONDS", 0.02)
        registry, path = CollectorRegistry(), tmp_path / "endpoints.yaml"
        path.write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]')
        parameters = FileDiscoveryParameters.model_validate({"path": str(path), "watchFile": True, "maxFileBytes": 1024})
        async with discovering(FileDiscovery("files", parameters, context_of(registry))) as table:
            await table.is_ready.wait()
            path.write_bytes(content)
            await until(lambda: acted(registry), "a look at the file")
            assert [endpoint.name for endpoint in table.view()] == ["default/a"]
        return registry

    return act


LAUGHS = (
    b"a: &a {" + b", ".join(b"k%d: 1" % n for n in range(60)) + b"}\n"
    b"endpoints:\n" + b"- {<<: *a, name: b}\n" * 20
)  # fmt: skip
assert len(LAUGHS) <= 1024


@asynccontextmanager
async def hundred_certificates(tmp_path):
    async with listening(lambda reader, writer: hanging_up(reader, writer, b""), server_tls(tmp_path, make_self_signed(), 100)) as port:
        yield port


async def long_handshake_of_a_source(monkeypatch, tmp_path):
    registry = CollectorRegistry()
    source = MetricsDataSource("metrics", MetricsSourceParameters(scheme="https", maxPageBytes=KIB64), context_of(registry))
    async with hundred_certificates(tmp_path) as port, started(source):
        with pytest.raises(Unavailable):
            await source.poll(at(port))
    return registry


async def long_handshake_of_a_service(monkeypatch, tmp_path):
    registry = CollectorRegistry()
    async with hundred_certificates(tmp_path) as port:
        limits = Limits(context_of(registry), page_limits.PAGE_LIMITS)
        service = JsonService(f"https://127.0.0.1:{port}", limits, page_limits.service_size(KIB64))
        service.open()
        with pytest.raises(Unavailable):
            await service.ask("/", {})
        await service.close()
    return registry


async def no_room_for_a_connection(monkeypatch, tmp_path):
    monkeypatch.setattr(connection_room, "descriptors_for_feeds", lambda: 0)
    registry = CollectorRegistry()
    async with started(MetricsDataSource("metrics", MetricsSourceParameters(), context_of(registry))) as source:
        with pytest.raises(Unavailable, match="no connection is left for it"):
            await source.poll(at(1))
    return registry


ACTS = {
    page_limits.MANY_CONNECTIONS: no_room_for_a_connection,
    page_limits.LONG_PAGE: page_that_says(b"HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n"),
    page_limits.LONG_ANSWER: page_that_says(CHUNKED + b"1;" + b"x" * 2 * KIB64),
    page_limits.LONG_HEAD: page_that_says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * (2 * page_limits.MAX_HEAD_BYTES)),
    page_limits.MANY_CHUNKS: page_that_says(CHUNKED + b"1\r\n#\r\n" * 2000),
    page_limits.MANY_HEADERS: page_that_says(answer(b"", *[b"X-%d: 1" % number for number in range(300)])),
    page_limits.MANY_PARTS: document_of_many_parts,
    page_limits.LONG_HANDSHAKE: long_handshake_of_a_source,
    page_limits.SERVICE_LONG_HANDSHAKE: long_handshake_of_a_service,
    page_limits.SERVICE_LONG_PAGE: service_that_says(b"HTTP/1.1 200 OK\r\nContent-Length: 65537\r\n\r\n"),
    page_limits.SERVICE_LONG_ANSWER: service_that_says(CHUNKED + b"1;" + b"x" * 2 * KIB64),
    page_limits.SERVICE_LONG_HEAD: service_that_says(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * page_limits.MAX_HEAD_BYTES, 2**20),
    page_limits.SERVICE_MANY_HEADERS: service_that_says(answer(b"", *[b"X-%d: 1" % number for number in range(300)])),
    page_limits.SERVICE_MANY_CHUNKS: service_that_says(CHUNKED + b"1\r\n#\r\n" * 2000),
    page_limits.SERVICE_MANY_PARTS: service_that_says(answer(MANY_LISTS), 2**20),
    pool_data._TIMEOUT: look_that_takes_long,
    answers._LONG_HEADER: long_load_report,
    otlp._TOO_LARGE: long_export,
    otlp._MANY_POINTS: many_points,
    otlp._MANY_PARTS: many_parts,
    otlp._BUSY: crowd_of_exports,
    otlp._TOO_SLOW: slow_export,
    otlp._CROWDED: crowd_of_connections,
    otlp._IDLE: silent_connection,
    otlp._LONG_HANDSHAKE: long_handshake,
    dns_discovery._MANY_ALIASES: circle_of_aliases,
    dns_discovery._MANY_TARGETS: crowd_of_targets,
    file_discovery.LONG_FILE: file_that_becomes(b"#" * 1025),
    endpoint_file.MANY_FIELDS: file_that_becomes(LAUGHS),
}
