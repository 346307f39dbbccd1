"""The sources that fetch a page over HTTP, against real servers that are well, slow, huge, wrong or gone."""

from __future__ import annotations

import asyncio
import gzip
import re
import shutil
import ssl
import subprocess
import tracemalloc

import pytest
from aiohttp import web
from pydantic import ValidationError

from endpick.api import ConfigurationError, Endpoint, PluginContext, ServedModel, Unavailable
from endpick_builtin.collection.page_limits import MAX_PAGE_BYTES
from endpick_builtin.collection.sources import MetricsSourceParameters, ModelsDataSource, ModelsSourceParameters, model_list_of
from unit.builtin.pages import PAGE, at, metrics_source, serving, started

pytestmark = pytest.mark.asyncio


async def test_a_page_is_fetched_as_it_is():
    seen: list[web.BaseRequest] = []

    async def handler(request):
        seen.append(request)
        return web.Response(body=PAGE)

    async with serving(handler) as port, started(metrics_source()) as source:
        page = await source.poll(at(port))
        assert page.body == PAGE
        assert page.newest("vllm:num_requests_waiting").value == 3.0
    assert [(request.method, request.path) for request in seen] == [("GET", "/metrics")]
    assert seen[0].headers["Accept"].startswith("text/plain")
    assert seen[0].headers["Accept-Encoding"] == "identity"


async def test_connections_are_kept_open_between_polls():
    peers: set[object] = set()

    async def handler(request):
        peers.add(request.transport.get_extra_info("peername"))
        return web.Response(body=PAGE)

    async with serving(handler) as port, started(metrics_source()) as source:
        for _ in range(5):
            await source.poll(at(port))
    assert len(peers) == 1


async def test_path_port_and_metrics_address_say_where_to_ask():
    paths: list[str] = []

    async def handler(request):
        paths.append(request.path_qs)
        return web.Response(body=PAGE)

    async with serving(handler) as port:
        async with started(metrics_source(path="/stats?full=1")) as source:
            await source.poll(Endpoint("default/a", "192.0.2.1", 1, metrics_address=f"127.0.0.1:{port}"))
        async with started(metrics_source(port=port)) as source:
            await source.poll(Endpoint("default/a", "127.0.0.1", 1))
    assert paths == ["/stats?full=1", "/metrics"]


async def test_an_endpoint_that_moved_is_asked_at_its_new_address():
    asked: list[str] = []

    def named(name):
        async def handler(request):
            asked.append(name)
            return web.Response(body=PAGE)

        return handler

    async with serving(named("old")) as old, serving(named("new")) as new, started(metrics_source()) as source:
        await source.poll(at(old))
        await source.poll(at(new))
        await source.poll(at(new))
    assert asked == ["old", "new", "new"]


@pytest.mark.parametrize(("parameters", "url"), [({}, "http://[::1]:1/metrics"), ({"port": 2}, "http://[::1]:2/metrics")])
async def test_ipv6_endpoints_are_asked_in_brackets(parameters, url):
    async with started(metrics_source(**parameters)) as source:
        with pytest.raises(Unavailable, match=re.escape(f"GET {url}: ")):
            await source.poll(Endpoint("default/a", "::1", 1))


@pytest.mark.parametrize("status", [204, 404, 500, 503])
async def test_any_status_but_200_is_no_page(status):
    async def handler(request):
        return web.Response(status=status)

    async with serving(handler) as port, started(metrics_source()) as source:
        with pytest.raises(Unavailable, match=rf"GET http://127\.0\.0\.1:{port}/metrics answered {status}"):
            await source.poll(at(port))


async def test_a_refused_connection_is_said_so():
    async with serving(lambda request: web.Response()) as port:
        pass
    async with started(metrics_source()) as source:
        with pytest.raises(Unavailable, match=rf"GET http://127\.0\.0\.1:{port}/metrics: connection refused$"):
            await source.poll(at(port))


async def test_an_answer_that_is_no_http_is_said_so():
    async def babble(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server, started(metrics_source()) as source:
        with pytest.raises(Unavailable, match="GET http://127"):
            await source.poll(at(server.sockets[0].getsockname()[1]))


async def test_a_connection_that_breaks_off_is_said_so():
    async def truncate(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nvllm:num")
        writer.close()

    server = await asyncio.start_server(truncate, "127.0.0.1", 0)
    async with server, started(metrics_source()) as source:
        with pytest.raises(Unavailable, match="GET http://127"):
            await source.poll(at(server.sockets[0].getsockname()[1]))


async def test_a_page_that_says_it_is_too_long_is_not_read():
    async def handler(request):
        response = web.StreamResponse(headers={"Content-Length": str(60 * 2**20)})
        await response.prepare(request)
        return response

    async with serving(handler) as port, started(metrics_source()) as source:
        with pytest.raises(Unavailable, match="longer than 8 MiB"):
            await source.poll(at(port))


async def test_an_endless_page_is_given_up():
    sent = 0

    async def handler(request):
        nonlocal sent
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        while sent < 60 * 2**20:
            await response.write(b"noise 1\n" * 8192)
            sent += 8 * 8192
        return response

    async with serving(handler) as port, started(metrics_source()) as source:
        with pytest.raises(Unavailable, match="longer than 8 MiB"):
            await source.poll(at(port))
    assert MAX_PAGE_BYTES < sent < 3 * MAX_PAGE_BYTES


async def test_a_small_answer_that_unpacks_to_a_huge_page_is_given_up():
    async def handler(request):
        return web.Response(body=gzip.compress(bytes(60 * 2**20)), headers={"Content-Encoding": "gzip"})

    async with serving(handler) as port, started(metrics_source()) as source:
        with pytest.raises(Unavailable, match="longer than 8 MiB"):
            await source.poll(at(port))


async def test_a_page_of_exactly_the_limit_is_read():
    async def handler(request):
        return web.Response(body=b"#" * MAX_PAGE_BYTES)

    async with serving(handler) as port, started(metrics_source()) as source:
        assert len((await source.poll(at(port))).body) == MAX_PAGE_BYTES


MIB = 2**20


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("size", "parameters", "is_taken"),
    [
        (70_000, {}, True),
        (70_000, {"maxPageBytes": 69_999}, False),
        (9 * MIB, {}, False),
        (9 * MIB, {"maxPageBytes": 9 * MIB}, True),
    ],
)
async def test_a_page_has_as_many_bytes_as_max_page_bytes_allows(size, parameters, is_taken, packed, caplog):
    async def handler(request):
        page = b"#" * size
        return web.Response(body=gzip.compress(page), headers={"Content-Encoding": "gzip"}) if packed else web.Response(body=page)

    async with serving(handler) as port, started(metrics_source(**parameters)) as source:
        if is_taken:
            assert len((await source.poll(at(port))).body) == size
        else:
            with pytest.raises(Unavailable, match="the page is longer than"):
                await source.poll(at(port))
    assert ("raise maxPageBytes" in caplog.text) is not is_taken


@pytest.mark.parametrize(("parameters", "seconds"), [({}, 1.0), ({"maxPageBytes": MIB}, 1.0), ({"maxPageBytes": 32 * MIB}, 4.0)])
async def test_pages_that_may_be_longer_have_as_much_longer_to_come(parameters, seconds):
    assert metrics_source(**parameters).timeout_seconds == seconds


@pytest.mark.parametrize(("megabytes", "is_taken"), [(8, False), (16, True)])
async def test_an_answer_has_as_many_chunks_and_bytes_around_them_as_follow_from_max_page_bytes(megabytes, is_taken):
    async def handler(request):
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        for _ in range(25_000):
            await response.write(b"#" * 100)
        return response

    async with serving(handler) as port, started(metrics_source(maxPageBytes=megabytes * MIB)) as source:
        if is_taken:
            assert len((await source.poll(at(port))).body) == 2_500_000
        else:
            with pytest.raises(Unavailable, match="the answer comes in more than 20971 chunks"):
                await source.poll(at(port))


async def test_a_cancelled_poll_leaves_the_source_usable():
    hang = True

    async def handler(request):
        if hang:
            await asyncio.sleep(30)
        return web.Response(body=PAGE)

    async with serving(handler) as port, started(metrics_source()) as source:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await source.poll(at(port))
        hang = False
        assert (await source.poll(at(port))).body == PAGE


async def test_polling_before_start_is_a_mistake_of_the_host():
    with pytest.raises(RuntimeError, match="'metrics' was asked before it was started"):
        await metrics_source().poll(at(1))


async def test_stopping_without_starting_is_nothing():
    await metrics_source().stop()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A self-signed certificate for 127.0.0.1 and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("making a certificate needs the command openssl")
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    paths = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run([*command, *names, *paths], check=True, capture_output=True)
    return folder


async def page_handler(request):
    return web.Response(body=PAGE)


def server_tls(folder, client_ca=None) -> ssl.SSLContext:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=client_ca)
    tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    if client_ca:
        tls.verify_mode = ssl.CERT_REQUIRED
    return tls


async def test_https_accepts_any_certificate_by_default(certificate):
    async with serving(page_handler, server_tls(certificate)) as port, started(metrics_source(scheme="https")) as source:
        assert (await source.poll(at(port))).body == PAGE


async def test_https_verifies_when_told_to(certificate):
    strict = {"scheme": "https", "insecureSkipVerify": False}
    async with serving(page_handler, server_tls(certificate)) as port:
        async with started(metrics_source(**strict)) as source:
            with pytest.raises(Unavailable, match="certificate"):
                await source.poll(at(port))
        async with started(metrics_source(**strict, caCertPath=str(certificate / "cert.pem"))) as source:
            assert (await source.poll(at(port))).body == PAGE


async def test_https_shows_its_own_certificate(certificate):
    tls = server_tls(certificate, client_ca=certificate / "cert.pem")
    pair = {"clientCertPath": str(certificate / "cert.pem"), "clientKeyPath": str(certificate / "key.pem")}
    async with serving(page_handler, tls) as port:
        async with started(metrics_source(scheme="https", **pair)) as source:
            assert (await source.poll(at(port))).body == PAGE
        async with started(metrics_source(scheme="https")) as source:
            with pytest.raises(Unavailable):
                await source.poll(at(port))


async def test_an_authority_without_verification_is_warned_about(certificate, caplog):
    async with started(metrics_source("tests.tls", scheme="https", caCertPath=str(certificate / "cert.pem"))):
        pass
    assert [record.message for record in caplog.records] == ["caCertPath has no effect while insecureSkipVerify is true, its default"]


@pytest.mark.parametrize("field", ["caCertPath", "clientCertPath"])
async def test_a_certificate_file_that_does_not_work_ends_start_up(tmp_path, field):
    broken = tmp_path / "broken.pem"
    for content in (None, "no certificate"):
        if content:
            broken.write_text(content)
        pair = {"clientKeyPath": str(broken)} if field == "clientCertPath" else {}
        source = metrics_source(scheme="https", **{field: str(broken)}, **pair)
        with pytest.raises(ConfigurationError, match=r"source 'metrics' cannot use its certificate files .*broken\.pem"):
            await source.start()
        await source.stop()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"scheme": "ftp"}, "scheme"),
        ({"path": "metrics"}, "path"),
        ({"port": 65536}, "port"),
        ({"interval": "fast"}, "is not a duration"),
        ({"interval": "-1s"}, "greater than or equal to 0"),
        ({"clientCertPath": "a.pem"}, "give both or neither"),
        ({"treshold": 1}, "treshold"),
    ],
)
async def test_parameters_that_cannot_work_are_refused(parameters, message):
    with pytest.raises(ValidationError, match=message):
        MetricsSourceParameters.model_validate(parameters)


@pytest.mark.parametrize(("text", "seconds"), [("200ms", 0.2), ("0s", None)])
async def test_the_interval_is_the_parameter_or_left_to_the_host(text, seconds):
    assert metrics_source(interval=text).interval_seconds == seconds
    assert metrics_source().interval_seconds is None


def models_source(**parameters: object) -> ModelsDataSource:
    return ModelsDataSource("models", ModelsSourceParameters(**parameters), PluginContext())


async def test_the_list_of_models_is_read():
    async def handler(request):
        assert request.path == "/v1/models"
        entries = [{"id": "base", "object": "model", "parent": None}, {"id": "adapter", "parent": "base"}, {"id": "bare"}]
        return web.json_response({"object": "list", "data": entries})

    async with serving(handler) as port, started(models_source()) as source:
        models = await source.poll(at(port))
    assert tuple(models) == (ServedModel("base"), ServedModel("adapter", "base"), ServedModel("bare"))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"data": {}}', b'{"data": [{"name": "x"}]}', b'{"data": [{"id": 7}]}', b"\xff"])
async def test_a_list_of_models_that_makes_no_sense_is_said_so(body):
    async def handler(request):
        return web.Response(body=body)

    async with serving(handler) as port, started(models_source()) as source:
        with pytest.raises(Unavailable, match="the list of models cannot be read"):
            await source.poll(at(port))


async def test_of_a_list_of_models_with_a_hundred_thousand_mistakes_the_first_is_looked_for():
    tracemalloc.start()
    try:
        with pytest.raises(Unavailable, match=r"data\.0"):
            model_list_of(b'{"data":[' + b"1," * 100_000 + b"1]}")
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("body", "parameters", "says"),
    [
        (b'{"data":[' + b'{"id":"m"},' * 5000 + b'{"id":"m"}]}', {}, None),
        (b'{"data":[' + b'{"id":"m"},' * 60_000 + b'{"id":"m"}]}', {}, "more than 209715 parts"),
        (b'{"data":[' + b'{"id":"m"},' * 60_000 + b'{"id":"m"}]}', {"maxPageBytes": 16 * MIB}, None),
        (b'{"data":[' + b'{"id":"m"},' * 20_000 + b'{"id":"m"}]}', {"maxPageBytes": MIB}, "more than 26214 parts"),
        (b"[" * 100_000 + b"0," * 40_000, {}, "more than 209715 parts"),
    ],
    ids=["some", "models", "more allowed", "fewer allowed", "brackets"],
)
async def test_a_list_of_models_without_measure_is_refused_before_it_is_parsed(body, parameters, says):
    async def handler(request):
        return web.Response(body=body)

    async with serving(handler) as port, started(models_source(**parameters)) as source:
        if says is None:
            assert len(await source.poll(at(port))) == body.count(b"id")
        else:
            with pytest.raises(Unavailable, match=says):
                await source.poll(at(port))
