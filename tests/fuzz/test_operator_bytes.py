"""Bytes that operators and those who write their files can give: configurations, endpoint files, certificates, lock files, RECORDs."""

from __future__ import annotations

from contextlib import suppress

from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import Endpoint
from endpick.config import load_config
from endpick.diagnostics import render_text
from endpick.transport.tls import CertificateFiles, TlsError, TlsSettings, make_self_signed, server_context
from endpick_builtin.endpoint_file import read_endpoint_file
from fuzz.bounds import bounded, mixed

YAML = (
    *(
        mark.encode()
        for mark in ("\n", "  ", "- ", ": ", "{", "}", "[", "]", ",", "&a ", "*a", "<<: *a", "|\n", ">\n", "'", '"', "# x", "? ")
    ),
    *(b"!!python/object ", b"!x ", b"---\n", b"...\n", b"\t", b"\xff", b"\xef\xbb\xbf", b"\x00", b"\xe2\x80\xa8"),
    *(b"0x1f", b"1e3", b"yes", b"null", b"2024-01-01"),
)
CONFIG = mixed(
    b"apiVersion: endpick/v1alpha1\n", b"kind: EndpointPickerConfig\n", b"plugins:\n", b"- type: queue-scorer\n", b"  parameters: {}\n",
    b"schedulingProfiles:\n", b"dataLayer:\n", b"objectives:\n", b"pluginPolicy: {allowDistributions: [a]}\n", b"weight: ", *YAML,
)  # fmt: skip
ENDPOINTS = mixed(
    b"endpoints:\n", b"- {name: a, address: 10.0.0.1, port: '80'}\n", b"labels: {a: b}", b"name: a\n", b"port: ", b"address: ", *YAML
)


@given(CONFIG)
def test_a_configuration_is_read_or_told_what_is_wrong(raw):
    loaded = bounded(lambda text: load_config(text=text), raw, calls=60_000, calls_per_byte=3_000, peak=8 * 2**20)

    assert loaded.config is not None or loaded.has_errors
    assert render_text(loaded.diagnostics, {loaded.path: loaded.source.text}) or not loaded.diagnostics


@given(ENDPOINTS)
def test_an_endpoint_file_is_read_or_told_what_is_wrong(raw):
    read = bounded(read_endpoint_file, raw, calls=60_000, calls_per_byte=3_000, peak=8 * 2**20)

    assert read.endpoints is not None or read.mistakes
    assert all(isinstance(endpoint, Endpoint) for endpoint in read.endpoints or ())


CERTIFICATE, KEY = make_self_signed()
ENCRYPTED_KEY = load_pem_private_key(KEY, None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
PEM = mixed(CERTIFICATE, KEY, ENCRYPTED_KEY, b"-----BEGIN CERTIFICATE-----\n", b"-----END CERTIFICATE-----\n", b"\xff", b"AAAA\n", b"\x00")


@given(
    st.one_of(st.just(CERTIFICATE), PEM),
    st.one_of(st.sampled_from([KEY, ENCRYPTED_KEY]), PEM),
    st.one_of(st.none(), st.just(CERTIFICATE), PEM),
)
def test_tls_material_is_taken_or_refused(certificate, key, client_ca):
    with suppress(TlsError):
        server_context(CertificateFiles(certificate, key, client_ca), TlsSettings())
