"""The task in which a stream awaits what its session waits for. Not compiled: mypyc cancels coroutines by a deprecated call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from endpick.transport.h2.stream import Stream
from endpick.transport.h2.streams import Streams


def begin_to_await(waiting: Awaitable[object], stream: Stream, streams: Streams, flush: Callable[[], None]) -> None:
    """Await something in a task, which becomes that of the stream; then tell `Streams` of the result, and call `flush`."""
    task = asyncio.get_running_loop().create_task(_settle(waiting, stream, streams, flush))
    if asyncio.iscoroutine(waiting):  # one whose task is cancelled before its first step never runs, and Python warns of that
        task.add_done_callback(lambda _: waiting.close())
    stream.task = task


async def _settle(waiting: Awaitable[object], stream: Stream, streams: Streams, flush: Callable[[], None]) -> None:
    try:
        result = await waiting
    except asyncio.CancelledError as error:
        if stream.session is None:
            raise
        streams.fail(stream, error)
    except GeneratorExit:
        raise
    except BaseException as error:  # also one of a kind that no library here knows: the gateway waits for an answer
        streams.fail(stream, error)
    else:
        streams.resume(stream, result)
    flush()
