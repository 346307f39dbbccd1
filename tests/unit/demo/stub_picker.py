"""Stands in for `endpick serve`: real ext_proc, and a pick by tenant or by lot, as the name of its config says."""

from __future__ import annotations

import asyncio
import re
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path
from random import Random

import orjson

from endpick.extproc.session import Session
from endpick.extproc.stream import CloseCause
from endpick.requests.decision import Decision, Metadata, Routed
from endpick.requests.incoming import IncomingRequest
from endpick.transport.server import ListenSettings, ext_proc_methods, open_server


class PassThrough:
    """An exchange that changes nothing."""

    wants_chunks = False

    def response_headers(self, headers: Mapping[str, str], served: str | None) -> Mapping[str, str]:
        return {}

    def response_chunk(self, chunk: bytes, end: bool) -> bytes | None:
        return None

    def response_metadata(self) -> Metadata:
        return {}

    def finish(self, cause: CloseCause) -> None:
        pass


class Director:
    """Sends a tenant always to the same endpoint, or every request anywhere."""

    def __init__(self, endpoints: list[str], *, by_tenant: bool) -> None:
        self._endpoints = endpoints
        self._by_tenant = by_tenant
        self._random = Random(0)

    def decide(self, incoming: IncomingRequest) -> Decision:
        number = self._random.randrange(len(self._endpoints))
        if self._by_tenant:
            system_prompt = orjson.loads(incoming.body or b"")["messages"][0]["content"]
            number = zlib.crc32(system_prompt.encode()) % len(self._endpoints)
        return Routed((self._endpoints[number],), PassThrough())


async def main(config: Path) -> None:
    found = re.findall(r'address: "([^"]+)", port: "(\d+)"', config.with_name("endpoints.yaml").read_text())
    director = Director([f"{address}:{port}" for address, port in found], by_tenant="prefix" in config.name)
    server = open_server("grpcio", ListenSettings("127.0.0.1", 0), ext_proc_methods(lambda: Session(director)))
    print("starting")
    print(orjson.dumps({"event": "serving", "ext_proc_port": await server.start()}).decode(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
