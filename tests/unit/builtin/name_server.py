"""A name server over real sockets, UDP and TCP on one port, that answers from a list of records."""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

A, CNAME, AAAA, SRV = 1, 5, 28, 33


def name_bytes(name: str) -> bytes:
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


def record(name: str, kind: int, ttl: int, value: str, port: int = 0, priority: int = 0) -> tuple[str, bytes]:
    """A record in the words of a zone file, and as bytes."""
    if kind == SRV:
        data = struct.pack("!HHH", priority, 1, port) + name_bytes(value)
    else:
        data = name_bytes(value) if kind == CNAME else ipaddress.ip_address(value).packed
    return name, name_bytes(name) + struct.pack("!HHIH", kind, 1, ttl, len(data)) + data


@dataclass
class NameServer(asyncio.DatagramProtocol):
    """What it answers can be changed at any time."""

    records: list[tuple[str, bytes]] = field(default_factory=list)
    status: int = 0
    truncates: bool = False
    lies: bool = False
    """Whether a forged answer to another question comes before the right one."""
    knows_all: bool = True
    """Whether it answers with all records also for a name of which it has none, as no real server does."""
    asked: int = 0
    by_stream: int = 0
    port: int = 0
    transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr) -> None:
        assert self.transport is not None
        self.asked += 1
        if self.lies:
            self.transport.sendto(b"nonsense", addr)
            self.transport.sendto(self.answer(bytes([data[0] ^ 1]) + data[1:]), addr)
        self.transport.sendto(self.answer(data, cut=self.truncates), addr)

    def answer(self, asked: bytes, *, cut: bool = False) -> bytes:
        """All records, whatever was asked: a real server sends those of aliases and targets along, too."""
        flags = 0x8000 | (0x0200 if cut else 0) | self.status
        is_known = self.knows_all or any(data.startswith(asked[12:-4]) for _, data in self.records)
        kept = self.records if is_known and not cut else []
        return asked[:2] + struct.pack("!HHHHH", flags, 1, len(kept), 0, 0) + asked[12:] + b"".join(data for _, data in kept)

    async def stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.by_stream += 1
        asked = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        answer = self.answer(asked)
        writer.write(len(answer).to_bytes(2, "big") + answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def answering(server: NameServer) -> AsyncIterator[NameServer]:
    streams = await asyncio.start_server(server.stream, "127.0.0.1", 0)
    server.port = streams.sockets[0].getsockname()[1]
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: server, local_addr=("127.0.0.1", server.port))
    try:
        yield server
    finally:
        transport.close()
        streams.close()
        await streams.wait_closed()
