"""`otlp-source` over gRPC, and over TLS: real calls, and what they must not do."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess

import aiohttp
import grpc
import grpc.aio
import pytest

from endpick.api import ConfigurationError, PluginContext
from endpick.transport.h2 import frames
from endpick.transport.h2.hpack import encode
from endpick_builtin.collection.otlp import OtlpParameters, OtlpSource
from endpick_builtin.collection.otlp_messages import _messages
from endpick_builtin.collection.otlp_ports import GRPC_METHOD
from integration.transport.raw_client import HEADERS, RawClient
from unit.builtin.test_otlp import JSON, Running, export, gauge, resource, running

pytestmark = pytest.mark.asyncio
OWN = (("grpc.use_local_subchannel_pool", 1),)


def packed(who: str, name: str = "vllm.num_requests_waiting", value: float = 3.0, points: int = 1) -> bytes:
    """An export as an SDK sends it."""
    message = _messages()["Export"]()
    one = message.resource_metrics.add()
    attribute = one.resource.attributes.add(key="service.instance.id")
    attribute.value.string_value = who
    metric = one.scope_metrics.add().metrics.add(name=name)
    for _ in range(points):
        metric.gauge.data_points.add(as_double=value, time_unix_nano=1700000000123456789)
    return message.SerializeToString()


async def call(it: Running, body: bytes, method: str = GRPC_METHOD, credentials=None, **options) -> bytes:
    address = f"127.0.0.1:{it.source.grpc_port}"
    channel = grpc.aio.secure_channel(address, credentials) if credentials else grpc.aio.insecure_channel(address, options=OWN)
    async with channel:
        return await channel.unary_unary(method)(body, timeout=20, **options)


async def refusal(it: Running, body: bytes, **options) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(it, body, **options)
    return raised.value.code(), raised.value.details()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_an_export_becomes_a_page_of_the_endpoint_it_names(compression):
    async with running() as it:
        assert await call(it, packed("a"), compression=compression) == b""
    assert it.pages == [("default/a", b"vllm_num_requests_waiting{} 3.0 1700000000123\n")]
    assert (it.count("exports", "read"), it.count("points", "delivered")) == (1, 1)


async def test_the_sender_is_told_what_was_left_out():
    async with running() as it:
        answer = _messages()["Answer"].FromString(await call(it, packed("gone", points=2)))
    assert answer.partial_success.rejected_data_points == 2
    assert "'gone'" in answer.partial_success.error_message


async def test_what_makes_no_sense_is_refused_and_the_next_export_is_read():
    large = packed("a", points=400)
    async with running(maxBodyBytes=4096) as it:
        assert (await refusal(it, b"\xff\xff"))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert (await refusal(it, large))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert (await refusal(it, b"\0" * 3_000_000, compression=grpc.Compression.Gzip))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
        traces = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
        assert (await refusal(it, b"", method=traces))[0] is grpc.StatusCode.UNIMPLEMENTED
        await call(it, packed("a"))
    assert [name for name, _ in it.pages] == ["default/a"]
    assert (it.count("exports", "malformed"), it.count("exports", "too_large")) == (1, 2)


async def test_a_method_that_is_no_text_is_unknown_and_the_next_export_is_read():
    headers = [(name, b"/a\xff\xfe/b" if name == b":path" else value) for name, value in HEADERS]
    async with running() as it:
        client = await RawClient.connect(it.source.grpc_port)
        client.send(frames.headers(1, encode(headers), end_stream=True))
        await client.read_until(frames.FrameType.HEADERS, 1)
        await call(it, packed("a"))
        await client.close()
    assert it.count("exports", "read") == 1


async def test_calls_that_send_nothing_are_waited_for_only_so_long_and_only_eight_at_once():
    async with running(bodyTimeout="500ms") as it, grpc.aio.insecure_channel(f"127.0.0.1:{it.source.grpc_port}") as channel:
        silent = [channel.stream_unary(GRPC_METHOD)() for _ in range(8)]
        async with asyncio.timeout(20):
            while it.source._reading < 8:  # noqa: ASYNC110 - until all eight are being read
                await asyncio.sleep(0)
            assert (await it.post(b"{}"))[0] == 503, "both ports share what is read at once"
            assert (await refusal(it, packed("a")))[0] is grpc.StatusCode.UNAVAILABLE
            codes = [await one.code() for one in silent]
        assert codes == [grpc.StatusCode.DEADLINE_EXCEEDED] * 8
        await call(it, packed("a"))
    assert (it.count("exports", "too_slow"), it.count("exports", "busy")) == (8, 2)


async def test_without_a_port_grpc_is_not_spoken():
    async with running(grpcPort=None) as it:
        assert it.source.grpc_port is None
        assert (await it.post(export(resource("a", gauge("x", 1.0)))))[0] == 200


async def test_a_port_of_grpc_that_is_taken_ends_the_start_and_frees_the_other():
    async with await asyncio.start_server(lambda *_: None, "127.0.0.1", 0) as taken:
        port = taken.sockets[0].getsockname()[1]
        source = OtlpSource("otlp", OtlpParameters(port=0, grpcPort=port), PluginContext())
        with pytest.raises(ConfigurationError, match=f"cannot listen on 127.0.0.1:{port}"):
            await source.start()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", source.port)


@pytest.fixture
def certificate(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("making a certificate needs the command openssl")
    return lambda name: make_certificate(tmp_path, name)


def make_certificate(folder, name):
    """A self-signed certificate for 127.0.0.1; its file and that of its key."""
    key, cert = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, *names, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)
    return cert, key


async def over_https(it: Running, authority, pair=None) -> int:
    context = ssl.create_default_context(cafile=authority)
    if pair:
        context.load_cert_chain(*pair)
    url, body = f"https://127.0.0.1:{it.source.port}/v1/metrics", export(resource("a", gauge("x", 1.0)))
    connector = aiohttp.TCPConnector(ssl=context, force_close=True)
    async with aiohttp.ClientSession(connector=connector) as session, session.post(url, data=body, headers=JSON) as response:
        return response.status


def trusting(authority, pair=None) -> grpc.ChannelCredentials:
    chain, key = (pair[0].read_bytes(), pair[1].read_bytes()) if pair else (None, None)
    return grpc.ssl_channel_credentials(authority.read_bytes(), key, chain)


async def test_both_ports_show_their_certificate_and_a_new_one_once_it_is_there(certificate):
    cert, key = certificate("server")
    async with running(certPath=str(cert), keyPath=str(key)) as it:
        assert await over_https(it, cert) == 200
        await call(it, packed("a"), credentials=trusting(cert))
        new_cert, new_key = certificate("renewed")
        key.write_bytes(new_key.read_bytes())
        cert.write_bytes(new_cert.read_bytes())
        async with asyncio.timeout(20):
            while True:
                try:
                    assert await over_https(it, new_cert) == 200
                except aiohttp.ClientConnectorCertificateError:
                    continue  # the handshake that finds the new files still shows the old ones
                break
        await call(it, packed("a"), credentials=trusting(new_cert))
    assert len(it.pages) == 4


async def test_clients_without_a_certificate_are_refused_where_one_is_asked_for(certificate):
    (cert, key), client, stranger = certificate("server"), certificate("client"), certificate("stranger")
    async with running(certPath=str(cert), keyPath=str(key), clientCaPath=str(client[0])) as it:
        assert await over_https(it, cert, client) == 200
        await call(it, packed("a"), credentials=trusting(cert, client))
        for pair in (None, stranger):
            with pytest.raises(aiohttp.ClientError):
                await over_https(it, cert, pair)
            assert (await refusal(it, packed("a"), credentials=trusting(cert, pair)))[0] is grpc.StatusCode.UNAVAILABLE
    assert len(it.pages) == 2


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"certPath": "a.pem"}, "certPath and keyPath belong together"),
        ({"keyPath": "a.key"}, "certPath and keyPath belong together"),
        ({"clientCaPath": "a.pem"}, "clientCaPath needs certPath"),
    ],
)
async def test_half_a_certificate_is_refused(parameters, message):
    with pytest.raises(ValueError, match=message):
        OtlpParameters(**parameters)


async def test_a_certificate_that_cannot_be_read_ends_the_start(tmp_path):
    parameters = OtlpParameters(port=0, grpcPort=0, certPath=str(tmp_path / "no.pem"), keyPath=str(tmp_path / "no.key"))
    with pytest.raises(ConfigurationError, match="No such file"):
        await OtlpSource("otlp", parameters, PluginContext()).start()
