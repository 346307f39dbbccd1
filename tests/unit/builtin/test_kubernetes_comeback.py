"""How soon it is noticed that a server takes connections again, and who pays for looking."""

from __future__ import annotations

import asyncio
import socket
from random import Random

import pytest

from endpick_builtin.kubernetes.comeback import Comeback

pytestmark = pytest.mark.asyncio
LONG = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Counting:
    """A listener that counts who comes."""

    def __init__(self) -> None:
        self.connections = 0

    async def listen(self, port: int = 0) -> asyncio.Server:
        def came(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            writer.close()

        return await asyncio.start_server(came, "127.0.0.1", port)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_all_who_wait_go_on_when_a_port_that_refused_takes_connections(host):
    port, counting = free_port(), Counting()
    comeback = Comeback(f"http://{host}:{port}", Random(1))
    waiting = [asyncio.create_task(comeback.wait(LONG)) for _ in range(20)]
    done, _ = await asyncio.wait(waiting, timeout=0.05)
    assert not done
    async with await counting.listen(port):
        await asyncio.wait_for(asyncio.gather(*waiting), LONG / 2)
        await comeback.wait(0.0)
    assert counting.connections <= 2, "one connection serves all who wait"


async def test_a_port_that_took_connections_all_the_time_ends_no_wait():
    counting = Counting()
    async with await counting.listen() as server:
        comeback = Comeback(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", Random(1))
        waiting = [asyncio.create_task(comeback.wait(0.2)) for _ in range(5)]
        done, _ = await asyncio.wait(waiting, timeout=0.1)
        assert not done
        await asyncio.gather(*waiting)
    assert counting.connections == 1


async def test_nothing_is_tried_once_the_last_follower_has_gone():
    before = asyncio.all_tasks()
    comeback = Comeback(f"http://127.0.0.1:{free_port()}", Random(1))
    await asyncio.gather(comeback.wait(0.01), comeback.wait(0.05))
    cancelled = asyncio.create_task(comeback.wait(LONG))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before
