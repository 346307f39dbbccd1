"""Certificates are renewed while the server runs; unusable ones are reported and not used."""

from __future__ import annotations

import ssl
from dataclasses import replace

import pytest

from endpick.transport.limits import TransportCounters
from endpick.transport.tls import CertificateWatch, TlsError, TlsSettings, cipher_list, make_self_signed, read_certificate, server_context


@pytest.fixture
def settings(tmp_path) -> TlsSettings:
    renew(settings := TlsSettings(tmp_path / "tls.crt", tmp_path / "tls.key"))
    return settings


def renew(settings: TlsSettings, valid_days: int = 3650) -> None:
    for path, content in zip((settings.certificate_file, settings.key_file), make_self_signed(valid_days), strict=True):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(path)


def test_renewed_certificate_is_loaded_in_place(settings):
    watch, counters = CertificateWatch(settings), TransportCounters()
    before = watch.context
    assert not watch.refresh(counters)
    renew(settings)
    assert watch.refresh(counters)
    assert watch.context is before
    assert watch.files.certificate == settings.certificate_file.read_bytes()
    assert (counters.certificate_reloads, counters.certificate_reload_failures) == (1, 0)


@pytest.mark.parametrize("reason", ["cannot be read", "not usable", "expired on"])
def test_unusable_certificate_is_reported_once_and_retried(settings, caplog, reason):
    watch, counters = CertificateWatch(settings), TransportCounters()
    before = watch.files
    match reason:
        case "cannot be read":
            settings.key_file.unlink()
        case "not usable":
            settings.key_file.write_bytes(b"no key")
        case "expired on":
            renew(settings, valid_days=-1)
    for _ in range(2):
        assert not watch.refresh(counters)
    assert (watch.files, counters.certificate_reload_failures) == (before, 1)
    assert (caplog.text.count("the old one stays in use"), reason in caplog.text) == (1, True)
    renew(settings)
    assert watch.refresh(counters)


def test_replaced_client_ca_gets_a_new_context(settings, tmp_path):
    authority = tmp_path / "ca.crt"
    authority.write_bytes(make_self_signed()[0])
    watch = CertificateWatch(replace(settings, client_ca_file=authority))
    before = watch.context
    authority.write_bytes(make_self_signed()[0])
    assert watch.refresh(TransportCounters())
    assert watch.context is not before
    assert watch.context.cert_store_stats()["x509_ca"] == 1


def test_reload_can_be_switched_off(settings):
    watch = CertificateWatch(replace(settings, reload=False))
    renew(settings)
    assert not watch.refresh(TransportCounters())


def test_missing_file_is_named(settings, tmp_path):
    with pytest.raises(TlsError, match=r"absent\.crt cannot be read: No such file"):
        read_certificate(replace(settings, certificate_file=tmp_path / "absent.crt"))


def test_minimum_version_and_ciphers_apply(settings):
    files = read_certificate(settings)
    assert server_context(files, settings).minimum_version is ssl.TLSVersion.TLSv1_2
    chosen = replace(settings, modern_only=True, ciphers=cipher_list(["TLS_RSA_WITH_AES_128_GCM_SHA256,TLS_AES_128_GCM_SHA256"]))
    context = server_context(files, chosen)
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert [cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] != "TLSv1.3"] == ["AES128-GCM-SHA256"]


def test_unknown_cipher_is_refused():
    with pytest.raises(TlsError, match="'TLS_NULL' is not a cipher suite"):
        cipher_list(["TLS_NULL"])
