"""Flags of llm-d's whose effect shows on a socket alone: scores in metadata, the subset hint, TLS on both ports, who may read metrics."""

from __future__ import annotations

import asyncio
import json
import ssl
from pathlib import Path

import aiohttp
import pytest
from google.protobuf.struct_pb2 import Struct

from endpick._proto import ext_proc_pb2 as pb
from endpick.transport.tls import make_self_signed
from integration.plugins.serving import DESTINATION, METHOD, Picker, serving

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: active-request-scorer}
- {type: header-label-affinity-scorer, parameters: {headerName: x-colour, labelKey: colour}}
- {type: max-score-picker}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: header-label-affinity-scorer, weight: 4}
  - {pluginRef: max-score-picker}
"""
ENDPOINTS = """\
endpoints:
- {name: a, address: 127.0.0.1, port: "1", labels: {colour: red}}
- {name: b, address: 127.0.0.1, port: "2", labels: {colour: blue}}
"""
A, B = "127.0.0.1:1", "127.0.0.1:2"
SCORES = "x-gateway-destination-endpoint-scores"
FILE = ("--endpoints", "endpoints.yaml", "--allow-experimental-plugins")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text(ENDPOINTS)
    return tmp_path


def pair(folder: Path) -> Path:
    """A folder with a certificate and its key."""
    folder.mkdir()
    for name, content in zip(("tls.crt", "tls.key"), make_self_signed(), strict=True):
        (folder / name).write_bytes(content)
    return folder


async def decided(picker: Picker, subset: str = "", colour: str = "red") -> pb.ProcessingResponse:
    """Where a request goes that the gateway allows these endpoints alone."""
    call = picker.channel.stream_stream(METHOD, pb.ProcessingRequest.SerializeToString, pb.ProcessingResponse.FromString)()
    names = {":path": "/v1/completions", ":method": "POST", "content-type": "application/json", "x-colour": colour}
    headers = pb.HeaderMap(headers=[pb.HeaderValue(key=key, raw_value=value.encode()) for key, value in names.items()])
    request = pb.ProcessingRequest(request_headers=pb.HttpHeaders(headers=headers))
    if subset:
        hint = Struct()
        hint["x-gateway-destination-endpoint-subset"] = [subset]
        request.metadata_context.filter_metadata["envoy.lb.subset_hint"].CopyFrom(hint)
    await call.write(request)
    body = json.dumps({"model": "m", "prompt": "hi"}).encode()
    await call.write(pb.ProcessingRequest(request_body=pb.HttpBody(body=body, end_of_stream=True)))
    answer = await call.read()
    call.cancel()
    return answer


def destination(answer: pb.ProcessingResponse) -> str:
    set_headers = answer.request_headers.response.header_mutation.set_headers
    return {one.header.key: one.header.raw_value.decode() for one in set_headers}[DESTINATION]


async def test_scores_are_sent_if_the_flag_asks_for_them(folder):
    async with serving(folder, *FILE, "--emit-endpoint-scores") as picker:
        red, blue = await decided(picker), await decided(picker, colour="blue")
        told = [answer.dynamic_metadata["envoy.lb"] for answer in (red, blue)]
        assert [dict(one[SCORES]) for one in told] == [{A: 5.0, B: 1.0}, {A: 1.0, B: 5.0}]
        assert [one[DESTINATION] for one in told] == [A, B]
    async with serving(folder, *FILE) as picker:
        assert SCORES not in (await decided(picker)).dynamic_metadata["envoy.lb"]


async def test_the_subset_hint_counts_unless_disabled(folder):
    async with serving(folder, *FILE) as picker:
        assert [destination(await decided(picker)), destination(await decided(picker, subset=B))] == [A, B]
        refusal = await decided(picker, subset="10.0.0.1:9")
        assert refusal.immediate_response.status.code == 503
    async with serving(folder, *FILE, "--disable-endpoint-subset-filter") as picker:
        assert [destination(await decided(picker, subset=one)) for one in (B, "10.0.0.1:9")] == [A, A]


async def page(picker: Picker, context: ssl.SSLContext | None) -> str:
    url = f"{'http' if context is None else 'https'}://127.0.0.1:{picker.metrics_port}/metrics"
    async with aiohttp.ClientSession() as client, client.get(url, ssl=context or True) as response:
        assert response.status == 200
        return await response.text()


async def test_metrics_are_served_over_tls_to_known_clients(folder, tmp_path):
    ours, theirs = pair(tmp_path / "ours"), pair(tmp_path / "theirs")
    trusting = ssl.create_default_context(cafile=str(ours / "tls.crt"))
    async with serving(folder, *FILE, f"--metrics-cert-dir={ours}") as picker:
        assert "llm_d_epp_info" in await page(picker, trusting)
        with pytest.raises(aiohttp.ClientError):
            await page(picker, None)
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await page(picker, ssl.create_default_context())

    async with serving(folder, *FILE, f"--metrics-cert-dir={ours}", f"--metrics-client-ca-file={theirs / 'tls.crt'}") as picker:
        with pytest.raises(aiohttp.ClientError):
            await page(picker, trusting)
        trusting.load_cert_chain(theirs / "tls.crt", theirs / "tls.key")
        assert "llm_d_epp_info" in await page(picker, trusting)


async def spoken(port: int, **limits: object) -> tuple[str, str]:
    """TLS version and cipher suite that server and this client agree on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    context.maximum_version = limits.get("newest", ssl.TLSVersion.TLSv1_3)
    if "ciphers" in limits:
        context.set_ciphers(limits["ciphers"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    session = writer.get_extra_info("ssl_object")
    version, suite = session.version(), session.cipher()[0]
    writer.transport.abort()
    return version, suite


async def test_tls_version_and_suites_follow_the_flags(folder):
    old = {"newest": ssl.TLSVersion.TLSv1_2}
    strong, other = "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-GCM-SHA256"
    secure = (*FILE, "--secure-serving=true")
    async with serving(folder, *secure, "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384") as picker:
        assert await spoken(picker.port, **old) == ("TLSv1.2", strong)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await spoken(picker.port, **old, ciphers=other)
        assert (await spoken(picker.port))[0] == "TLSv1.3"
    async with serving(folder, *secure, "--tls-min-version=VersionTLS13") as picker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await spoken(picker.port, **old)
        assert (await spoken(picker.port))[0] == "TLSv1.3"
    async with serving(folder, *secure) as picker:
        assert (await spoken(picker.port, **old, ciphers=other)) == ("TLSv1.2", other)


async def test_flags_without_effect_are_logged(folder):
    async with serving(folder, *FILE, "--metrics-endpoint-auth=true", "--tracing=true") as picker:
        (told,) = await picker.logged("some flags have no effect here")
        assert "--metrics-endpoint-auth: off by default; only kubernetes-discovery asks for a token" in str(told["flags"])
        assert "llm_d_epp_info" in await page(picker, None)
    async with serving(folder, *FILE, "--metrics-endpoint-auth=false") as picker:
        assert "llm_d_epp_info" in await page(picker, None)
        assert not [event for event in picker.events if "no effect" in str(event["event"])]
