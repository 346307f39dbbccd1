"""The sources that fetch a page over HTTP, against real servers that are well, slow, huge, wrong or gone."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess

import pytest
from aiohttp import web
from pydantic import ValidationError

from endpick.api import ConfigurationError, Endpoint, PluginContext, Unavailable
from endpick.api.keys import ServedModel
from endpick_builtin.collection.http_pages import MAX_PAGE_BYTES
from endpick_builtin.collection.sources import MetricsSourceParameters, ModelsDataSource, ModelsSourceParameters
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


async def test_a_page_of_exactly_the_limit_is_read():
    async def handler(request):
        return web.Response(body=b"#" * MAX_PAGE_BYTES)

    async with serving(handler) as port, started(metrics_source()) as source:
        assert len((await source.poll(at(port))).body) == MAX_PAGE_BYTES


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


async def test_polling_before_start_is_refused():
    with pytest.raises(RuntimeError, match="'metrics' was polled before it was started"):
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
        with pytest.raises(ConfigurationError, match=r"cannot use its certificate files .*broken\.pem"):
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
