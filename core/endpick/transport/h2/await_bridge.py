"""The task in which a stream awaits what its session waits for. Not compiled: mypyc cancels coroutines by a deprecated call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from endpick.requests.waiting import LaterDecision, close_with
from endpick.transport.h2.stream import Stream
from endpick.transport.h2.streams import Streams


def begin_to_await(waiting: Awaitable[object], stream: Stream, streams: Streams, flush: Callable[[], None]) -> None:
    """Await something in a task, which becomes that of the stream; then tell `Streams` of the result, and call `flush`.

    A request that waits for its turn needs no task: ten thousand may.
    """
    if isinstance(waiting, LaterDecision):
        waiting.deliver(_Delivery(stream, streams, flush))
        stream.task = waiting
        return
    task = asyncio.get_running_loop().create_task(_settle(waiting, stream, streams, flush))
    close_with(task, waiting)
    stream.task = task


class _Delivery:
    """Where the decision goes about a request that waits; a function with the same variables takes four times the memory."""

    __slots__ = ("_flush", "_stream", "_streams")

    def __init__(self, stream: Stream, streams: Streams, flush: Callable[[], None]) -> None:
        self._stream = stream
        self._streams = streams
        self._flush = flush

    def __call__(self, result: object, error: BaseException | None) -> None:
        if error is None:
            self._streams.resume(self._stream, result)
        else:
            self._streams.fail(self._stream, error)
        self._flush()


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
