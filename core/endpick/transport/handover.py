"""Connections that a supervisor accepted for one of its workers."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from enum import Enum
from typing import Final

_MESSAGE_BYTES: Final = 64
_MOST_SOCKETS: Final = 1


class Port(Enum):
    """The port on which a connection was accepted; its value is sent with the connection."""

    EXT_PROC = b"e"
    HEALTH = b"h"


class Handover:
    """A worker's end: receives connections, and reports readiness and ended connections."""

    def __init__(self, control: socket.socket, port_numbers: dict[Port, int], number: int = 0) -> None:
        """`control` is a socket of type SOCK_SEQPACKET; `port_numbers` are the supervisor's; `number` is the worker's."""
        control.setblocking(False)
        self.number = number
        self.port_numbers = port_numbers
        self._control = control
        self._accepted: dict[Port, asyncio.Queue[socket.socket]] = {port: asyncio.Queue() for port in Port}

    def start(self, abandoned: Callable[[], None]) -> None:
        """Receive connections on the running loop; `abandoned` is called when the supervisor has ended."""
        self._abandoned = abandoned
        asyncio.get_running_loop().add_reader(self._control.fileno(), self._receive)

    async def accept(self, port: Port) -> socket.socket:
        """Wait for the next connection that the supervisor hands over for a port."""
        return await self._accepted[port].get()

    def ready(self, metrics_port: int) -> None:
        """Report readiness to the supervisor."""
        self._send(b"r%d" % metrics_port)

    def closed(self) -> None:
        """Report the end of an ext_proc connection to the supervisor."""
        self._send(b"-")

    def _send(self, message: bytes) -> None:
        try:
            self._control.send(message)
        except OSError:
            return  # the supervisor has ended, or counts a connection too many

    def _receive(self) -> None:
        try:
            message, numbers, _, _ = socket.recv_fds(self._control, _MESSAGE_BYTES, _MOST_SOCKETS)
        except BlockingIOError:
            return
        except OSError:
            message, numbers = b"", []
        if not message:
            asyncio.get_running_loop().remove_reader(self._control.fileno())
            self._abandoned()
            return
        for number in numbers:
            connection = socket.socket(fileno=number)
            connection.setblocking(False)
            self._accepted[Port(message)].put_nowait(connection)


def hand_over(control: socket.socket, port: Port, connection: socket.socket) -> bool:
    """Pass a connection to a worker, and close it here; returns False if the worker does not take it."""
    try:
        socket.send_fds(control, [port.value], [connection.fileno()])
    except OSError:
        return False
    connection.close()
    return True


def control_pair() -> tuple[socket.socket, socket.socket]:
    """Return the supervisor's end and the worker's inheritable end of a control socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    os.set_inheritable(theirs.fileno(), True)
    return ours, theirs
