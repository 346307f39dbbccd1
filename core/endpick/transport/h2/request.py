"""What the header fields of a request say (RFC 9113 §8), as far as a gRPC server wants to know it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from endpick.transport.h2.grpc import parse_timeout
from endpick.transport.h2.hpack import Fields

__all__ = ["MalformedError", "RequestHead", "check_trailers", "read_head"]

_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_FORBIDDEN_IN_VALUE = re.compile(rb"[\x00\r\n]")
_CONNECTION_SPECIFIC = frozenset((b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"))
_USUAL = frozenset(
    (
        b"te",
        b"content-type",
        b"grpc-accept-encoding",
        b"user-agent",
        b"x-request-id",
        b"x-envoy-internal",
        b"x-forwarded-for",
        b"traceparent",
    )
)
"""Names that need no closer look on every stream of every connection; `te` and those below are looked at by value."""


class MalformedError(Exception):
    """The header fields are no request; RFC 9113 has the stream reset with PROTOCOL_ERROR."""


@dataclass(slots=True)
class RequestHead:
    """The request, before its body. Shared by requests that begin alike, so nobody changes it."""

    method: bytes = b""
    path: str = ""
    is_grpc: bool = False
    timeout_seconds: float | None = None
    content_length: int | None = None


def read_head(fields: Fields) -> RequestHead:
    """Check the fields and keep what matters.

    Raises:
        MalformedError: a pseudo-header is missing, repeated, unknown or late; a name or value may not be sent; a header belongs to HTTP/1.
    """
    head = RequestHead()
    pseudo: dict[bytes, bytes] = {}
    regular = False
    for name, value, _ in fields:
        if name[:1] == b":":
            if regular or name in pseudo:
                raise MalformedError(f"pseudo-header {name!r} repeated or after a regular one")
            pseudo[name] = value
            continue
        regular = True
        if name == b"content-type":
            head.is_grpc = (
                value.startswith(b"application/grpc")
                and value[16:17] in (b"", b"+", b";")
                and not value.startswith(b"application/grpc+json")
            )
        elif name == b"te":
            if value != b"trailers":
                raise MalformedError("the header te may only be 'trailers'")
        elif name == b"grpc-timeout":
            head.timeout_seconds = parse_timeout(value)
        elif name == b"content-length":
            head.content_length = _content_length(value, head.content_length)
        elif name not in _USUAL:
            _check_name(name)
    _check_values(fields)
    method, path = pseudo.pop(b":method", b""), pseudo.pop(b":path", b"")
    scheme = pseudo.pop(b":scheme", b"")
    pseudo.pop(b":authority", None)
    if pseudo:
        raise MalformedError(f"pseudo-headers {list(pseudo)} are none of a request")
    if not method or (method != b"CONNECT" and not (path and scheme)):
        raise MalformedError(":method, :scheme or :path is missing")
    head.method = method
    head.path = path.decode("latin-1")
    return head


def check_trailers(fields: Fields) -> None:
    """What a client sends after its last message.

    Raises:
        MalformedError: a pseudo-header, or a name or value that may not be sent.
    """
    for name, _, _ in fields:
        _check_name(name)
    _check_values(fields)


def _check_name(name: bytes) -> None:
    if name in _CONNECTION_SPECIFIC or _NAME.fullmatch(name) is None:
        raise MalformedError(f"the header {name!r} may not be sent over HTTP/2")


def _check_values(fields: Fields) -> None:
    # One search through all values costs a tenth of one search each.
    if _FORBIDDEN_IN_VALUE.search(b"".join([value for _, value, _ in fields])) is not None:
        raise MalformedError("a header value holds a line break or a zero byte")


def _content_length(value: bytes, before: int | None) -> int:
    if not value.isdigit() or len(value) > 18 or before not in (None, int(value)):
        raise MalformedError(f"content-length {value!r} is no length, or there are two")
    return int(value)
