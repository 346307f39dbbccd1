"""WebSocket connections and bodies that stay open, through a real Envoy in every body mode."""

from __future__ import annotations

import os
import socket
from http.client import HTTPResponse

import pytest
from jh2.config import H2Configuration
from jh2.connection import H2Connection
from jh2.events import DataReceived, RemoteSettingsChanged, ResponseReceived
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode
from websockets.sync.client import connect

from endpick.requests.model import CloseCause
from integration.envoy import client

MODES = ["full_duplex", "streamed", "streamed_early", "buffered", "buffered_partial", "no_response_body", "no_bodies"]


@pytest.mark.parametrize("mode", MODES)
def test_frames_pass_both_ways_until_the_end(gateway, mode):
    test_id = gateway.new_id()
    director = gateway.picker.director
    url = f"ws://127.0.0.1:{gateway.envoy.ports[mode]}/v1/realtime"
    with connect(url, additional_headers={"x-test-id": test_id}, compression=None) as websocket:
        seen = director.wait_for(test_id, lambda seen: bool(seen.response_headers))
        assert seen.response_headers[":status"] == "101"
        for frame in ["hello", b"\x00\xff", os.urandom(300_000), "again"]:
            websocket.send(frame)
            assert websocket.recv(timeout=20) == frame
        assert seen.finishes == []  # in flight while it is open
        websocket.send("close")
        with pytest.raises(ConnectionClosed) as closed:
            websocket.recv(timeout=20)
        assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4000, "as asked")
    assert gateway.finished(test_id).finishes == [CloseCause.END]


@pytest.mark.parametrize("mode", ["full_duplex", "streamed", "buffered", "no_bodies"])
def test_frames_pass_in_an_extended_connect(gateway, mode):
    test_id = gateway.new_id()
    h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    with socket.create_connection(("127.0.0.1", gateway.envoy.ports[mode]), timeout=20) as connection:
        events = h2_events(h2, connection)
        h2.initiate_connection()
        next(event for event in events if isinstance(event, RemoteSettingsChanged))
        wanted = {":method": "CONNECT", ":protocol": "websocket", ":scheme": "http", ":path": "/v1/realtime", ":authority": "model"}
        # The model server speaks HTTP/1.1, where a key is required.
        handshake = {"sec-websocket-version": "13", "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==", "x-test-id": test_id}
        h2.send_headers(1, [*wanted.items(), *handshake.items()])
        response = next(event for event in events if isinstance(event, ResponseReceived))
        assert dict(response.headers)[":status"] == "200"
        h2.send_data(1, Frame(Opcode.TEXT, b"hello").serialize(mask=True))
        echo = next(event for event in events if isinstance(event, DataReceived))
        assert echo.data == Frame(Opcode.TEXT, b"hello").serialize(mask=False)
        assert gateway.picker.director.wait_for(test_id, lambda seen: bool(seen.response_headers)).finishes == []
    assert gateway.finished(test_id).finishes == [CloseCause.END]


def h2_events(h2: H2Connection, connection: socket.socket):
    """Events of the server, forever; sends what is due first."""
    while True:
        connection.sendall(h2.data_to_send())
        yield from h2.receive_data(connection.recv(65536))


@pytest.mark.parametrize("mode", ["full_duplex", "streamed", "streamed_early", "no_response_body", "no_bodies"])
def test_unread_body_that_stays_open_is_answered(gateway, mode):
    test_id = gateway.new_id()
    headers = {"x-test-id": test_id, "x-test-open": "1", "transfer-encoding": "chunked"}
    connection = client.send(gateway.envoy.ports[mode], "/duplex", headers)
    with connection:
        connection.sendall(b"5\r\nfirst\r\n")
        response = HTTPResponse(connection)
        response.begin()
        assert response.read(5) == b"first"
        connection.sendall(b"6\r\nsecond\r\n0\r\n\r\n")
        assert response.read() == b"second"
        response.close()
    seen = gateway.finished(test_id)
    assert seen.finishes == [CloseCause.END]
    assert seen.incoming.body is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("later", [{}, {"x-test-later": "0.05"}], ids=["at once", "later"])
def test_unread_body_arrives_whole(gateway, mode, later):
    test_id = gateway.new_id()
    body = [os.urandom(1000) for _ in range(300)]
    answer = client.read(client.send(gateway.envoy.ports[mode], "/echo", {"x-test-id": test_id, "x-test-open": "1", **later}, body))
    assert (answer.status, answer.body) == (200, b"".join(body))
    assert gateway.finished(test_id).finishes == [CloseCause.END]
