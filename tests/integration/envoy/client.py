"""A client that sends what ordinary HTTP libraries cannot: chunks at will, trailers, and a sudden end."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPResponse

SECONDS = 30.0


@dataclass
class Answer:
    """A complete response."""

    status: int
    headers: dict[str, str]
    body: bytes


def send(
    port: int,
    path: str,
    headers: Mapping[str, str],
    body: bytes | Iterable[bytes] | None = None,
    trailers: Mapping[str, str] | None = None,
) -> socket.socket:
    """Send one request; a body in pieces goes chunked, each piece a chunk of its own."""
    head = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: model"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    if isinstance(body, bytes):
        head.append(f"content-length: {len(body)}")
    elif body is not None:
        head.append("transfer-encoding: chunked")
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    try:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
        for piece in _pieces(body, trailers or {}):
            connection.sendall(piece)
    except BaseException:
        connection.close()
        raise
    return connection


def _pieces(body: bytes | Iterable[bytes] | None, trailers: Mapping[str, str]) -> Iterator[bytes]:
    if isinstance(body, bytes):
        yield body
    elif body is not None:
        for piece in body:
            yield b"%x\r\n%s\r\n" % (len(piece), piece)
        yield "".join(["0\r\n", *(f"{name}: {value}\r\n" for name, value in trailers.items()), "\r\n"]).encode()


def read_raw(connection: socket.socket) -> bytes:
    """Read every byte until the other side closes: ask for that with `connection: close`."""
    with connection:
        return b"".join(iter(lambda: connection.recv(65536), b""))


def read(connection: socket.socket) -> Answer:
    """Read the response to its end and close the connection."""
    with connection:
        response = HTTPResponse(connection)
        response.begin()
        body = response.read()
        response.close()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)
