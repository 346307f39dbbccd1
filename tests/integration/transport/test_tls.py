"""TLS on both transports: self-signed, given, reloaded, and mutual."""

from __future__ import annotations

import asyncio
import ssl
import sys
from contextlib import suppress
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

from endpick.transport.limits import Limits
from endpick.transport.listener import ListenSettings
from endpick.transport.methods import EXT_PROC_PATH
from endpick.transport.server import open_server
from endpick.transport.tls import TlsError, TlsSettings, make_self_signed

pytestmark = pytest.mark.asyncio


class Pair:
    """A certificate and its key in files."""

    def __init__(self, folder: Path, name: str) -> None:
        self.certificate, self.key = folder / f"{name}.crt", folder / f"{name}.key"
        self.renew()

    def renew(self, valid_days: int = 3650) -> None:
        """Replace both as a secret volume does: whole files, renamed into place."""
        for path, content in zip((self.certificate, self.key), make_self_signed(valid_days), strict=True):
            fresh = path.with_suffix(".new")
            fresh.write_bytes(content)
            fresh.replace(path)

    @property
    def settings(self) -> TlsSettings:
        return TlsSettings(self.certificate, self.key)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, "server")


async def echo(port: int, root: bytes, *, key: bytes | None = None, chain: bytes | None = None) -> bytes:
    credentials = grpc.ssl_channel_credentials(root, key, chain)
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options=options) as channel:
        call = channel.stream_stream(EXT_PROC_PATH)(timeout=20)
        await call.write(b"hi")
        answer = await call.read()
        await call.done_writing()
        if answer is grpc.aio.EOF:
            raise ConnectionError(await call.details())
        return answer


async def shown_certificate(port: int) -> str:
    """The certificate of a new connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["http/1.1", "h2"])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    session = writer.get_extra_info("ssl_object")
    assert session.selected_alpn_protocol() == "h2"
    certificate = ssl.DER_cert_to_PEM_cert(session.getpeercert(binary_form=True))
    writer.transport.abort()
    await asyncio.sleep(0)
    return certificate


async def test_given_certificate_is_shown(open_transport, pair):
    async with open_transport(tls=pair.settings) as serving:
        assert await echo(serving.port, pair.certificate.read_bytes()) == b"hi"


async def test_server_without_files_has_a_self_signed_certificate(open_transport):
    async with open_transport(tls=TlsSettings()) as serving:
        assert await echo(serving.port, (await shown_certificate(serving.port)).encode()) == b"hi"


async def test_large_reply_passes_over_tls(open_transport, pair):
    async with open_transport(tls=pair.settings) as serving:
        credentials = grpc.ssl_channel_credentials(pair.certificate.read_bytes())
        options = [("grpc.ssl_target_name_override", "localhost")]
        async with grpc.aio.secure_channel(serving.address, credentials, options=options) as channel:
            call = channel.stream_stream(EXT_PROC_PATH)(timeout=30)
            await call.write(b"reply:3000000")
            assert len(await call.read()) == 3_000_000


async def test_renewed_certificate_is_used(open_transport, pair):
    async with open_transport(tls=pair.settings) as serving:
        before = pair.certificate.read_text()
        assert (await shown_certificate(serving.port)).split() == before.split()
        pair.renew()
        async with asyncio.timeout(15):
            while (await shown_certificate(serving.port)).split() == before.split():  # noqa: ASYNC110 - the server looks once a second
                await asyncio.sleep(0.05)
        assert await echo(serving.port, pair.certificate.read_bytes()) == b"hi"
        assert serving.server.counters.certificate_reloads >= 1


async def test_replaced_client_ca_is_no_longer_trusted(open_transport, pair, tmp_path):
    client = Pair(tmp_path, "client")
    old_key, old_chain = client.key.read_bytes(), client.certificate.read_bytes()
    settings = TlsSettings(pair.certificate, pair.key, client_ca_file=client.certificate)
    async with open_transport(tls=settings) as serving:
        root = pair.certificate.read_bytes()
        assert await echo(serving.port, root, key=old_key, chain=old_chain) == b"hi"
        client.renew()
        async with asyncio.timeout(15):
            while not serving.server.counters.certificate_reloads:
                with suppress(ConnectionError, OSError):
                    await shown_certificate(serving.port)
                await asyncio.sleep(0.05)
        assert await echo(serving.port, root, key=client.key.read_bytes(), chain=client.certificate.read_bytes()) == b"hi"
        with pytest.raises((ConnectionError, grpc.aio.AioRpcError)):
            await echo(serving.port, root, key=old_key, chain=old_chain)


async def test_client_ca_is_enforced(open_transport, pair, tmp_path):
    client = Pair(tmp_path, "client")
    settings = TlsSettings(pair.certificate, pair.key, client_ca_file=client.certificate)
    async with open_transport(tls=settings) as serving:
        root = pair.certificate.read_bytes()
        assert await echo(serving.port, root, key=client.key.read_bytes(), chain=client.certificate.read_bytes()) == b"hi"
        stranger = Pair(tmp_path, "stranger")
        for key, chain in ((None, None), (stranger.key.read_bytes(), stranger.certificate.read_bytes())):
            with pytest.raises((ConnectionError, grpc.aio.AioRpcError)):
                await echo(serving.port, root, key=key, chain=chain)
        assert serving.log.opened == 1


async def test_plain_text_on_a_tls_port_is_a_failed_handshake(open_h2, pair):
    async with open_h2(tls=pair.settings, limits=Limits(handshake_seconds=1)) as serving:
        reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        async with asyncio.timeout(10):
            with suppress(ConnectionResetError):
                await reader.read()
        writer.close()
        counters = serving.server.counters
        assert (counters.connections_accepted, counters.connections_opened, counters.tls_handshake_failures) == (1, 0, 1)


async def test_unusable_files_are_named(transport, tmp_path, pair):
    missing = TlsSettings(tmp_path / "absent.crt", pair.key)
    with pytest.raises(TlsError, match=r"absent\.crt"):
        await open_server(transport, ListenSettings("127.0.0.1", 0, missing), {}).start()
    other = Pair(tmp_path, "other")
    (tmp_path / "empty.pem").touch()
    for unusable in (TlsSettings(pair.certificate, other.key), TlsSettings(pair.certificate, pair.key, tmp_path / "empty.pem")):
        with pytest.raises(TlsError, match="not usable"):
            await open_server(transport, ListenSettings("127.0.0.1", 0, unusable), {}).start()


async def test_certificate_without_key_is_refused(pair):
    with pytest.raises(TlsError, match="both files or neither"):
        TlsSettings(pair.certificate, None)


async def test_encrypted_key_is_refused_without_a_prompt(tmp_path, pair):
    encryption = BestAvailableEncryption(b"secret")
    pair.key.write_bytes(load_pem_private_key(pair.key.read_bytes(), None).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    program = (
        "import sys; from pathlib import Path; from endpick.transport.tls import *\n"
        "settings = TlsSettings(*map(Path, sys.argv[1:]))\n"
        "try:\n    server_context(read_certificate(settings), settings)\n"
        "except TlsError as error:\n    print(error)\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(pair.certificate), str(pair.key)), stdin=-3, stdout=-1, stderr=-1, start_new_session=True
    )
    output, asked = await process.communicate()

    assert b"the TLS certificate, key or client CA is not usable" in output
    assert asked == b"", "with a terminal it would wait for an answer"
