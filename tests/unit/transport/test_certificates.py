"""Certificates are renewed while it serves, also where the disk, the descriptors or the time were against it at first."""

from __future__ import annotations

import asyncio
import errno
import os
import ssl
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from endpick.transport import tls
from endpick.transport.limits import TransportCounters
from endpick.transport.tls import CertificateWatch, TlsSettings, make_self_signed, read_certificate, server_context


@pytest.fixture
def settings(tmp_path) -> TlsSettings:
    renew(settings := TlsSettings(tmp_path / "tls.crt", tmp_path / "tls.key"))
    return settings


def renew(settings: TlsSettings, valid_days: int = 3650) -> None:
    for path, content in zip((settings.certificate_file, settings.key_file), make_self_signed(valid_days), strict=True):
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(path)


def no_room(*_args: object, **_options: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="files without a disk are Linux's")
def test_a_certificate_needs_no_room_on_a_disk(settings, monkeypatch):
    monkeypatch.setattr(tempfile, "TemporaryDirectory", no_room)
    assert server_context(read_certificate(settings), settings).cert_store_stats()["x509"] == 0


def test_where_there_are_no_files_without_a_disk_a_folder_serves(settings, monkeypatch):
    monkeypatch.setattr(os, "memfd_create", no_room, raising=False)
    assert server_context(read_certificate(settings), settings).cert_store_stats()["x509"] == 0
    other = TlsSettings(settings.certificate_file, settings.certificate_file)
    with pytest.raises(tls.TlsError, match="not usable"):
        server_context(read_certificate(other), other)


def test_what_was_refused_is_tried_again_and_told_once(settings, monkeypatch, caplog):
    watch, counters = CertificateWatch(settings), TransportCounters()
    asked = []

    def out_of_descriptors(path, mode):
        asked.append(path)
        raise OSError(errno.EMFILE, "Too many open files")

    renew(settings)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", out_of_descriptors)
        assert not watch.refresh(counters)
        assert not watch.refresh(counters)
        assert len(asked) == 1, "not each second"
        patch.setattr(tls, "_AGAIN_SECONDS", 0.0)
        watch._again_at = 0.0
        assert not watch.refresh(counters)
        assert not watch.refresh(counters)
    assert len(asked) == 3
    assert (counters.certificate_reload_failures, counters.certificate_reloads) == (1, 0)
    assert caplog.text.count("Too many open files") == 1
    assert watch.refresh(counters)
    assert watch.files.certificate == settings.certificate_file.read_bytes()
    assert counters.certificate_reloads == 1


def test_files_that_are_renewed_while_it_starts_are_read_again(settings, monkeypatch):
    wanted, old_key = settings.certificate_file.read_bytes(), make_self_signed()[1]
    new_key = settings.key_file.read_bytes()
    settings.key_file.write_bytes(old_key)
    load = tls.server_context

    def renewed_meanwhile(files, settings):
        if files.key == old_key:
            settings.key_file.write_bytes(new_key + b"\n")
        return load(files, settings)

    monkeypatch.setattr(tls, "server_context", renewed_meanwhile)
    watch = CertificateWatch(settings)
    assert (watch.files.certificate, watch.files.key) == (wanted, new_key + b"\n")
    assert not watch.refresh(TransportCounters())


def test_other_files_are_looked_at_at_once(settings):
    watch, counters = CertificateWatch(settings), TransportCounters()
    renew(settings, valid_days=-1)
    assert not watch.refresh(counters)
    renew(settings)
    assert watch.refresh(counters)


@pytest.mark.asyncio
@pytest.mark.parametrize("authorities", [1, 200])
async def test_many_authorities_are_read_beside_the_event_loop(settings, authorities):
    trusted = settings.certificate_file.with_name("authorities")
    trusted.write_bytes(make_self_signed()[0])
    watch, counters = CertificateWatch(replace(settings, client_ca_file=trusted)), TransportCounters()
    before = watch.context
    trusted.write_bytes(b"".join(make_self_signed()[0] for _ in range(authorities)))
    watch.follow(counters)
    watch.follow(counters)  # once is enough
    assert (watch.context is before) == (authorities > 1)
    async with asyncio.timeout(20):
        while counters.certificate_reloads == 0:  # noqa: ASYNC110 - a thread ends, and its watch signals nothing
            await asyncio.sleep(0)
    assert watch.context.cert_store_stats()["x509_ca"] == authorities
    trusted.write_bytes(b"x" * 40_000 * (authorities - 1))
    watch.follow(counters)
    async with asyncio.timeout(20):
        while counters.certificate_reload_failures == 0:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    assert counters.certificate_reloads == 1


def shake_hands(context: ssl.SSLContext) -> None:
    """As a client does that speaks TLS 1.2 and takes no tickets; both say that nothing follows."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ours.check_hostname, ours.verify_mode, ours.maximum_version = False, ssl.CERT_NONE, ssl.TLSVersion.TLSv1_2
    ours.options |= ssl.OP_NO_TICKET
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = ours.wrap_bio(back, there), context.wrap_bio(there, back, server_side=True)
    for step in (client.do_handshake, server.do_handshake, client.do_handshake, server.do_handshake, server.unwrap):
        with suppress(ssl.SSLWantReadError):
            step()


@pytest.mark.asyncio
async def test_sessions_of_clients_are_not_remembered_without_measure(settings, monkeypatch):
    monkeypatch.setattr(tls, "_MOST_SESSIONS", 3)
    watch, counters = CertificateWatch(settings), TransportCounters()
    first = watch.context
    for number in range(1, 5):
        shake_hands(first)
        assert first.session_stats()["number"] == number, "OpenSSL remembers each"
        watch.follow(counters)
        assert (watch.context is first) == (number <= 3)
    assert watch.context.session_stats()["number"] == counters.certificate_reloads == 0


def test_a_chain_that_no_client_would_take_leaves_the_old_one_in_use(settings):
    watch, counters = CertificateWatch(settings), TransportCounters()
    before, (certificate, key) = watch.context, make_self_signed(3650)
    settings.key_file.write_bytes(key)
    settings.certificate_file.write_bytes(certificate * 300)
    assert not watch.refresh(counters)
    assert (watch.context, counters.certificate_reload_failures) == (before, 1)
    settings.certificate_file.write_bytes(certificate)
    assert watch.refresh(counters)


def test_the_longest_chain_that_is_taken_is_taken_by_clients(settings):
    certificate, key = make_self_signed(3650)
    settings.key_file.write_bytes(key)
    settings.certificate_file.write_bytes(certificate * (tls._MOST_CHAIN_BYTES // len(certificate)))
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    said, heard = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(heard, said)
    server = server_context(read_certificate(settings), settings).wrap_bio(said, heard, server_side=True)
    for end in (client, server, client, server):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    assert client.version() == server.version() == "TLSv1.3"
