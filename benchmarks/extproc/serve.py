"""The server under load: one transport, one kind of session. Prints its port and serves until its input ends."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import time
from collections.abc import Awaitable, Mapping, Sequence

import uvloop

from endpick.extproc.session import session_factory
from endpick.extproc.stream import SessionFactory
from endpick.host.telemetry import NullTelemetry
from endpick.requests.model import CloseCause, Decision, IncomingRequest, Routed
from endpick.requests.response import BodilessExchange
from endpick.transport.listener import ListenSettings
from endpick.transport.methods import ext_proc_methods
from endpick.transport.server import open_server


class EchoSession:
    """Answers each message with itself: what is left is the transport."""

    waiting: Awaitable[object] | None = None
    finished = False

    def receive(self, message: bytes) -> Sequence[bytes]:
        return (message,)

    def resume(self, result: object) -> Sequence[bytes]:
        return ()

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        return ()

    def close(self, cause: CloseCause) -> None:
        pass


class OneEndpoint:
    """Routes everything to the same place: what is left is transport and protocol."""

    def __init__(self, destination: str) -> None:
        self._routed = Routed((destination,), BodilessExchange("", 0.0, NullTelemetry(), time.monotonic))

    def wants_body(self, headers: Mapping[str, str]) -> bool:
        return True

    def decide(self, incoming: IncomingRequest) -> Decision:
        return self._routed


def sessions(kind: str, destination: str = "10.0.0.1:8000") -> SessionFactory:
    """A factory by the name of the kind; every kind but `echo` answers with as many messages as the real session."""
    return EchoSession if kind == "echo" else session_factory(OneEndpoint(destination))


async def serve(transport: str, kind: str, destination: str) -> None:
    settings = ListenSettings(host="127.0.0.1", port=0)
    server = open_server("grpcio" if transport == "grpcio" else "h2", settings, ext_proc_methods(sessions(kind, destination)))
    print(await server.start(), flush=True)
    gc.freeze()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", choices=("h2", "grpcio"), required=True)
    parser.add_argument("--session", choices=("echo", "trivial"), required=True)
    parser.add_argument("--destination", required=True)
    parser.add_argument("--core", type=int, required=True)
    options = parser.parse_args()
    os.sched_setaffinity(0, {options.core})
    uvloop.run(serve(options.transport, options.session, options.destination))


if __name__ == "__main__":
    main()
