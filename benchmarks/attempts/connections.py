"""Sockets that mean harm: crowds, silence, halves, words of other protocols, and ends at bad moments."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack, suppress

from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.gateway import HELLO, answered, connected, data, frame, grpc, headers_message, opened
from benchmarks.attempts.second import PLAIN, asked, probed, refused, second
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import PREFACE, FrameType

_IP_BIND_ADDRESS_NO_PORT = 24
"""Of Linux; Python has no name for it."""
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)
_HALF = grpc([headers_message()])
"""A request whose body does not come."""
_GREETINGS = (
    b"GET /healthz HTTP/1.1\r\nhost: x\r\nupgrade: h2c\r\nconnection: upgrade, http2-settings\r\nhttp2-settings: AAMAAABk\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\nsec-websocket-key: eA==\r\n\r\n",
    b"POST /envoy.service.ext_proc.v3.ExternalProcessor/Process HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nffffffff\r\n",
    b"CONNECT 127.0.0.1:9 HTTP/1.1\r\n\r\n",
    b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + HELLO,
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x00\x0c" + bytes(12) + HELLO,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"\x80\x2e\x01\x03\x01\x00\x15\x00\x00\x00\x10" + bytes(40),
    b"SSH-2.0-x\r\n",
    b"\x05\x01\x00",
    b"EHLO x\r\n",
    b"*1\r\n$4\r\nPING\r\n",
    b"\0" * 4000,
    b"\xff" * 4000,
    b"GET " + b"/" * 70_000,
    PREFACE + PREFACE,
    PREFACE[:-1] + b"\r" + HELLO,
    PREFACE + b"GET / HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/1.1\r\nhost: x\r\n\r\n",
    PREFACE.lower(),
)


def ports(target: Target) -> tuple[int, int, int]:
    return target.ext_proc_port, target.health_port, target.metrics_port


def source_of(target: Target, most: int = 20) -> str:
    """One of so many addresses."""
    return f"127.3.{target.rng.randrange(most)}.1"


def knock(port: int, source: str, receive_bytes: int = 0) -> socket.socket:
    """A connection from an address of 127/8 whose handshake is not waited for."""
    made = socket.socket()
    made.setblocking(False)
    made.setsockopt(socket.IPPROTO_IP, _IP_BIND_ADDRESS_NO_PORT, 1)
    if receive_bytes:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    made.bind((source, 0))
    made.connect_ex(("127.0.0.1", port))
    return made


async def comings_and_goings(target: Target) -> None:
    """2000 connections to all ports that close, reset or half-close at once, some after a word."""
    words = (b"", HELLO[: target.rng.randrange(1, 24)], HELLO, HELLO + opened(1) + data(1, PLAIN), b"GET /metrics HTTP/1.1\r\n\r\n")
    for at in range(2000):
        with knock(target.rng.choice(ports(target)), source_of(target)) as made, suppress(OSError):
            made.send(target.rng.choice(words))
            match target.rng.randrange(3):
                case 0:
                    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                case 1:
                    made.shutdown(socket.SHUT_WR)
        if not at % 50:
            await asyncio.sleep(0)


async def knocks_at_the_port_of_probes(target: Target) -> None:
    """Connections to the port of metrics and health from 20 addresses as fast as may be: reset, ended, left after a word, or kept."""
    words = (b"", b"G", b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    kept = deque[socket.socket]()
    how = target.rng.randrange(4)
    for at in range(20_000):
        made = knock(target.metrics_port, source_of(target))
        with suppress(OSError):
            made.send(words[min(how, 2)])
            if target.rng.randrange(2):
                made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
        kept.append(made)
        while kept and (len(kept) > 2000 or how < 3):
            kept.popleft().close()
        if not at % 50:
            await asyncio.sleep(0)
    for made in kept:
        made.close()


async def crowds_that_stay(target: Target) -> None:
    """3000 connections from 20 addresses with nothing, half a preface, half a frame, a silent stream or half a message."""
    words = (b"", HELLO[:10], HELLO, HELLO + opened(1)[:20], HELLO + opened(1), HELLO + opened(1) + data(1, PLAIN[:30]))
    with ExitStack() as crowd:
        made = [crowd.enter_context(knock(target.ext_proc_port, source_of(target))) for _ in range(3000)]
        for at, each in enumerate(made):
            with suppress(OSError):
                each.send(target.rng.choice(words))
            if not at % 50:
                await asyncio.sleep(0)
        while target.seconds_left() > 1.5:
            for each in target.rng.sample(made, 300):
                with suppress(OSError):
                    each.send(target.rng.choice((b"\0", frame(FrameType.PING, bytes(8)), frame(FrameType.DATA, b"", 1))))
            await asyncio.sleep(0.3)


async def words_of_other_protocols(target: Target) -> None:
    """20 greetings (HTTP/1.1, upgrades, PROXY, TLS, SSH, prefaces that are almost right) to each port, at once or byte by byte."""

    async def greet(port: int, greeting: bytes, piece_bytes: int) -> None:
        with suppress(OSError):
            async with connected(port, source=source_of(target)) as (reader, writer):
                for at in range(0, min(len(greeting), 2000 * piece_bytes), piece_bytes):
                    if writer.is_closing():
                        return
                    writer.write(greeting[at : at + piece_bytes])
                    await asyncio.sleep(0)
                await answered(reader, 1.5)

    await asyncio.gather(*(greet(port, greeting, target.rng.choice((1, 7, 100_000))) for port in ports(target) for greeting in _GREETINGS))


async def halves_and_urgent_bytes(target: Target) -> None:
    """Connections that close one direction, or reset in the middle of a frame, with streams open; urgent data between frames."""
    whole = HELLO + b"".join(opened(at) + data(at, _HALF if at % 4 == 1 else PLAIN) for at in range(1, 80, 2))
    with ExitStack() as crowd:
        for _ in range(60):
            made = crowd.enter_context(knock(target.ext_proc_port, source_of(target)))
            with suppress(OSError):
                cut = target.rng.randrange(len(whole))
                made.send(whole[:cut])
                match target.rng.randrange(4):
                    case 0:
                        made.send(b"!", socket.MSG_OOB)
                        made.send(whole[cut:])
                    case 1:
                        made.shutdown(socket.SHUT_WR)
                    case 2:
                        made.shutdown(socket.SHUT_RD)
                        made.send(whole[cut:])
                    case _:
                        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
                        made.close()
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.5)


async def readers_of_nothing(target: Target) -> None:
    """40 connections that ask (requests, PINGs, SETTINGS, pages) and leave every answer in a socket of 2 KiB."""
    asking = (
        HELLO + b"".join(opened(at) + data(at, PLAIN) for at in range(1, 200, 2)),
        HELLO + frames.ping(b"who goes", ack=False) * 900,
        HELLO + frames.settings({4: 1 << 20, 5: 1 << 20}) * 90,
        HELLO + opened(1) + data(1, PLAIN) + b"".join(frames.window_update(0, 1) + frames.ping(bytes(8), ack=False) for _ in range(900)),
    )
    with ExitStack() as crowd:
        for at in range(40):
            admin = at % 8 == 7
            made = crowd.enter_context(knock(target.metrics_port if admin else target.ext_proc_port, source_of(target), 2048))
            saying = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n" * 60 if admin else target.rng.choice(asking)
            for begin in range(0, len(saying), 4096):
                with suppress(OSError):
                    made.send(saying[begin : begin + 4096])
                await asyncio.sleep(0.002)
        await asyncio.sleep(min(2.0, target.seconds_left()))


async def all_seats_of_the_small_ports(target: Target) -> None:
    """300 connections to health and metrics that stay: half requests, bodies without an end, silence, questions one after the other."""
    admin = (
        b"",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-a: ",
        b"POST /healthz HTTP/1.1\r\nhost: x\r\ncontent-length: 999999999\r\n\r\nx",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 30,
        b"GET /metrics HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n",
        b"GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n",
    )
    health = (b"", HELLO, HELLO + opened(1), HELLO + frames.ping(bytes(8), ack=False) * 100, HELLO[:23])
    with ExitStack() as crowd:
        made = [(crowd.enter_context(knock(target.metrics_port, source_of(target, 5))), admin) for _ in range(150)]
        made += [(crowd.enter_context(knock(target.health_port, source_of(target, 5))), health) for _ in range(150)]
        for _ in range(10):
            for each, words in made:
                with suppress(OSError):
                    each.send(target.rng.choice(words))
            await asyncio.sleep(min(0.3, target.seconds_left()))


async def descriptors_used_up(target: Target) -> Iterable[str]:
    """A second picker with 200 descriptors beside 400 connections to each of its ports: it answers probes, and then requests."""
    async with second(target, "--reserved-descriptors=64", before="ulimit -n 200") as made:
        picker = made.picker
        with ExitStack() as crowd:
            for at in range(1200):
                each = crowd.enter_context(
                    knock((picker.ext_proc_port, picker.health_port, picker.metrics_port)[at % 3], source_of(target, 6))
                )
                with suppress(OSError):
                    each.send(target.rng.choice((b"", HELLO, HELLO[:9], HELLO + opened(1))))
                if not at % 20:
                    await asyncio.sleep(0.01)
            probes = [await probed(picker.metrics_port) for _ in range(5)]
        await asyncio.sleep(1.5)
        made.told += refused([b" 200 " in probe for probe in probes], "by health while no descriptor was left")
        made.told += refused([await asked(picker.ext_proc_port) for _ in range(5)], "once descriptors were free again")
    return made.told


async def requests_in_single_bytes(target: Target) -> Iterable[str]:
    """A right request in pieces of 1 to 9 bytes on 12 connections, half of which end anywhere: the others get their pick."""
    whole = HELLO + opened(1) + data(1, PLAIN, target.rng.choice((1, 5, 6, 40, 16_384)))

    async def ask(stops: int) -> bool:
        async with connected(target.ext_proc_port) as (reader, writer):
            at = 0
            while at < stops:
                piece = target.rng.randrange(1, 10)
                writer.write(whole[at : min(at + piece, stops)])
                at += piece
                await asyncio.sleep(0)
            return b"x-gateway-destination-endpoint" in await answered(reader, 3, 2000) if stops == len(whole) else True

    asking = [ask(len(whole) if turn % 2 else target.rng.randrange(len(whole))) for turn in range(12)]
    return refused(await asyncio.gather(*asking), "though they were whole, in small pieces")


async def crowds_that_leave_at_once(target: Target) -> None:
    """120 connections from 12 addresses, each with 15 streams that wait, half there or answered, end at one moment."""
    with ExitStack() as crowd:
        made = [crowd.enter_context(knock(target.ext_proc_port, source_of(target, 12))) for _ in range(120)]
        for each in made:
            said = (opened(at) + data(at, target.rng.choice((_HALF, PLAIN, PLAIN[:40], b""))) for at in range(1, 30, 2))
            with suppress(OSError):
                each.send(HELLO + b"".join(said))
            await asyncio.sleep(0)
        await asyncio.sleep(0.5)
        for each in made:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)


async def addresses_without_a_pause(target: Target) -> None:
    """600 connections from 200 addresses that ask one request after the other, each reset once it has been asked."""
    turn = b"".join(opened(at) + data(at, PLAIN) + frames.rst_stream(at, 8) for at in range(1, 40, 2))
    with ExitStack() as crowd:
        made = [crowd.enter_context(knock(target.ext_proc_port, source_of(target, 200))) for _ in range(600)]
        for at, each in enumerate(made):
            with suppress(OSError):
                each.send(HELLO + turn)
            if not at % 10:
                await asyncio.sleep(0)
        await asyncio.sleep(min(1.0, target.seconds_left()))


ATTEMPTS = (
    Attempt(comings_and_goings),
    Attempt(knocks_at_the_port_of_probes),
    Attempt(crowds_that_stay),
    Attempt(words_of_other_protocols),
    Attempt(halves_and_urgent_bytes),
    Attempt(readers_of_nothing),
    Attempt(all_seats_of_the_small_ports),
    # "a probe goes unanswered until the next look where descriptors have run out".
    Attempt(descriptors_used_up, transports=("h2",)),
    Attempt(requests_in_single_bytes),
    Attempt(crowds_that_leave_at_once),
    # "On `--transport grpcio`, others wait for a flood of streams, and may lose some."
    Attempt(addresses_without_a_pause, transports=("h2",)),
)
