"""TLS for a listener: reads the operator's certificate and reloads it when its files change, or makes a self-signed one."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import logging
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Protocol

from endpick.transport.validity import outside_validity

__all__ = [
    "CertificateFiles",
    "CertificateWatch",
    "TlsError",
    "TlsSettings",
    "cipher_list",
    "make_self_signed",
    "read_certificate",
    "server_context",
]

logger = logging.getLogger(__name__)

_AGAIN_SECONDS = 10.0
"""How long files that were refused are left alone: what was wrong may have been the disk, the descriptors, or the time."""
_LONG_PEM_BYTES = 32 * 1024
"""What is longer is read in a thread where requests would wait for it: a millisecond for six certificates."""
_MOST_RENEWALS_AT_START = 5
_MOST_SESSIONS = 1000
"""OpenSSL remembers sessions of TLS 1.2 without tickets, with the certificates of their clients, and 20,480 of them unless it is ended."""
_MOST_PEM_BYTES = 4 * 1024 * 1024
"""Of one file: twenty times as long as the list of all authorities that browsers trust."""
_MOST_CHAIN_BYTES = 128 * 1024
"""Of the certificate and those that vouch for it: clients that use OpenSSL refuse more than 100 KiB of them, and PEM adds a third."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The files of the certificate; without them the server makes a self-signed one."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None
    """Set: clients must show a certificate that this authority signed."""
    modern_only: bool = False
    """TLS 1.3 and nothing older."""
    ciphers: str = ""
    """OpenSSL's names of the suites of TLS 1.2, from `cipher_list`; empty for OpenSSL's choice."""
    reload: bool = True
    """Use new files when they change."""
    protocol: str = "h2"
    """What clients are offered by ALPN."""

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise TlsError("a TLS certificate needs its key and a key its certificate: give both files or neither")


class TlsError(Exception):
    """The certificate, its key or the client CA cannot be used; the message names the file."""


class CertificateCounters(Protocol):
    """What a watch counts; see `TransportCounters`."""

    certificate_reloads: int
    certificate_reload_failures: int


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The contents of the files, PEM."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


_Stamp = tuple[tuple[int, int, int], ...]
"""What files look like: of each when it was written, which it is, and its size."""
_Loaded = tuple[CertificateFiles, ssl.SSLContext]


class CertificateWatch:
    """A context whose certificate follows its files; after a change that cannot be used, it logs a warning and keeps the old one."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._paths = tuple(path for path in (settings.certificate_file, settings.key_file, settings.client_ca_file) if path is not None)
        self._stamp = self._look()
        loaded = self._load_whole()
        self.files: CertificateFiles = loaded[0]
        """The certificate in use."""
        self.context: ssl.SSLContext = loaded[1]
        self._refused: _Stamp | None = None
        """What the files looked like when they were refused."""
        self._refused_for = ""
        self._again_at = 0.0
        self._loading: asyncio.Future[_Loaded] | None = None

    def refresh(self, counters: CertificateCounters) -> bool:
        """Load the files again if they look different; a few `stat` calls otherwise.

        Returns:
            Whether connections opened from now on see another certificate.
        """
        stamp = self._changed()
        return stamp is not None and self._use(stamp, self._load, counters)

    def follow(self, counters: CertificateCounters) -> None:
        """As `refresh`, on an event loop: long files are read beside it, and used some time after the call."""
        self._forget_sessions()
        if self._loading is not None or (stamp := self._changed()) is None:
            return
        if sum(size for _, _, size in stamp) <= _LONG_PEM_BYTES:
            self._use(stamp, self._load, counters)
            return
        loading = self._loading = asyncio.get_running_loop().run_in_executor(None, self._load)
        loading.add_done_callback(lambda loaded: self._loaded(stamp, loaded, counters))

    def _forget_sessions(self) -> None:
        """Have a new context where the one in use remembers many clients; it goes with the last connection that was made on it."""
        if self.context.session_stats()["number"] > _MOST_SESSIONS:
            with suppress(TlsError):  # for want of a descriptor, say: the next call tries again
                self.context = server_context(self.files, self._settings)

    def _loaded(self, stamp: _Stamp, loaded: asyncio.Future[_Loaded], counters: CertificateCounters) -> None:
        self._loading = None
        if not loaded.cancelled():
            self._use(stamp, loaded.result, counters)

    def _changed(self) -> _Stamp | None:
        """What the files look like; None where there is nothing to do."""
        stamp = self._look() if self._settings.reload else self._stamp
        is_refused = stamp == self._refused and time.monotonic() < self._again_at
        return None if stamp == self._stamp or is_refused else stamp

    def _load_whole(self) -> _Loaded:
        """Load, and again where the files change meanwhile: one of them may have been renewed, and its key not yet."""
        for _ in range(_MOST_RENEWALS_AT_START):
            try:
                return self._load()
            except TlsError:
                before, self._stamp = self._stamp, self._look()
                if before == self._stamp:
                    raise
        return self._load()

    def _load(self) -> _Loaded:
        files = read_certificate(self._settings)
        return files, server_context(files, self._settings)

    def _use(self, stamp: _Stamp, load: Callable[[], _Loaded], counters: CertificateCounters) -> bool:
        """Use what was loaded, if it can be used; whether that is so."""
        try:
            files, context = load()
            self._require_time(files)
        except TlsError as error:
            self._keep_the_old(str(error), stamp, counters)
            return False
        # A new context rather than new files in the old one: that would go on trusting the client CA of before.
        self._stamp, self.files, self.context = stamp, files, context
        counters.certificate_reloads += 1
        logger.info("the TLS certificate has been reloaded")
        return True

    def _require_time(self, files: CertificateFiles) -> None:
        """Refuse a certificate that no client would take, unless the one in use is no better."""
        now = dt.datetime.now(dt.UTC)
        problem = outside_validity(files.certificate, now)
        if problem is not None and outside_validity(self.files.certificate, now) is None:
            raise TlsError(f"it {problem}")

    def _keep_the_old(self, reason: str, stamp: _Stamp, counters: CertificateCounters) -> None:
        """Tell why once, and try the same files again later: not all reasons are in them."""
        self._again_at = time.monotonic() + _AGAIN_SECONDS
        if (stamp, reason) == (self._refused, self._refused_for):
            return
        self._refused, self._refused_for = stamp, reason
        counters.certificate_reload_failures += 1
        logger.warning("the changed TLS certificate is not usable, the old one stays in use: %s; write files that belong together", reason)

    def _look(self) -> _Stamp:
        stamps = []
        for path in self._paths:
            try:
                status = path.stat()
            except OSError:
                stamps.append((0, 0, 0))
            else:
                stamps.append((status.st_mtime_ns, status.st_ino, status.st_size))
        return tuple(stamps)


def read_certificate(settings: TlsSettings) -> CertificateFiles:
    """The bytes of the given files, or of a new self-signed certificate.

    Raises:
        TlsError: a file cannot be read, or is longer than clients take.
    """
    client_ca = None if settings.client_ca_file is None else _read(settings.client_ca_file)
    if settings.certificate_file is None or settings.key_file is None:
        certificate, key = make_self_signed()
        return CertificateFiles(certificate, key, client_ca)
    return CertificateFiles(_read(settings.certificate_file, _MOST_CHAIN_BYTES), _read(settings.key_file), client_ca)


def _read(path: Path, most_bytes: int = _MOST_PEM_BYTES) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as error:
        raise TlsError(f"TLS file {path} cannot be read: {error.strerror}") from error
    if len(content) > most_bytes:
        raise TlsError(f"TLS file {path} is not usable: it is longer than {most_bytes // 1024} KiB")
    return content


def server_context(files: CertificateFiles, settings: TlsSettings) -> ssl.SSLContext:
    """A context that offers one protocol only, TLS 1.2 or later.

    Raises:
        TlsError: OpenSSL does not take the certificate, the key, the CA or the ciphers.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3 if settings.modern_only else ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols([settings.protocol])
    if settings.ciphers:
        try:
            context.set_ciphers(settings.ciphers)
        except ssl.SSLError as error:
            raise TlsError(f"this OpenSSL has none of the TLS cipher suites {settings.ciphers}") from error
    load_certificate(context, files)
    return context


_SUITES = {
    **{
        f"TLS_ECDHE_{key}_WITH_AES_{bits}_GCM_SHA{hash_bits}": f"ECDHE-{key}-AES{bits}-GCM-SHA{hash_bits}"
        for key in ("RSA", "ECDSA")
        for bits, hash_bits in ((128, 256), (256, 384))
    },
    **{
        f"TLS_ECDHE_{key}_WITH_CHACHA20_POLY1305{suffix}": f"ECDHE-{key}-CHACHA20-POLY1305"
        for key in ("RSA", "ECDSA")
        for suffix in ("_SHA256", "")
    },
    **{f"TLS_ECDHE_{key}_WITH_AES_{bits}_CBC_SHA": f"ECDHE-{key}-AES{bits}-SHA" for key in ("RSA", "ECDSA") for bits in (128, 256)},
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
"""OpenSSL's names of the suites of TLS 1.2 that Go knows, by IANA's."""
_ALWAYS_ON = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


def cipher_list(given: Sequence[str]) -> str:
    """OpenSSL's cipher string for `--tls-cipher-suites`: IANA names, separated by commas; those of TLS 1.3 are always on.

    Raises:
        TlsError: a name is not that of a suite that Go knows.
    """
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _SUITES and name not in _ALWAYS_ON:
            raise TlsError(f"'{name}' is no cipher suite; known are {', '.join(_SUITES)}")
    return ":".join(dict.fromkeys(_SUITES[name] for name in names if name in _SUITES))


def load_certificate(context: ssl.SSLContext, files: CertificateFiles) -> None:
    """Give `context` these files; connections opened from now on use them.

    Raises:
        TlsError: OpenSSL does not take them; the context may then hold a mixture, so try a new context first.
    """
    try:
        with _as_file(files.key.rstrip() + b"\n" + files.certificate) as pair:
            # Without a password OpenSSL would ask on the terminal for that of an encrypted key, and everything would wait.
            context.load_cert_chain(pair, password="")
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            with _as_file(files.client_ca) as authorities:  # of a file OpenSSL reads them while other threads run
                context.load_verify_locations(authorities)
    except OSError as error:  # no room for the file, or what OpenSSL says
        raise TlsError(f"the TLS certificate, key or client CA is not usable: {error}") from error


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """A path for what takes files only, as the ssl module does for certificates: in memory where that can be, as a disk may be full.

    Raises:
        OSError: there is no room for it.
    """
    in_memory = _memory_file(content)
    if in_memory is not None:
        with in_memory:
            yield f"/proc/self/fd/{in_memory.fileno()}"
        return
    with tempfile.TemporaryDirectory(prefix="endpick-tls-") as folder:  # readable by this user alone
        path = Path(folder, "pair.pem")
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        yield str(path)


def _memory_file(content: bytes) -> FileIO | None:
    """A file without a disk, open; None on a platform, or in a sandbox, that has none."""
    try:
        file = FileIO(os.memfd_create("endpick-tls"), "w")
    except (OSError, AttributeError):
        return None
    with suppress(OSError):
        if file.write(content) == len(content) and Path(f"/proc/self/fd/{file.fileno()}").exists():
            return file
    file.close()
    return None


def make_self_signed(valid_days: int = 3650) -> tuple[bytes, bytes]:
    """A certificate and its key, PEM, by default for ten years. It encrypts, but clients cannot tell by it who the server is."""
    # Imported here: a server with a certificate of its own, or with plain text, need not load it.
    from cryptography import x509  # noqa: PLC0415
    from cryptography.hazmat.primitives import hashes, serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "endpick self-signed")])
    local = [x509.DNSName("localhost"), *(x509.IPAddress(ipaddress.ip_address(ip)) for ip in ("127.0.0.1", "::1"))]
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=2))
        .not_valid_after(now + dt.timedelta(days=valid_days))
        .add_extension(x509.SubjectAlternativeName(local), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    return (
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
