"""How a client of this port begins, and what those do that are none."""

from __future__ import annotations

import re

from endpick.transport.h2.faults import ErrorCode, H2ConnectionError
from endpick.transport.h2.frames import PREFACE

__all__ = ["check_preface"]

_HTTP1_REQUEST = re.compile(rb"(?:GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|CONNECT|TRACE) ")
_TLS_HANDSHAKE = b"\x16\x03"


def check_preface(start: bytes) -> None:
    """Look at the first bytes of a connection, at most as many as the preface has.

    Raises:
        H2ConnectionError: they are not the start of the preface.
    """
    if PREFACE.startswith(start):
        return
    if start.startswith(_TLS_HANDSHAKE):
        raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "TLS on a plain-text port", "tls_on_plain_text")
    if _HTTP1_REQUEST.match(start):
        raise H2ConnectionError(ErrorCode.HTTP_1_1_REQUIRED, "HTTP/1 on a gRPC port", "http1_connections")
    raise H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 connection preface", "bad_prefaces")
