"""Processes that plugins fork: they are no endpick."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from endpick.diagnostics import ExitCode
from endpick.serve import forks
from endpick.transport.address import ListenSettings, listening_socket


def child_of(act: Callable[[], object]) -> int:
    """The status of a process that is forked and does this."""
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def target_of(descriptor: socket.socket) -> str:
    return str(Path(f"/proc/self/fd/{descriptor.fileno()}").readlink())


@pytest.fixture
def loop():
    with asyncio.Runner() as runner:
        yield runner.get_loop()
        forks.forget()


@pytest.fixture
def port():
    with listening_socket(ListenSettings("127.0.0.1", 0)) as bound:
        bound.listen()
        yield bound


def test_a_child_has_no_socket_of_a_port_and_keeps_those_of_others(loop, port):
    forks.children_do_not_serve(loop, {})
    client = socket.create_connection(port.getsockname())
    accepted = port.accept()[0]
    with client, accepted, socket.socket() as others:
        others.bind(("127.0.0.1", 0))

        def look() -> None:
            left = [target_of(each) for each in (port, accepted, client, others)]
            os._exit(sum(link.startswith("socket:") << bit for bit, link in enumerate(left)))

        assert child_of(look) == 0b1100
        client.sendall(b"still there")
        assert accepted.recv(100) == b"still there"


def test_a_signal_ends_a_child_as_it_ends_other_processes(loop):
    heard = []

    def handler(number: int, _frame: object) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGTERM, handler)
    try:
        forks.children_do_not_serve(loop, {signal.SIGTERM: handler})
        assert child_of(lambda: signal.raise_signal(signal.SIGTERM)) == -signal.SIGTERM
        signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_child_that_comes_back_to_the_event_loop_ends_and_its_parent_does_not(loop):
    forks.children_do_not_serve(loop, {})

    async def serve() -> int:
        child = os.fork()
        if not child:
            await asyncio.sleep(0)
            os._exit(99)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222 - nothing else is on this loop

    assert loop.run_until_complete(serve()) == ExitCode.FAILED


def test_a_child_of_a_process_that_does_not_serve_is_left_alone(loop, port):
    forks.children_do_not_serve(loop, {})
    forks.forget()
    assert child_of(lambda: os._exit(target_of(port).startswith("socket:"))) == 1
