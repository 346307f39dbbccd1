"""`endpick doctor --serving`: what answers at the address may be anything."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import pytest

from endpick.cli.console import table
from endpick.cli.doctor import ask_serving

HEAD = b"HTTP/1.0 200 OK\r\n\r\nok\n"


@contextmanager
def answering(*pieces: bytes) -> Iterator[str]:
    """The address of a server that answers one request so, whatever it is."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            client, _ = listening.accept()
            with client, suppress(OSError):
                client.recv(4096)
                for piece in pieces:
                    client.sendall(piece)

        thread = Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("answer", "ready", "remark"),
    [
        (HEAD + b"left out: \x1b]0;mine\x07\x1b[31m \xe2\x80\xae gnp\n", True, r"left out: \u001b]0;mine\u0007\u001b[31m \u202e gnp"),
        (HEAD + b"\xff\n", True, "\ufffd"),
        (b"HTTP/1.0 503 no\r\n\r\n\x1b[2Jgone\n", False, r"\u001b[2Jgone"),
        (b"nonsense\x1b[2J\r\n\r\n", False, r"no answer: nonsense\u001b[2J"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 500 + b"\r\n", False, "no answer: got more than 100 headers"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", False, "no answer: IncompleteRead(0 bytes read)"),
    ],
)
def test_what_answers_is_shown_and_commands_no_terminal(answer, ready, remark):
    with answering(answer) as url:
        told = ask_serving(url)
    assert (told.ready, told.remarks[0]) == (ready, remark)


def test_an_answer_without_end_is_read_no_further():
    with answering(HEAD, *[b"line\n" * 20_000] * 200) as url:
        told = ask_serving(url)
    assert sum(map(len, told.remarks)) < 64 * 1024


def test_no_redirect_is_followed():
    with answering(b"HTTP/1.0 200 OK\r\n\r\nok\n") as elsewhere:
        with answering(b"HTTP/1.0 302 Found\r\nlocation: " + elsewhere.encode() + b"/healthz\r\n\r\n") as url:
            assert not ask_serving(url).ready
        assert ask_serving(elsewhere).ready, "it was still there to be asked"


def test_a_name_in_a_table_commands_no_terminal():
    assert table(("NAME", "VERSION"), [("\x1b[2Jevil", "1")]) == "NAME           VERSION\n\\u001b[2Jevil  1\n"
