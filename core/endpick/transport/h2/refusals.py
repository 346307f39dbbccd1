"""Plain HTTP answers to requests that are not gRPC, so that whoever points curl or a probe at the port learns what it is."""

from __future__ import annotations

from endpick.transport.h2.hpack import encode
from endpick.transport.h2.request import RequestHead

__all__ = ["refusal_of"]

_BODY = b"This port speaks gRPC: POST with content-type application/grpc.\n"


def _block(status: bytes, *more: tuple[bytes, bytes]) -> bytes:
    return encode(((b":status", status), (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(_BODY)), *more))


_METHOD_NOT_ALLOWED = _block(b"405", (b"allow", b"POST"))
_UNSUPPORTED_MEDIA_TYPE = _block(b"415")


def refusal_of(head: RequestHead) -> tuple[bytes, bytes] | None:
    """Header block and body for a request that is not gRPC; None for one that is."""
    if head.method != b"POST":
        return _METHOD_NOT_ALLOWED, b"" if head.method == b"HEAD" else _BODY
    if not head.is_grpc:
        return _UNSUPPORTED_MEDIA_TYPE, _BODY
    return None
