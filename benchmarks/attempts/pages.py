"""What the metrics port answers: the page while labels and series change, and everything that can be asked of it, well or badly."""

from __future__ import annotations

import asyncio
import gzip
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import count

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.attempts.bodies import REWRITE
from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import HELLO, answered, connected, request
from benchmarks.attempts.streams import exchanged

_PAGE = b"GET /metrics HTTP/1.1\r\nHost: p\r\n"
_MOST_PAGE_BYTES = 8 << 20
_ASK = b"GET /healthz HTTP/1.1\r\nHost: p\r\n\r\n"
_names = count()


async def _told(target: Target, asked: bytes, seconds: float = 2.0) -> bytes:
    """What the port answers, until it is quiet or hangs up."""
    async with connected(target.metrics_port) as (reader, writer):
        writer.write(asked)
        return await answered(reader, seconds, 1 << 26)


async def _page(target: Target, *headers: bytes) -> bytes:
    """The body of a page that was asked for with these headers."""
    told = await _told(target, _PAGE + b"Connection: close\r\n" + b"".join(each + b"\r\n" for each in headers) + b"\r\n", 5)
    head, _, body = told.partition(b"\r\n\r\n")
    return gzip.decompress(body) if b"Content-Encoding: gzip" in head else body


def _unread(page: bytes) -> Sequence[str]:
    """What is wrong with a page, for a scraper."""
    try:
        seen = set[tuple[str, tuple[tuple[str, str], ...]]]()
        for family in text_string_to_metric_families(page.decode()):
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                if key in seen:
                    return [f"a page has the same sample twice: {key!r:.200}"]
                seen.add(key)
    except ValueError as problem:
        return [f"a page cannot be read: {problem!r:.200}"]
    return [f"a page has {len(page)} bytes"] if len(page) > _MOST_PAGE_BYTES else []


async def labels_without_number(target: Target) -> Iterable[str]:
    """Models, targets, fairness ids and objectives that change with each request, with quotes, line ends, NUL and halves of characters."""
    odd = ('"', "\\", "\n", "\r", "\x00", "\u2028", "😀" * 40, '{a="b"} 1\n# TYPE x gauge\nx 1', "e\u0301", "\u202e", "x" * 1000, "=", " ")
    payloads = []
    for _ in range(400):
        name = f"{next(_names)}{target.rng.choice(odd)}"
        headers = {"x-llm-d-inference-fairness-id": name, "x-llm-d-inference-objective": name, "x-request-id": name}
        headers |= {REWRITE: f"to-{name}"} if target.rng.random() < 0.5 else {}
        body = b'{"model":"m%d","prompt":"p"}' % next(_names)
        payloads.append(request(body, headers))
    await exchanged(target.ext_proc_port, payloads, 2)
    return _unread(await _page(target))


async def scrapers_that_do_not_read(target: Target) -> None:
    """Sixty clients with small buffers that ask for the page, again and again, and read nothing, or a byte now and then."""

    async def deaf() -> None:
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.setblocking(False)
        with raw, suppress(OSError, TimeoutError):
            loop = asyncio.get_running_loop()
            async with asyncio.timeout(2.5):
                await loop.sock_connect(raw, ("127.0.0.1", target.metrics_port))
                await loop.sock_sendall(raw, (_PAGE + b"\r\n") * target.rng.choice((1, 10, 17)))
                while True:
                    await asyncio.sleep(0.3)
                    await loop.sock_recv(raw, target.rng.choice((1, 4000)))

    await asyncio.gather(*(deaf() for _ in range(60)))


async def scrapers_that_read_all_they_can(target: Target) -> Iterable[str]:
    """Twelve clients that ask without a pause, plain and compressed, four at a time in one write, and whether each page can be read."""
    told: list[str] = []

    async def greedy() -> None:
        for _ in range(4):
            coding = target.rng.choice((b"gzip", b"identity", b"gzip;q=0", b"*", b"br, gzip;q=0.5", b"," * 9000))
            told.extend(_unread(await _page(target, b"Accept-Encoding: " + coding)))
            await _told(target, (_PAGE + b"Accept-Encoding: gzip\r\n\r\n") * 4, 0.5)

    await asyncio.gather(*(greedy() for _ in range(12)))
    return told


async def pages_while_series_change(target: Target) -> Iterable[str]:
    """The page asked for beside reloads, new models and endpoints that come and go, and whether each one can be read."""
    endpoints = (target.folder / "endpoints.yaml").read_text()
    lines = endpoints.splitlines(keepends=True)
    told: list[str] = []

    async def asks() -> None:
        for _ in range(3):
            bodies = [b'{"model":"n%d","prompt":"p"}' % next(_names) for _ in range(300)]
            await exchanged(target.ext_proc_port, [request(each) for each in bodies], 1)

    asking = asyncio.create_task(asks())
    try:
        for _ in range(5):
            os.kill(target.pid, signal.SIGHUP)
            (target.folder / "endpoints.yaml").write_text("".join(lines[: target.rng.randrange(4, len(lines) + 1)]))
            told += _unread(await _page(target, b"Accept-Encoding: gzip"))
    finally:
        (target.folder / "endpoints.yaml").write_text(endpoints)
        await asking
    return told


async def other_protocols(target: Target) -> Iterable[str]:
    """HTTP/2 with and without an upgrade, TLS, HTTP/0.9, WebSocket, CONNECT, PROXY, SMTP, noise, half a request; and a probe after each."""
    openings = [
        HELLO,
        HELLO[:20],
        b"GET /metrics\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 500,
        b"GET /metrics HTTP/1.1\r\nHost: p\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n"
        + HELLO,
        b"GET /healthz HTTP/1.1\r\nHost: p\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
        + b"\x81\x85" * 2000,
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: p\r\n\r\n" + b"x" * 9000,
        b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n" + _ASK,
        b"\r\n\r\n\r\n" + _ASK,
        b"EHLO x\r\n" * 100,
        b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n",
        b"GET /healthz HTTP/9.9\r\n\r\n",
        target.rng.randbytes(target.rng.randrange(1, 20_000)),
    ]
    told = await asyncio.gather(*(_told(target, each, 0.4) for each in openings))
    health = await _told(target, _ASK, 1)
    found = [] if health.startswith(b"HTTP/1.1 200") else [f"a probe afterwards was answered with {health[:40]!r}"]
    return found + [f"{openings[at][:30]!r} was answered with 500" for at, each in enumerate(told) if b"HTTP/1.1 500" in each]


async def requests_of_every_kind(target: Target) -> Iterable[str]:
    """Methods, paths, queries, encodings, ranges, conditions, lengths and bodies that contradict each other; none may end in 500."""
    methods = (b"GET", b"HEAD", b"POST", b"OPTIONS", b"TRACE", b"DELETE", b"M-SEARCH", b"get", b"PRI")
    paths = (b"/metrics", b"/healthz", b"/", b"/metrics/", b"//metrics", b"/%6detrics", b"/metrics%00", b"/../metrics", b"/metrics;a", b"*")
    queries = (b"", b"?name[]=" + b"x" * 9000, b"?" + b"&" * 12_000, b"?format=%00%ff", b"#f", b"?debug=true&name=up")
    extras = (
        b"Range: bytes=0-0,-1,5-\r\n",
        b"If-None-Match: *\r\nIf-Modified-Since: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
        b"Content-Length: 99999999999999999999\r\n",
        b"Content-Length: 5\r\nContent-Length: 6\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffff\r\n" + b"x" * 5000,
        b"Expect: 100-continue\r\nContent-Length: 1000000\r\n",
        b"Accept: application/openmetrics-text; version=1.0.0\r\n",
        b"Host: " + b"h" * 12_000 + b"\r\n",
        b"A: b\r\n" * 2500,
        b"A\0: \xff\r\n folded\r\n",
        b"Accept-Encoding: gzip\r\n" * 600,
        b"Connection: close, keep-alive\r\nKeep-Alive: timeout=9\r\n",
    )
    asked = [
        target.rng.choice(methods)
        + b" "
        + target.rng.choice(paths)
        + target.rng.choice(queries)
        + b" HTTP/1.%d\r\n" % target.rng.randrange(2)
        + target.rng.choice(extras)
        + b"\r\n"
        for _ in range(60)
    ]
    found = []
    for start in range(0, len(asked), 12):
        for at, told in enumerate(await asyncio.gather(*(_told(target, each, 0.3) for each in asked[start : start + 12]))):
            if b"HTTP/1.1 500" in told:
                found.append(f"{asked[start + at][:60]!r} was answered with 500")
    return found


async def requests_at_the_edges(target: Target) -> None:
    """Requests of 16 KiB and one byte more, in single bytes, sixteen and seventeen at once, endless, cut anywhere, on forty connections."""
    fill = 16 * 1024 - len(_PAGE) - 7
    edges = [_PAGE + b"A: " + b"x" * (fill + more) + b"\r\n\r\n" for more in (-1, 0, 1)]
    edges += [_ASK * 16, _ASK * 17, _ASK * 400, _ASK[: target.rng.randrange(len(_ASK))], b"GET /" + b"a" * 100_000]

    async def slowly(asked: bytes) -> None:
        async with connected(target.metrics_port) as (reader, writer):
            for each in asked[:40]:
                writer.write(bytes([each]))
                await asyncio.sleep(0.03)
            await answered(reader, 0.3)

    await asyncio.gather(*(_told(target, target.rng.choice(edges), 1) for _ in range(20)), *map(slowly, [_PAGE, _ASK] * 10))


async def clients_that_go_amid_the_page(target: Target) -> None:
    """Three hundred connections that ask and are reset at once, half closed, or closed after some bytes, plain or compressed."""

    async def goes() -> None:
        async with connected(target.metrics_port) as (reader, writer):
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.write(_PAGE + target.rng.choice((b"", b"Accept-Encoding: gzip\r\n")) + b"\r\n")
            match target.rng.randrange(3):
                case 0:
                    await writer.drain()
                case 1:
                    writer.write_eof()
                    await answered(reader, 0.3, 10)
                case 2:
                    await answered(reader, 0.3, target.rng.choice((1, 70_000)))

    for _ in range(10):
        await asyncio.gather(*(goes() for _ in range(30)), return_exceptions=True)


_ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 9_000_000,
    b"HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 503 \x1b[2J\x1b]0;x\x07\r\nContent-Length: 9\r\n\r\n\x1b[31mred\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 20\r\n\r\n" + gzip.compress(b"\0" * 1000)[:20],
    b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 90_000,
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 90_000,
    b"HTTP/1.1 99999999999999999999 x\r\n\r\n",
    b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nendpick_plugin_circuit_state{plugin="\x1b[2J\n",type="\xff"} 2\n' * 2000,
    b"\0" * 100_000,
    b"",
)


async def doctor_and_what_answers_it(target: Target) -> Iterable[str]:
    """`endpick doctor --serving` asks servers that lie, never end, redirect and command the terminal; it has to end in order."""
    answer = target.rng.choice(_ANSWERS)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            await reader.read(1000)
            writer.write(answer)
            await writer.drain()
            await reader.read()
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        command = (sys.executable, "-m", "endpick", "doctor", "--serving", url)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
        try:
            async with asyncio.timeout(60):
                output, _ = await process.communicate()
        except TimeoutError:
            process.kill()
            return [f"doctor did not end after a minute of {answer[:40]!r}"]
    if b"Traceback" in output or b"\x1b" in output or process.returncode not in (0, 4):
        return [f"doctor said of {answer[:40]!r}, and ended with {process.returncode}: {output[-200:]!r}"]
    return []


ATTEMPTS = (
    Attempt(labels_without_number),
    Attempt(scrapers_that_do_not_read),
    Attempt(scrapers_that_read_all_they_can),
    Attempt(pages_while_series_change),
    Attempt(other_protocols),
    Attempt(requests_of_every_kind),
    Attempt(requests_at_the_edges),
    Attempt(clients_that_go_amid_the_page),
    Attempt(doctor_and_what_answers_it),
)
