"""`endpick doctor --serving` and a server that means harm: it is told of in time, in little memory, and without a traceback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click
import pytest

from endpick.cli import doctor
from endpick.cli.console import table
from endpick.cli.doctor import ask_serving


@pytest.fixture(autouse=True)
def _all_threads_end() -> Iterator[None]:
    """No thread goes on asking or answering beside the tests that follow; with `endpick doctor` it would end with the process."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
        assert not thread.is_alive(), thread


@contextmanager
def serving(speak: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that answers every request so, until the client has gone or the block ends."""
    connections: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connections.append(connection)
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

        def answer(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                connection.recv(65536)
                speak(connection)

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            for each in (listening, *connections):
                with suppress(OSError):  # the other side may have closed it
                    each.shutdown(socket.SHUT_RDWR)


def saying(answer: bytes) -> Callable[[socket.socket], None]:
    return lambda connection: connection.sendall(answer)


def for_ever(piece: bytes, *, head: bytes) -> Callable[[socket.socket], None]:
    def speak(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return speak


OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff garbage\r\n\r\n",
        b"HTTP/1.1 abc X\r\n\r\n",
        OK + b"A: b\r\n" * 500 + b"\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
        b"",
    ],
)
def test_what_is_no_report_is_no_answer(answer):
    with serving(saying(answer)) as url:
        told = ask_serving(url)

    assert not told.ready
    assert told.remarks[0].startswith("no answer: ")


@pytest.mark.parametrize("url", ["http://[::1", "http://host:abc", "http://a b", "http://\u0130.x", f"http://{'x' * 300}", "http://h:1/\n"])
def test_an_address_that_is_none_is_no_answer(url):
    told = ask_serving(url)

    assert (told.ready, told.remarks[0].split(":")[0]) == (False, "no answer")


def test_an_address_of_another_kind_is_wrong_usage():
    with pytest.raises(click.UsageError):
        ask_serving("file:///etc/passwd")


@pytest.mark.parametrize("status", [b"200 OK", b"503 Service Unavailable"])
def test_of_a_report_that_does_not_end_the_beginning_is_read(status):
    with serving(for_ever(b"x" * 65536, head=b"HTTP/1.1 " + status + b"\r\n\r\nok\n")) as url:
        told = ask_serving(url)

    assert told.ready == (status == b"200 OK")
    assert sum(map(len, told.remarks)) <= 64 * 1024


@pytest.mark.parametrize(
    "speak",
    [lambda connection: connection.recv(1), for_ever(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, head=b"")],
    ids=["says nothing", "is about to answer"],
)
def test_a_server_that_takes_too_long_is_waited_for_no_longer(speak, monkeypatch):
    monkeypatch.setattr(doctor, "_ASK_SECONDS", 0.5)
    with serving(speak) as url:
        told = ask_serving(url)

    assert (told.ready, told.remarks[0].split(":")[0]) == (False, "no answer")


def test_no_cell_of_a_table_commands_a_terminal():
    printed = table(("NAME",), [("evil\x1b[2J\u202e\nnext",)])

    assert printed == "NAME\nevil\\u001b[2J\\u202e\\u000anext\n"
