"""Endpoint files that are none, and name servers that lie."""

from __future__ import annotations

import asyncio
import os
import struct
import sys
from collections.abc import Callable
from contextlib import suppress

from benchmarks.attempts.catalogue import CONFIG, Attempt, Target
from benchmarks.attempts.gateway import MEBIBYTE
from benchmarks.attempts.picker import ENDPOINTS
from benchmarks.attempts.posing import answering, hostile_entries, page, replace_endpoints, serving, write_endpoints
from benchmarks.extproc.plan import endpoints_file

_MOST = MEBIBYTE - 4096


async def files_that_are_none(target: Target) -> None:
    """The endpoint file is a FIFO, a directory, a link to itself, `/dev/zero`, gone, unreadable, 50 MB long, or half written."""
    path = target.folder / "endpoints.yaml"
    good = endpoints_file(ENDPOINTS, target.model_server_port).encode()
    while target.seconds_left() > 2:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        match target.rng.randrange(8):
            case 0:
                os.mkfifo(path)
            case 1:
                path.mkdir()
            case 2:
                path.symlink_to(path)
            case 3:
                path.symlink_to("/dev/zero")
            case 4:
                path.write_bytes(b"- a\n" * 12_500_000)
            case 5:
                path.write_bytes(good[: target.rng.randrange(len(good))])
            case 6:
                path.symlink_to(f"/proc/{target.pid}/mem")
        await asyncio.sleep(1.1)
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
    replace_endpoints(target, good)
    await asyncio.sleep(1.1)


async def texts_that_are_no_endpoints(target: Target) -> None:
    """Endpoint files with NUL, marks of UTF-16, tags, anchors, merges that circle or multiply, wrong ports and names, 10,000 entries."""
    good = endpoints_file(ENDPOINTS, target.model_server_port)
    aliases = "a0: &a0 {x: y}\n" + "".join(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 30))
    more = (
        "- {name: x, address: 10.0.0.1, port: 99999}\n- {name: y, address: '::ffff:1.2.3.4%eth0', port: '1'}\n",
        "- {name: x, address: 999.1.1.1, port: -1}\n- [a]\n- 7\n- ~\n- {<<: {<<: {name: q}}}\n",
        "- {name: e0, address: 10.0.0.1, port: '1'}\n- {name: \"\\e[2J\\nlevel\", address: 10.0.0.1, port: '1', oops: 1}\n",
        "- !!python/object/apply:os.system {name: z}\n- &a {name: w, labels: *a}\n",
        "".join(f"- {{name: n{n}, address: ':::{n}', port: '0'}}\n" for n in range(3000)),
    )
    contents = (
        b"\xff\xfe" + good.encode("utf-16"),
        b"\xef\xbb\xbf" + good.encode(),
        good.encode() + b"\0",
        (aliases + good).encode(),
        *((good + text).encode() for text in more),
        b"&a [*a]",
        b"endpoints: &a\n- *a\n",
        b"%YAML 9.9\n---\n" + good.encode(),
    )
    while target.seconds_left() > 2.5:
        replace_endpoints(target, target.rng.choice(contents))
        await asyncio.sleep(1.2)
    replace_endpoints(target, good.encode())
    await asyncio.sleep(1.2)


async def ten_thousand_endpoints(target: Target) -> None:
    """A file of a megabyte names 10,000 servers that answer, in the shortest way in which it can."""
    async with serving(answering(page(b"vllm:num_requests_waiting 1\n"))) as port:
        write_endpoints(target, hostile_entries(port, 9000))
        await asyncio.sleep(max(1, target.seconds_left() - 1))


async def a_megabyte_of_nodes(target: Target) -> None:
    """A file of a megabyte is half a million texts of one letter, or as many brackets, and is being read when the picker is to end."""
    parts = (b"a,", b"[],", b"{a},", b"- a\n", b"[")
    part = target.rng.choice(parts)
    replace_endpoints(target, b"x: [" + part * (_MOST // len(part)))
    await asyncio.sleep(max(1, target.seconds_left()))


_NAMES_PORT = 20_053
DISCOVERY = "- {name: endpoints, type: file-discovery, parameters: {path: endpoints.yaml, watchFile: true}}"


def by_name(records: str) -> str:
    """The usual configuration, but for a discovery that asks the name server of these attempts."""
    given = f"hostname: _h._tcp.a.test, records: {records}, nameserver: 127.0.91.8, nameserverPort: {_NAMES_PORT}, shortestInterval: 50ms"
    return CONFIG.replace(DISCOVERY, f"- {{name: endpoints, type: dns-discovery, parameters: {{{given}}}}}")


def record(kind: int, data: bytes, name: bytes = b"\xc0\x0c", ttl: int = 0) -> bytes:
    return name + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data


def good_records(target_port: int) -> list[bytes]:
    ips = [bytes((127, 0, 100, 100 + number)) for number in range(ENDPOINTS)]
    return [record(33, struct.pack("!HHH", 0, 0, target_port) + b"\x02g%c\x00" % (97 + n)) for n in range(ENDPOINTS)] + [
        record(1, ip, b"\x02g%c\x00" % (97 + n)) for n, ip in enumerate(ips)
    ]


def message(asked: bytes, records: list[bytes], flags: int = 0x8180, count: int | None = None) -> bytes:
    counts = struct.pack("!HHHHH", flags, 1, len(records) if count is None else count, 0, 0)
    return asked[:2] + counts + asked[12:] + b"".join(records)


class _NameServer(asyncio.DatagramProtocol):
    def __init__(self, answer: Callable[[bytes], list[bytes]]) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.DatagramTransport = transport  # type: ignore[assignment]

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        for each in self._answer(data):
            self._transport.sendto(each, addr)


async def name_server(target_seconds: float, answer: Callable[[bytes], list[bytes]], by_stream: Callable[[bytes], bytes]) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        if message := by_stream(asked):
            writer.write(message)
            await writer.drain()
        await asyncio.sleep(1)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _NameServer(answer), ("127.0.91.8", _NAMES_PORT))
    try:
        async with serving(serve, None, _NAMES_PORT, "127.0.91.8"):
            await asyncio.sleep(max(1.0, target_seconds))
    finally:
        transport.close()


async def names_that_lie(target: Target) -> None:
    """Answers are floods, cut short, circles of compression, aliases of themselves, 2800 addresses that flip, or silence."""
    good = good_records(target.model_server_port)
    loop_of_names = b"\x01a\xc0\x0c"

    def wide(asked: bytes) -> bytes:
        first = target.rng.randrange(200)
        return message(asked, good + [record(1, bytes((10, first, n >> 8, n & 255)), b"\x02ga\x00") for n in range(2800)])

    def answer(asked: bytes) -> list[bytes]:
        truth = message(asked, good)
        lies = (
            [truth[:40]] * 1000,
            [message(asked, [], 0x8380)],
            [message(asked, [record(5, loop_of_names, loop_of_names)] * 500)],
            [message(asked, [record(5, b"\xc0\x0c")])],
            [message(asked, good, count=65_535)],
            [asked[:2] + target.rng.randbytes(1400) for _ in range(300)],
            [asked] * 300,
            [],
            [message(asked, [], 0x8182)],
            [message(asked, [record(33, b"\0" * 6 + b"\xff" * 20)])],
        )
        return [*target.rng.choice(lies), truth] if target.rng.random() < 0.7 else [message(asked, [], 0x8380)]

    def by_stream(asked: bytes) -> bytes:
        whole = wide(asked)
        return target.rng.choice((len(whole).to_bytes(2, "big") + whole, b"\xff\xff" + whole[:100], b"", b"\0\0", b"\0\5abcde"))

    await name_server(target.seconds_left(), answer, by_stream)


ATTEMPTS = (
    Attempt(files_that_are_none),
    Attempt(texts_that_are_no_endpoints),
    Attempt(ten_thousand_endpoints),
    Attempt(a_megabyte_of_nodes),
    Attempt(names_that_lie, config=by_name("SRV"), until_serving="benchmarks.attempts.servers_discovery"),
)


async def _tell_the_truth(model_server_port: int) -> None:
    good = good_records(model_server_port)
    await name_server(600, lambda asked: [message(asked, good)], lambda _: b"")


if __name__ == "__main__":
    asyncio.run(_tell_the_truth(int(sys.argv[1])))
