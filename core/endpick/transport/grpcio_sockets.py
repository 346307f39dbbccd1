"""The connections of a port as the operating system knows them, where a library has accepted them and tells little of them."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_DESCRIPTORS: Final = "/proc/self/fd"
_INFO_BYTES: Final = 256
_BYTES_RECEIVED: Final = struct.Struct("<Q")
_BYTES_RECEIVED_AT: Final = 128
"""In what Linux says of a TCP connection, `struct tcp_info`."""
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class PortSockets:
    """Finds the connections that one port of this process has accepted, by their inodes, which no two sockets share."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._known: dict[int, tuple[int, tuple[str, int] | None]] = {}
        """By descriptor: its inode, and the host and port of the client; None for all that is no connection of this port."""
        self.open_files = 0
        """How many descriptors this process had open at the last look."""

    def look(self) -> Mapping[int, tuple[int, tuple[str, int]]]:
        """Each connection by its inode: its descriptor, and the host and port of its client. Nothing where the system does not say."""
        try:
            descriptors = [int(name) for name in os.listdir(_DESCRIPTORS)]  # noqa: PTH208 - names are enough
        except OSError:
            return {}
        self.open_files = len(descriptors)
        known: dict[int, tuple[int, tuple[str, int] | None]] = {}
        found: dict[int, tuple[int, tuple[str, int]]] = {}
        for descriptor in descriptors:
            try:
                status = os.fstat(descriptor)
            except OSError:  # closed meanwhile, by a thread of the library
                continue
            before = self._known.get(descriptor)
            same = before is not None and before[0] == status.st_ino
            client = before[1] if before is not None and same else self._client_of(descriptor, status)
            known[descriptor] = status.st_ino, client
            if client is not None:
                found[status.st_ino] = descriptor, client
        self._known = known
        return found

    def _client_of(self, descriptor: int, status: os.stat_result) -> tuple[str, int] | None:
        if not stat.S_ISSOCK(status.st_mode):
            return None
        try:
            with _borrowed(descriptor) as sock:
                if sock.family in _FAMILIES and sock.getsockname()[1] == self._port:
                    host, port, *_ = sock.getpeername()
                    return host, port
        except OSError:  # gone, or the socket that listens
            return None
        return None


def open_files() -> int:
    """How many descriptors this process has open; 0 where the system does not say."""
    try:
        return len(os.listdir(_DESCRIPTORS))  # noqa: PTH208 - names are enough
    except OSError:
        return 0


def bytes_received(descriptor: int, inode: int) -> int | None:
    """What the system has received on a connection since it was made; None when it is gone, or the system does not say."""
    try:
        if os.fstat(descriptor).st_ino != inode:
            return None
        with _borrowed(descriptor) as sock:
            told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    except (OSError, AttributeError):
        return None
    return _BYTES_RECEIVED.unpack_from(told, _BYTES_RECEIVED_AT)[0] if len(told) >= _BYTES_RECEIVED_AT + _BYTES_RECEIVED.size else None


def hang_up(descriptor: int, inode: int) -> bool:
    """End a connection, so that the library that has it finds it closed; False when it is gone already."""
    try:
        own = os.dup(descriptor)  # which no other thread closes, and gives to another connection, between the next two lines
    except OSError:
        return False
    try:
        if os.fstat(own).st_ino != inode:
            return False
        with _borrowed(own) as sock:
            sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False
    finally:
        os.close(own)
    return True


@contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """A socket object for a descriptor that stays with its owner."""
    sock = socket.socket(fileno=descriptor)
    try:
        yield sock
    finally:
        sock.detach()
