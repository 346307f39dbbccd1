"""grpcio under a flood of streams that are reset: those of others are answered, nothing stays allocated, and nothing is logged."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import itertools
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import grpc.aio
import pytest

from endpick.requests.model import CloseCause
from endpick.transport.h2.errors import ErrorCode
from endpick.transport.h2.frames import FrameType, rst_stream
from endpick.transport.limits import Limits
from integration.plugins.serving import serving
from integration.serve.gateway import RANDOM
from integration.transport.conftest import opened
from integration.transport.raw_client import RawClient

pytestmark = pytest.mark.asyncio
STREAMS = 4000
RESET_STREAMS = 1000
HEAP_BYTES = 64 * 2**20
HEAPS_OF_OTHERS = 2
"""Of threads that endpick starts itself, before grpcio does."""
KEPT_BYTES = 60
"""Of each stream; what stays of none at all varies by twenty."""


async def flood(port: int) -> None:
    """Streams with a message, each reset at once."""
    client = await RawClient.connect(port)
    for stream in range(1, 2 * STREAMS, 2):
        client.open(stream)
        client.message(stream, b"x")
        client.send(rst_stream(stream, ErrorCode.CANCEL))
    with suppress(ConnectionError):  # the h2 transport hangs up
        await client.writer.drain()
    await client.close()


async def test_streams_of_others_are_answered_in_a_flood_of_resets(open_transport):
    async with open_transport() as serving:
        channel = serving.channel()

        async def ask(number: int) -> bytes:
            call = serving.stream(channel)
            await call.write(b"%d" % number)
            answer = await call.read()
            await call.done_writing()
            return answer

        assert await ask(0) == b"0"
        floods = [asyncio.create_task(flood(serving.port)) for _ in range(2)]
        answers = []
        for number in range(200):
            try:
                answers.append(await ask(number))
            except grpc.aio.AioRpcError as refusal:
                answers.append(refusal.details())
        await asyncio.gather(*floods)
        assert answers == [b"%d" % number for number in range(200)]


class _Malloc(ctypes.Structure):
    """What glibc's `mallinfo2` returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


@pytest.fixture
def allocated() -> Callable[[], int]:
    """Bytes that malloc has given out and that were not freed: what grpcio's library holds, and large objects of Python."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("no mallinfo2: glibc 2.33 has it")
    library.mallinfo2.restype = _Malloc
    return lambda: library.mallinfo2().uordblks


async def reset_at_once(client: RawClient, stream: int) -> None:
    client.open(stream)
    client.message(stream, b"x")
    client.send(rst_stream(stream, ErrorCode.CANCEL))


async def reset_when_answered(client: RawClient, stream: int) -> None:
    assert await client.echo(stream, b"x") == b"x"
    client.send(rst_stream(stream, ErrorCode.CANCEL))


@pytest.mark.parametrize("use", [reset_at_once, reset_when_answered])
async def test_streams_that_their_client_resets_leave_no_memory_allocated(allocated, use):
    """grpcio loses what it allocates for a read whose awaiter is cancelled: a hundred bytes of each such stream."""
    async with opened("grpcio") as serving:
        held, closed = [], 0
        for _ in range(4):
            client = await RawClient.connect(serving.port)
            for stream in range(1, 2 * RESET_STREAMS, 2):
                await use(client, stream)
            await client.echo(2 * RESET_STREAMS + 1, b"the last one, which ends with its connection")
            await client.close()
            closed = len(await serving.log.until_closed(closed + 1))
            while serving.server.counters.streams_opened > len(serving.log.causes):
                closed = len(await serving.log.until_closed(closed + 1))
            gc.collect()
            held.append(allocated())
        kept = [(after - before) / RESET_STREAMS for before, after in itertools.pairwise(held)]
        assert min(kept) < KEPT_BYTES, f"bytes of each stream that stay, round by round: {kept}"


def ask_for_more_than_the_window(client: RawClient, stream: int) -> None:
    """Whichever answer comes first fills the window of the connection, which leaves none to the others."""
    client.open(stream)
    client.message(stream, b"reply:100000")


async def test_a_stream_that_is_reset_while_its_answer_is_not_read_is_no_fault(caplog):
    async with opened("grpcio") as serving:
        client = await RawClient.connect(serving.port)
        ask_for_more_than_the_window(client, 1)
        await client.read_until(FrameType.DATA, 1)
        for stream in range(3, 20, 2):
            ask_for_more_than_the_window(client, stream)
        await serving.log.until_received(10)
        for stream in range(1, 20, 2):
            client.send(rst_stream(stream, ErrorCode.CANCEL))
        assert await serving.log.until_closed(10) == [CloseCause.RESET] * 10
        await client.close()
        assert serving.server.counters.streams_reset_by_peer == 10
        assert serving.server.counters.session_faults == 0
    assert caplog.messages == []


def heaps_of_threads(pid: int) -> int:
    """How many threads glibc has given a heap of their own: 64 MiB each, of which a beginning is in use."""
    mapped = [line.split(maxsplit=2) for line in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()]
    parts = [(*(int(end, 16) for end in span.split("-")), mode) for span, mode, _ in mapped]
    return sum(
        begin % HEAP_BYTES == 0 and rest == middle and end == begin + HEAP_BYTES and (mode, rest_mode) == ("rw-p", "---p")
        for (begin, middle, mode), (rest, end, rest_mode) in itertools.pairwise(parts)
    )


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other heaps")
async def test_threads_of_grpcio_share_a_heap_so_that_a_flood_finds_the_free_memory_of_the_last_one(tmp_path):
    (tmp_path / "config.yaml").write_text(RANDOM)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    async with serving(tmp_path, "--transport=grpcio", python=sys.executable) as picker:
        for _ in range(3):
            await flood(picker.port)
            assert await picker.ask() == ("127.0.0.1:1", 0)
        assert heaps_of_threads(picker.process.pid) <= HEAPS_OF_OTHERS


async def test_a_connection_that_resets_too_many_streams_before_their_answer_ends():
    async with opened("grpcio", limits=Limits(unanswered_resets_burst=200, unanswered_resets_per_second=0.0)) as serving:
        channel = serving.channel()
        flooding = await RawClient.connect(serving.port, from_host="127.0.0.2")
        for stream in range(1, 1000, 2):
            flooding.open(stream)
            flooding.message(stream, b"never")
            flooding.send(rst_stream(stream, ErrorCode.CANCEL))
        with suppress(ConnectionError):
            await flooding.read_to_end()
        assert serving.server.counters.reset_floods == 1
        call = serving.stream(channel)
        await call.write(b"others are served")
        assert await call.read() == b"others are served"
        await call.done_writing()
        await flooding.close()


async def test_streams_that_are_reset_after_their_answer_are_no_flood():
    async with opened("grpcio", limits=Limits(unanswered_resets_burst=20, unanswered_resets_per_second=0.0)) as serving:
        client = await RawClient.connect(serving.port)
        for stream in range(1, 201, 2):
            await reset_when_answered(client, stream)
        assert await client.echo(201, b"still here") == b"still here"
        assert serving.server.counters.reset_floods == 0
        await client.close()


async def test_streams_that_wait_at_the_end_of_the_server_do_not_keep_it():
    async with opened("grpcio") as serving:
        flooding = await RawClient.connect(serving.port)
        for stream in range(1, 2 * STREAMS, 2):
            flooding.open(stream)
            flooding.message(stream, b"never")
        await flooding.writer.drain()
        await serving.log.until_received(1)
        async with asyncio.timeout(20):
            await serving.server.stop()
        await flooding.close()
