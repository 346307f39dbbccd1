"""Asks name servers: over UDP, and over TCP where an answer does not fit; the next server where one does not answer."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path

from endpick_builtin.discovery.dns_messages import Answer, MessageError, RecordType, Status, question, read_answer

ANSWER_SECONDS = 2.0
PORT = 53
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
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await _ask(server, name, kind)
        except TimeoutError:
            why.append(f"{server[0]} does not answer")
        except (OSError, MessageError, ValueError, asyncio.IncompleteReadError) as problem:  # a server may name what is no name
            why.append(f"{server[0]}: {problem}")
        else:
            if answer.status in (Status.NO_ERROR, Status.NO_SUCH_NAME):
                return answer
            why.append(f"{server[0]} answers with status {answer.status}")
    raise LookupFailedError(f"{name} cannot be looked up: {'; '.join(why)}")


async def _ask(server: tuple[str, int], name: str, kind: RecordType) -> Answer:
    asked = question(secrets.randbelow(65536), name, kind)
    answer = await _by_datagram(server, asked)
    return await _by_stream(server, asked) if answer.truncated else answer


class _Asking(asyncio.DatagramProtocol):
    """Waits for the datagram that answers; what answers something else is passed over, as it may be forged."""

    def __init__(self, asked: bytes, answered: asyncio.Future[Answer]) -> None:
        self._asked = asked
        self._answered = answered

    def datagram_received(self, data: bytes, _sender: object) -> None:
        """See `asyncio.DatagramProtocol`."""
        try:
            answer = read_answer(data, self._asked)
        except MessageError:
            return
        if not self._answered.done():
            self._answered.set_result(answer)

    def error_received(self, exc: Exception) -> None:
        """See `asyncio.DatagramProtocol`: no server listens there."""
        if not self._answered.done():
            self._answered.set_exception(exc)


async def _by_datagram(server: tuple[str, int], asked: bytes) -> Answer:
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[Answer] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Asking(asked, answered), remote_addr=server)
    try:
        transport.sendto(asked)
        return await answered
    finally:
        transport.close()


async def _by_stream(server: tuple[str, int], asked: bytes) -> Answer:
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(len(asked).to_bytes(2, "big") + asked)
        size = int.from_bytes(await reader.readexactly(2), "big")
        return read_answer(await reader.readexactly(size), asked)
    finally:
        writer.transport.abort()
