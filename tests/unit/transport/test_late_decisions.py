"""A stream that closes in the moment of its decision: the closed session must learn of it, or its request counts as in flight forever."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from endpick.requests.model import CloseCause
from endpick.transport.grpcio import _SessionStream
from endpick.transport.h2 import frames
from endpick.transport.h2.connection import SocketConnection
from endpick.transport.h2.frames import ErrorCode
from endpick.transport.limits import Limits, TransportCounters
from endpick.transport.methods import Method
from unit.transport.peer import MESSAGE_HEAD, PATH, REQUEST, EchoSession, data, raw_headers

pytestmark = pytest.mark.asyncio


class LateSession(EchoSession):
    """Waits for `decision` from its first message on."""

    def __init__(self) -> None:
        super().__init__()
        self.decision: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.events: list[object] = []

    def receive(self, message: bytes):
        self.waiting = self.decision
        return ()

    def resume(self, result: object):
        self.events.append(result)
        return ()

    def close(self, cause: CloseCause) -> None:
        self.events.append(cause)


class FakeTransport:
    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def write(self, data: bytes) -> None:
        pass


@pytest.mark.parametrize("how", ["reset", "disconnect"])
async def test_h2_session_learns_of_a_decision_that_came_as_it_closed(how):
    session = LateSession()
    owner = SimpleNamespace(
        methods={PATH: Method(lambda: session)}, limits=Limits(), counters=TransportCounters(), opened=lambda _: None, closed=lambda _: None
    )
    connection = SocketConnection(owner)
    connection.connection_made(FakeTransport())
    connection.data_received(frames.PREFACE + frames.settings({}) + frames.SETTINGS_ACK + raw_headers(1, list(REQUEST.items())))
    connection.data_received(data(1, MESSAGE_HEAD.pack(0, 1) + b"x"))
    session.decision.set_result("decided")
    if how == "reset":
        connection.data_received(frames.rst_stream(1, ErrorCode.CANCEL))
    else:
        connection.connection_lost(None)
    assert session.events == [CloseCause(how)]
    await asyncio.sleep(0)
    assert session.events == [CloseCause(how), "decided"]


@pytest.mark.parametrize("is_decided", [True, False])
async def test_grpcio_session_learns_of_a_decision_that_came_as_it_closed(is_decided):
    session = LateSession()
    session.receive(b"x")
    conversation = _SessionStream(session, SimpleNamespace(read=asyncio.Event().wait), TransportCounters())
    running = asyncio.create_task(conversation.run())
    await asyncio.sleep(0)
    if is_decided:
        session.decision.set_result("decided")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    session.close(CloseCause.RESET)
    conversation.drop_decision()
    assert session.events == [CloseCause.RESET, *(["decided"] if is_decided else [])]
    assert session.decision.cancelled() is not is_decided
