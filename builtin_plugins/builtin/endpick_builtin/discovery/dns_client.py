"""Asks name servers: over UDP, and over TCP where an answer does not fit; the next server where one does not answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from endpick_builtin.discovery.dns_messages import Answer, MessageError, RecordType, Status, answers, is_truncated, question, reading

ANSWER_SECONDS = 2.0
PORT = 53
TURN_SECONDS = 0.002
"""After which everything else has a turn."""
REST_PER_TURN = 3
"""So many times as long as a turn took the next one waits."""
RESOLV_CONF = Path("/etc/resolv.conf")


class LookupFailedError(Exception):
    """No name server could say; the message says why of each."""


def servers_of(resolv_conf: Path = RESOLV_CONF) -> tuple[str, ...]:
    """The name servers of a `resolv.conf`; the local one where it names none, as libc does it. Reads a file."""
    try:
        lines = resolv_conf.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    words = [line.split() for line in lines]
    return tuple(each[1] for each in words if len(each) > 1 and each[0] == "nameserver") or ("127.0.0.1",)


async def look_up(servers: Sequence[tuple[str, int]], name: str, kind: RecordType) -> Answer:
    """What the first server that knows says: records, or that there are none.

    Raises:
        LookupFailedError: no server knows.
    """
    why = []
    for server in servers:
        try:
            asked = question(secrets.randbelow(65536), name, kind)
            async with asyncio.timeout(ANSWER_SECONDS):
                message = await _ask(server, asked)
            answer = await _read(message, asked)
        except TimeoutError:
            why.append(f"{server[0]} does not answer")
        except (OSError, MessageError, ValueError, asyncio.IncompleteReadError) as problem:  # a server may name what is no name
            why.append(f"{server[0]}: {problem}")
        else:
            if answer.status in (Status.NO_ERROR, Status.NO_SUCH_NAME):
                return answer
            why.append(f"{server[0]} answers with status {answer.status}")
    raise LookupFailedError(f"{name} cannot be looked up: {'; '.join(why)}")


async def _ask(server: tuple[str, int], asked: bytes) -> bytes:
    message = await _by_datagram(server, asked)
    return await _by_stream(server, asked) if is_truncated(message) else message


async def _read(message: bytes, asked: bytes) -> Answer:
    """An answer, with turns for everything else: one of 64 KiB has thousands of records.

    Raises:
        MessageError: it is none.
    """
    began = perf_counter()
    for answer in reading(message, asked):
        if answer is not None:
            return answer
        took = perf_counter() - began
        if took > TURN_SECONDS:
            await asyncio.sleep(took * REST_PER_TURN)
            began = perf_counter()
    raise AssertionError("the answer comes last")


class _Asking(asyncio.DatagramProtocol):
    """Waits for the datagram that answers; what answers something else is passed over, as it may be forged."""

    def __init__(self, asked: bytes, answered: asyncio.Future[bytes]) -> None:
        self._asked = asked
        self._answered = answered

    def datagram_received(self, data: bytes, _sender: object) -> None:
        """See `asyncio.DatagramProtocol`. A server may send without an end, so that a datagram is read elsewhere, and once."""
        if not self._answered.done() and answers(data, self._asked):
            self._answered.set_result(data)

    def error_received(self, exc: Exception) -> None:
        """See `asyncio.DatagramProtocol`: no server listens there."""
        if not self._answered.done():
            self._answered.set_exception(exc)


async def _by_datagram(server: tuple[str, int], asked: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Asking(asked, answered), remote_addr=server)
    try:
        transport.sendto(asked)
        return await answered
    finally:
        transport.close()


async def _by_stream(server: tuple[str, int], asked: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(len(asked).to_bytes(2, "big") + asked)
        size = int.from_bytes(await reader.readexactly(2), "big")
        return await reader.readexactly(size)
    finally:
        writer.transport.abort()
