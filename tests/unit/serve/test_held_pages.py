"""Pages that are being sent: how much of them is kept for clients that take them slowly, and for those that go."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from endpick.serve.admin import AdminServer
from endpick.serve.admin_http import HeldPages, Page


class Taking:
    """A connection as `HeldPages` knows it."""

    def __init__(self) -> None:
        self.is_there = True

    def evict(self) -> None:
        self.is_there = False


def test_of_long_pages_that_are_taken_slowly_those_who_have_the_oldest_are_hung_up_on():
    held, taking = HeldPages(most_bytes=250), [Taking() for _ in range(5)]
    pages = [bytes(100), bytes(100), bytes(101), bytes(1000)]
    evicted = [held.hold(each, pages[page]) for each, page in zip(taking, (0, 0, 1, 2, 3), strict=True)]
    assert evicted == [0, 0, 0, 2, 2], "two shared the first page, and the last is longer than all may be"
    assert [each.is_there for each in taking] == [False, False, False, False, True]
    held.let_go(taking[4])
    assert held.hold(Taking(), pages[0]) == 0


@pytest.mark.asyncio
async def test_a_client_that_goes_amid_its_page_leaves_nothing_to_the_garbage_collector():
    pages: list[weakref.ref[Page]] = []

    async def page() -> Page:
        made = Page(bytes(8_000_000))
        pages.append(weakref.ref(made))
        return made

    server = AdminServer({"/long": page}, "127.0.0.1", 0)
    port = await server.start()
    gc.collect()
    gc.disable()
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /long HTTP/1.1\r\nhost: x\r\n\r\n")
        await reader.readexactly(100_000)
        assert pages[0]() is not None
        writer.transport.abort()
        async with asyncio.timeout(10):
            while pages[0]() is not None:  # noqa: ASYNC110 - what frees a page tells no event
                await asyncio.sleep(0)
    finally:
        gc.enable()
        await server.stop()
