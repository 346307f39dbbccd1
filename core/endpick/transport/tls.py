"""TLS of a listening port: the operator's certificate, reloaded on change, or a self-signed one."""

from __future__ import annotations

import datetime as dt
import ipaddress
import logging
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

from endpick.transport.limits import TransportCounters

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

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - writable in containers with a read-only root filesystem


class TlsError(Exception):
    """A certificate, key or client CA is not usable; the message names the file."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files and options of TLS; without files the certificate is self-signed."""

    certificate_file: Path | None = None
    key_file: Path | None = None
    client_ca_file: Path | None = None  # must sign client certificates
    modern_only: bool = False  # TLS 1.3 only
    ciphers: str = ""  # TLS 1.2 suites from `cipher_list`; empty: OpenSSL's defaults
    reload: bool = True
    protocol: str = "h2"  # ALPN

    def __post_init__(self) -> None:
        if (self.certificate_file is None) != (self.key_file is None):
            raise TlsError("a TLS certificate needs its key and a key its certificate: give both files or neither")


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """The contents of the certificate, key and client CA files, in PEM."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


_Stamp = tuple[tuple[int, int, int], ...]


class CertificateWatch:
    """A TLS context that follows its files; unusable files are reported, and the last good ones stay."""

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files of `settings`; raises `TlsError`."""
        self._settings = settings
        self._paths = [path for path in (settings.certificate_file, settings.key_file, settings.client_ca_file) if path is not None]
        self._stamp = self._file_stamp()
        self._refused: tuple[_Stamp, str] | None = None
        self.files = read_certificate(settings)
        self.context = server_context(self.files, settings)  # renewed in place, except for a new client CA: trust cannot be revoked

    def refresh(self, counters: TransportCounters) -> bool:
        """Reload changed files; True if new ones are in use. Called about once a second."""
        stamp = self._file_stamp() if self._settings.reload else self._stamp
        if stamp == self._stamp:
            return False
        try:
            files = read_certificate(self._settings)
            context = server_context(files, self._settings)
            _require_unexpired(files.certificate)
        except TlsError as error:
            if self._refused != (stamp, str(error)):
                self._refused = (stamp, str(error))
                counters.certificate_reload_failures += 1
                logger.warning(
                    "the changed TLS certificate is not usable, the old one stays in use: %s; write files that belong together", error
                )
            return False
        if files.client_ca == self.files.client_ca:
            load_certificate(self.context, files)
        else:
            self.context = context
        self._stamp, self._refused, self.files = stamp, None, files
        counters.certificate_reloads += 1
        logger.info("the TLS certificate was reloaded")
        return True

    def _file_stamp(self) -> _Stamp:
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
    """Read the files, or make a self-signed certificate; raises `TlsError`."""
    client_ca = None if settings.client_ca_file is None else _read(settings.client_ca_file)
    if settings.certificate_file is None or settings.key_file is None:
        certificate, key = make_self_signed()
        return CertificateFiles(certificate, key, client_ca)
    return CertificateFiles(_read(settings.certificate_file), _read(settings.key_file), client_ca)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise TlsError(f"TLS file {path} cannot be read: {error.strerror}") from error


def server_context(files: CertificateFiles, settings: TlsSettings) -> ssl.SSLContext:
    """Create the TLS context of a server; raises `TlsError`."""
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


def load_certificate(context: ssl.SSLContext, files: CertificateFiles) -> None:
    """Load certificate, key and client CA into a context; raises `TlsError`."""
    try:
        with _temporary_file(files.key.rstrip() + b"\n" + files.certificate) as pair:
            context.load_cert_chain(pair, password="")  # otherwise OpenSSL prompts for an encrypted key's password
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            with _temporary_file(files.client_ca) as authorities:
                context.load_verify_locations(authorities)
    except OSError as error:
        raise TlsError(f"the TLS certificate, key or client CA is not usable: {error}") from error


@contextmanager
def _temporary_file(content: bytes) -> Iterator[str]:
    """The ssl module loads certificates from files only."""
    with NamedTemporaryFile(prefix="endpick-tls-", dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as file:
        file.write(content)
        file.flush()
        yield file.name


def _require_unexpired(certificate: bytes) -> None:
    from cryptography import x509  # noqa: PLC0415 - imported when a certificate changes

    expiry = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    if expiry < dt.datetime.now(dt.UTC):
        raise TlsError(f"it expired on {expiry:%Y-%m-%d %H:%M} UTC")


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
"""OpenSSL's names of Go's TLS 1.2 suites, by IANA name."""
_ALWAYS_ON = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")


def cipher_list(given: Sequence[str]) -> str:
    """OpenSSL's cipher string for comma-separated IANA names. Raises `TlsError` for unknown ones."""
    names = [name.strip() for text in given for name in text.split(",") if name.strip()]
    for name in names:
        if name not in _SUITES and name not in _ALWAYS_ON:
            raise TlsError(f"'{name}' is not a cipher suite; known are {', '.join(_SUITES)}")
    return ":".join(dict.fromkeys(_SUITES[name] for name in names if name in _SUITES))


def make_self_signed(valid_days: int = 3650) -> tuple[bytes, bytes]:
    """Return a certificate and key in PEM, which encrypt but do not authenticate."""
    from cryptography import x509  # noqa: PLC0415 - most servers have a certificate or no TLS
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
