"""`endpick doctor --serving`: reads the health of a serving process."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import click
import pytest

from endpick.cli.doctor import ask_serving


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """The address of a server that answers one request."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "ready", "remarks"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nok\n", True, ()),
        (b"HTTP/1.0 200 OK\r\n\r\nok\nleft out\n", True, ("left out",)),
        (b"HTTP/1.0 503 no\r\n\r\nstarting\n", False, ("starting",)),
    ],
)
def test_the_answer_of_healthz_is_reported(answer, ready, remarks):
    with answering(answer) as url:
        found = ask_serving(url)

    assert (found.ready, found.remarks) == (ready, list(remarks))


def test_a_server_without_http_is_no_answer():
    with answering(b"nonsense\r\n\r\n") as url:
        found = ask_serving(url)

    assert (found.ready, found.remarks) == (False, [f"no answer from {url}: nonsense; is endpick running there?"])


def test_a_closed_port_is_no_answer():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    found = ask_serving(f"http://127.0.0.1:{port}")

    assert not found.ready
    assert found.remarks == [f"no answer from http://127.0.0.1:{port}: [Errno 111] Connection refused; is endpick running there?"]


def test_another_scheme_is_wrong_usage():
    with pytest.raises(click.UsageError):
        ask_serving("file:///etc/passwd")
