"""From when to when a certificate is valid: read off its bytes, because `ssl` does not tell and other libraries take long to import."""

from __future__ import annotations

import datetime as dt
import re
import ssl
from collections.abc import Iterator

_UTC_TIME, _GENERALIZED_TIME, _EXPLICIT_VERSION = 0x17, 0x18, 0xA0
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def outside_validity(pem: bytes, now: dt.datetime) -> str | None:
    """What is wrong with the time of the first certificate: `expired on …`; None for one that is valid, or that cannot be read.

    Args:
        pem: Certificates, the server's own first.
        now: With its time zone.
    """
    found = _PEM.search(pem.decode("ascii", "replace"))
    if found is None:
        return None
    try:
        begins, ends = _validity(ssl.PEM_cert_to_DER_cert(found.group()))
    except (ValueError, IndexError, StopIteration):
        return None
    if now < begins:
        return f"is valid from {begins:%Y-%m-%d %H:%M} UTC on only"
    return f"expired on {ends:%Y-%m-%d %H:%M} UTC" if now > ends else None


def _validity(certificate: bytes) -> tuple[dt.datetime, dt.datetime]:
    """RFC 5280 section 4.1: version (may be missing), serial number, algorithm, issuer, validity."""
    whole = next(_elements(certificate))
    signed = next(_elements(whole[1]))
    fields = [content for tag, content in _elements(signed[1]) if tag != _EXPLICIT_VERSION]
    begins, ends = _elements(fields[3])
    return _time(*begins), _time(*ends)


def _elements(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Tags and contents, one after the other, of DER."""
    at = 0
    while at < len(content):
        tag, length, at = content[at], content[at + 1], at + 2
        if length & 0x80:
            many = length & 0x7F
            length, at = int.from_bytes(content[at : at + many], "big"), at + many
        yield tag, content[at : at + length]
        at += length


def _time(tag: int, content: bytes) -> dt.datetime:
    """RFC 5280 section 4.1.2.5: years of two digits are those from 1950 on."""
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"{tag} is no time")
    return dt.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=dt.UTC)
