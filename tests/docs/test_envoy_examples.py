"""Runs each configuration under examples/envoy with a real Envoy, endpick and a simulated server."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import re
import sys
from pathlib import Path

import aiohttp
import orjson
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from docs.pages import ROOT
from endpick_gateway.envoy import EnvoyNotFoundError, find_envoy
from endpick_lab.demo.processes import Child, Children

EXAMPLES = ROOT / "examples" / "envoy"
CONFIG = ROOT / "examples" / "configs" / "in-flight-load.yaml"
HOST_NAME = "endpick.example"
READY_SECONDS = 30.0
ANSWERS = 3

pytestmark = [pytest.mark.long, pytest.mark.timeout(90)]


@pytest.fixture(scope="module")
def envoy() -> Path:
    try:
        return find_envoy(os.environ, ROOT)
    except EnvoyNotFoundError as error:
        pytest.skip(str(error))


def test_every_example_is_tested():
    assert {path.name for path in EXAMPLES.glob("*")} == {"plaintext.yaml", "no-response-bodies.yaml", "tls.yaml"}


@pytest.mark.asyncio
@pytest.mark.parametrize(("example", "counts_tokens"), [("plaintext.yaml", True), ("no-response-bodies.yaml", False), ("tls.yaml", True)])
async def test_requests_are_served_and_counted(envoy: Path, tmp_path: Path, example: str, counts_tokens: bool):
    async with Children(tmp_path) as children, aiohttp.ClientSession() as client:
        model_server = await start(children, "model-server", "sim-server", "--port", "0", "--decode-ms", "5", ready=r" on (http://\S+)\n")
        host, _, port = model_server.removeprefix("http://").rpartition(":")
        (tmp_path / "endpoints.yaml").write_text(f'endpoints:\n  - {{name: one, address: {host}, port: "{port}"}}\n')
        serving = r'(\{[^\n]*"event":"serving".*)\n'
        picker = orjson.loads(await start(children, "endpick", *serve_arguments(example, tmp_path), ready=serving))
        gateway = await start_envoy(children, envoy, tmp_path, example, picker["ext_proc_port"])
        for number in range(ANSWERS):
            async with client.post(f"{gateway}/v1/chat/completions", json=chat(stream=number > 0)) as response:
                assert response.status == 200
                assert response.headers["x-served-by"] == "sim"
                assert "usage" in await response.text()
        figures = await stable_figures(client, f"http://127.0.0.1:{picker['metrics_port']}/metrics")
    assert figures["llm_d_epp_request_total"] == ANSWERS
    assert figures["llm_d_epp_request_duration_seconds_count"] == ANSWERS
    assert figures.get("llm_d_epp_request_output_tokens_count", 0) == (ANSWERS if counts_tokens else 0)


def chat(*, stream: bool) -> dict[str, object]:
    return {
        "model": "sim-model",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "stream": stream,
        "stream_options": {"include_usage": True},
    }


def serve_arguments(example: str, folder: Path) -> list[str]:
    """The command in the first lines of the example, on free ports."""
    first_lines = "".join((EXAMPLES / example).read_text().splitlines(keepends=True)[:3])
    arguments = ["serve", str(CONFIG), "--host", "127.0.0.1", "--log-format", "json"]
    arguments += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0", "--envoy-endpoints", str(folder / "endpoints.json")]
    if "--cert-path" in first_lines:
        write_certificates(folder)
        return [*arguments, "--cert-path", str(folder)]
    return [*arguments, "--secure-serving=false"]


async def start(children: Children, name: str, *arguments: str, ready: str) -> str:
    """Start an `endpick` command; returns the first match of `ready` in its output."""
    child = await children.start(name, (sys.executable, "-m", "endpick", *arguments))

    async def look() -> str | None:
        found = re.search(ready, child.output())
        return found[1] if found else None

    return await child.wait_until_ready(look, READY_SECONDS)


async def start_envoy(children: Children, binary: Path, folder: Path, example: str, picker_port: int) -> str:
    """Start Envoy with the example, on free ports; returns the URL of its listener."""
    text = (EXAMPLES / example).read_text()
    for written, free in (("port_value: 9002", f"port_value: {picker_port}"), ("port_value: 8081", "port_value: 0")):
        assert written in text
        text = text.replace(written, free)
    text = text.replace("port_value: 19000", "port_value: 0").replace("/etc/envoy", str(folder)).replace("0.0.0.0", "127.0.0.1")
    text = text.replace("/run/endpick", str(folder))
    config, admin = folder / example, folder / "admin"
    config.write_text(text)
    options = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
    child = await children.start("envoy", (binary, "--config-path", config, "--admin-address-path", admin, *options))
    return await listener(child, admin)


async def listener(child: Child, admin: Path) -> str:
    async with aiohttp.ClientSession() as client:

        async def look() -> str | None:
            try:
                address = admin.read_text()  # noqa: ASYNC240 - a few bytes, in a test
                async with client.get(f"http://{address}/listeners?format=json") as page:
                    statuses = (await page.json(content_type=None)).get("listener_statuses", ())
                async with client.get(f"http://{address}/ready") as ready:
                    ports = [status["local_address"]["socket_address"]["port_value"] for status in statuses]
                    return f"http://127.0.0.1:{ports[0]}" if ports and ready.status == 200 else None
            except (OSError, aiohttp.ClientError):
                return None

        return await child.wait_until_ready(look, READY_SECONDS)


async def stable_figures(client: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The request metrics, once nothing is in flight."""
    while True:
        async with client.get(url) as page:
            lines = [line.rpartition(" ") for line in (await page.text()).splitlines() if line and not line.startswith("#")]
        figures = {name.partition("{")[0]: float(value) for name, _, value in lines if name.startswith("llm_d_epp_request")}
        if figures.get("llm_d_epp_request_running") == 0 and figures.get("llm_d_epp_request_duration_seconds_count") == ANSWERS:
            return figures
        await asyncio.sleep(0.05)


def write_certificates(folder: Path) -> None:
    """Write `tls.crt` and `tls.key`, signed by the authority in `endpick-ca.crt`."""
    authority, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST_NAME)])
    root = certificate(issuer, issuer, authority).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    leaf = certificate(issuer, subject, key).add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST_NAME)]), critical=False)
    pem = serialization.Encoding.PEM
    (folder / "endpick-ca.crt").write_bytes(root.sign(authority, hashes.SHA256()).public_bytes(pem))
    (folder / "tls.crt").write_bytes(leaf.sign(authority, hashes.SHA256()).public_bytes(pem))
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "tls.key").write_bytes(private)


def certificate(issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(hours=1))
    )
