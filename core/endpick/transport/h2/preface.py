"""How a client of this port begins, and what those do that are none."""

from __future__ import annotations

from endpick.transport.h2.faults import ErrorCode, H2ConnectionError
from endpick.transport.h2.frames import PREFACE

__all__ = ["Greeting"]

_HTTP1_METHODS = (b"GET ", b"HEAD ", b"POST ", b"PUT ", b"DELETE ", b"OPTIONS ", b"PATCH ", b"CONNECT ", b"TRACE ")
_TLS_HANDSHAKE = b"\x16\x03"
_STARTS = (PREFACE, *_HTTP1_METHODS, _TLS_HANDSHAKE)


class Greeting:
    """Takes the preface off what a client sends first, however it is cut."""

    def __init__(self) -> None:
        self._heard = b""
        self.done = False

    def take(self, data: bytes) -> bytes:
        """What follows the preface in `data`; empty before it is whole.

        Raises:
            H2ConnectionError: this is no HTTP/2.
        """
        self._heard += data
        if self._heard.startswith(PREFACE):
            self.done = True
            rest, self._heard = self._heard[len(PREFACE) :], b""
            return rest
        if any(len(self._heard) < len(start) and start.startswith(self._heard) for start in _STARTS):
            return b""
        raise _not_http2(self._heard)


def _not_http2(start: bytes) -> H2ConnectionError:
    if start.startswith(_TLS_HANDSHAKE):
        return H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "TLS on a plain-text port", "tls_on_plain_text")
    if start.startswith(_HTTP1_METHODS):
        return H2ConnectionError(ErrorCode.HTTP_1_1_REQUIRED, "HTTP/1 on a gRPC port", "http1_connections")
    return H2ConnectionError(ErrorCode.PROTOCOL_ERROR, "no HTTP/2 connection preface", "bad_prefaces")
