"""A model server that answers at once, on every loopback address: completions, streamed or not, and a metrics page."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from benchmarks.extproc.messages import ANSWER, EVENT, LAST_EVENTS
from benchmarks.scrape import short_page

PAGE = b"""\
vllm:num_requests_waiting{model_name="llama"} 3
vllm:num_requests_running{model_name="llama"} 5
vllm:kv_cache_usage_perc{model_name="llama"} 0.4
vllm:cache_config_info{block_size="16",num_gpu_blocks="4096"} 1
"""
CHUNKS = 80
EVERY_SECONDS = 0.005
"""Between the chunks of a streamed answer: long enough that the gateway passes on each by itself."""

_PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n%s"
_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Answering(asyncio.Protocol):
    """As much of HTTP/1.1 as Envoy and a collector make use of: one request at a time, lengths or chunks."""

    page = PAGE
    changes = False
    scrapes = 0

    def __init__(self) -> None:
        self._received = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, separator, body = self._received.partition(b"\r\n\r\n")
        if separator and _is_whole(head.lower(), body):
            self._received = b""
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            Answering.scrapes += 1
            page = self.page + b"scrapes_total %d\n" % self.scrapes if self.changes else self.page
            self._transport.write(_PLAIN % (b"text/plain", len(page), page))
        elif b'"stream":true' in body:
            self._transport.write(_STREAM)
            self._send_event(CHUNKS)
        else:
            self._transport.write(_PLAIN % (b"application/json", len(ANSWER), ANSWER))

    def _send_event(self, left: int) -> None:
        if self._transport.is_closing():
            return
        event = EVENT if left else LAST_EVENTS
        self._transport.write(b"%x\r\n%s\r\n" % (len(event), event) + (b"" if left else b"0\r\n\r\n"))
        if left:
            asyncio.get_running_loop().call_later(EVERY_SECONDS, self._send_event, left - 1)


def _is_whole(head: bytes, body: bytes) -> bool:
    if b"transfer-encoding: chunked" in head:
        return body.endswith(b"0\r\n\r\n")
    _, found, rest = head.partition(b"content-length:")
    return len(body) >= (int(rest.partition(b"\r\n")[0]) if found else 0)


@contextmanager
def model_server(core: int, *, long_page: bool = False, changes: bool = False) -> Iterator[int]:
    """The port of one in a process of its own, for as long as the block lasts.

    Its metrics page has four lines, or 3 KB of vLLM's, and is the same every time unless it `changes`.
    """
    flags = [*(["--long-page"] if long_page else []), *(["--changes"] if changes else [])]
    command = [sys.executable, "-m", "benchmarks.model_server", "--core", str(core), *flags]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline())


async def serve() -> None:
    """Until the input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "0.0.0.0", 0)  # 127/8 is a lot of addresses
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--long-page", action="store_true")
    parser.add_argument("--changes", action="store_true")
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    if options.long_page:
        Answering.page = short_page()
    Answering.changes = options.changes
    uvloop.run(serve())


if __name__ == "__main__":
    main()
