"""A client that sends what ordinary HTTP libraries cannot: chunks at will, trailers, and a sudden end."""

from __future__ import annotations

import socket
from collections.abc import Iterable, Mapping
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
    connection = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
    head = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: model"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    if isinstance(body, bytes):
        connection.sendall("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
    elif body is None:
        connection.sendall("\r\n".join([*head, "", ""]).encode())
    else:
        connection.sendall("\r\n".join([*head, "transfer-encoding: chunked", "", ""]).encode())
        for piece in body:
            connection.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        end = "".join(f"{name}: {value}\r\n" for name, value in (trailers or {}).items())
        connection.sendall(f"0\r\n{end}\r\n".encode())
    return connection


def read(connection: socket.socket) -> Answer:
    """Read the response to its end and close the connection."""
    with connection:
        response = HTTPResponse(connection)
        response.begin()
        body = response.read()
        response.close()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)
