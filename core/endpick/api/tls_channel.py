"""TLS between a socket and the connection that speaks through it, in turns.

A handshake costs a millisecond of processor time before anything is known of its client, and a megabyte of records that hold nothing,
or one byte each, costs hundreds. The TLS of an event loop does all that has arrived at once, connection after connection, and everything
else waits. Here all of it stands in the queue of the port, but for short reads of clients whose records hold something.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, cast

from endpick.api.turns import LARGE_READ_BYTES, Turns

__all__ = ["MOST_HANDSHAKE_BYTES", "TlsChannel"]

_SHORT_PIECE_BYTES: Final = 4096
"""Decrypted at once of what holds little: 150 changes of the key, or 180 records of one byte."""
_RECORD_BYTES: Final = 16 * 1024
"""The longest that a record can hold."""
_LONG_PIECE_BYTES: Final = _RECORD_BYTES + 256
"""Of what holds much: a record."""
_PIECES_PER_TURN: Final = 4
MOST_HANDSHAKE_BYTES: Final = 24 * 1024
"""Of one client, unless told otherwise: ten large certificates. There is room for 130 small ones, which take 15 ms to read; OpenSSL would
read 570 at once."""
_BARREN_BYTES: Final = _RECORD_BYTES + 2048
"""So much may arrive and hold next to nothing: it may be the begin of a record."""
_MOST_ARRIVED_BYTES: Final = 64 * 1024
"""Kept for a turn; no more is read of the socket until it has come."""
_LATE_SECONDS: Final = 1.0
"""A timer that comes later than this tells of a process that stood still: what has arrived meanwhile is read first."""


class TlsChannel(asyncio.Protocol):
    """The protocol of a socket, and the transport of its guest.

    It has those methods of `asyncio.Transport` that guests call, and calls theirs of `asyncio.Protocol`: `connection_made` when the
    handshake is done.
    """

    def __init__(
        self,
        guest: asyncio.Protocol,
        context: ssl.SSLContext,
        handshake_seconds: float,
        turns: Turns,
        peer: str,
        failed: Callable[[bool], None],
        server: str = "",
        most_bytes: int = MOST_HANDSHAKE_BYTES,
    ) -> None:
        """Keep what is needed.

        Args:
            guest: Who speaks through it.
            context: Of the server, with its certificate; of the client, with whom it trusts.
            handshake_seconds: For the handshake.
            turns: The queue of the port.
            peer: In whose name it stands there.
            failed: Called, instead of any method of the guest, when the handshake comes to nothing, with whether the other side sent
                too much for one; not after `abort`.
            server: For the side of a client: name or address of the server that it asks.
            most_bytes: What the other side may send for the handshake.
        """
        self._guest = guest
        self._turns = turns
        self._peer = peer
        self._handshake_seconds = handshake_seconds
        self._most_handshake_bytes = most_bytes
        self._failed: Callable[[bool], None] | None = failed
        """None once the handshake is done or given up."""
        self._is_open = False
        """Whether the guest has been told of a connection."""
        self._is_closing = False
        """Nothing is sent any more."""
        self._reads = True
        """Whether what arrives is looked at."""
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._asks = bool(server)
        """Whether this is the side of the client, which begins the handshake, and gets the end of an answer with that of the socket."""
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=not server, server_hostname=server or None)
        self.problem: ssl.SSLError | None = None
        """What was wrong with the handshake, where it came to nothing for that."""
        self._is_at_end = False
        """Whether nothing follows what has arrived."""
        self._socket: asyncio.Transport
        self._has_socket = False
        self._timer: asyncio.TimerHandle | None = None
        self._arrived: deque[bytes | memoryview] = deque()
        self._arrived_bytes = 0
        self._piece_bytes = _SHORT_PIECE_BYTES
        self._handshake_bytes = 0
        """How much of the handshake has arrived."""
        self._barren_bytes = 0
        """How much has arrived that held next to nothing."""
        self._waits = False
        """For its turn."""
        self._paused = False
        """The guest wants nothing for now."""
        self._socket_paused = False
        self._may_write = True
        """Whether the socket takes what it is given."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is a connection; its client is to begin the handshake."""
        # uvloop's transports have the methods of asyncio.Transport without being its instances.
        self._socket, self._has_socket = cast("asyncio.Transport", transport), True
        if self._failed is None:
            self._socket.abort()
        else:
            self._wait_for_handshake(self._handshake_seconds, may_be_late=True)
            if self._asks:
                self._turns.join(self._greet, self._peer)

    def data_received(self, data: bytes) -> None:
        """Records, or parts of them."""
        if not self._reads:
            return
        self._arrived.append(data)
        self._arrived_bytes += len(data)
        if self._waits or self._paused:
            self._hold_back()
        elif self._is_read_at_once(len(data)):
            began_at = time.monotonic()
            self._take_turn()
            if self._turns.crowded:
                self._turns.took(time.monotonic() - began_at)
        else:
            self._join()

    def eof_received(self) -> bool:
        """The other side has closed the socket. The event loop closes it here, too, unless an answer has arrived that is to be read."""
        self._is_at_end = self._asks and bool(self._arrived)
        return self._is_at_end

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is closed."""
        self._stop_reading()
        self._is_closing = True
        if self._is_open:
            self._guest.connection_lost(exc)
        else:
            self._give_up()

    def pause_writing(self) -> None:
        """The client does not take what it is sent."""
        self._may_write = False
        if self._is_open:
            self._guest.pause_writing()

    def resume_writing(self) -> None:
        """The client takes what it is sent again."""
        self._may_write = True
        if self._is_open:
            self._guest.resume_writing()

    def write(self, data: bytes) -> None:
        """Send it after all that was written before."""
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[bytes | memoryview]) -> None:
        """Send all of them, one after another."""
        if self._is_closing:
            return
        try:
            for data in list_of_data:
                if data:
                    self._tls.write(data)
        except ssl.SSLError:  # what the client sent last has broken it
            self.abort()
        else:
            self._send()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """From how much on that the socket has not taken the guest is told to pause."""
        self._socket.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: object = None) -> object:
        """What the socket knows under this name; of TLS `sslcontext` and `ssl_object`."""
        of_tls = {"sslcontext": self._tls.context, "ssl_object": self._tls}
        return of_tls[name] if name in of_tls else self._socket.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """What the socket has not taken yet."""
        return self._socket.get_write_buffer_size()

    def pause_reading(self) -> None:
        """Hand on nothing until `resume_reading`."""
        self._paused = True

    def resume_reading(self) -> None:
        """Hand on what arrives again, and what has arrived."""
        self._paused = False
        self._read_on()

    def is_closing(self) -> bool:
        """Whether nothing is sent any more."""
        return self._is_closing or self._socket.is_closing()

    def can_write_eof(self) -> bool:
        """It can: TLS says that nothing follows, and then the socket does."""
        return True

    def write_eof(self) -> None:
        """Send what was written, and then the end; what still arrives is not even decrypted."""
        self._end()
        self._socket.write_eof()

    def close(self) -> None:
        """Send what was written, and then the end, and close."""
        self._end()
        self._socket.close()

    def abort(self) -> None:
        """Close at once. Before the handshake is done nothing is called after this."""
        self._wait_no_longer()
        self._failed = None
        self._stop_reading()
        self._is_closing = True
        if self._has_socket:
            self._socket.abort()

    def _wait_for_handshake(self, seconds: float, *, may_be_late: bool) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._require_handshake, loop.time() + seconds, may_be_late)

    def _require_handshake(self, due: float, may_be_late: bool) -> None:
        if may_be_late and asyncio.get_running_loop().time() - due > _LATE_SECONDS:
            self._wait_for_handshake(_LATE_SECONDS, may_be_late=False)
        else:
            self._give_up()
            self.abort()

    def _wait_no_longer(self) -> None:
        """The timer keeps this, and with it a hundred kilobytes of OpenSSL's."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self, *, too_long: bool = False) -> None:
        """The handshake comes to nothing."""
        self._wait_no_longer()
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(too_long)

    def _greet(self) -> None:
        if not self._is_closing and self._reads:
            self._shake_hands(0)

    def _is_read_at_once(self, size: int) -> bool:
        if not self._is_open or self._barren_bytes > _BARREN_BYTES or self._turns.exhausted:
            return False
        return size <= LARGE_READ_BYTES or not self._turns.scheduled

    def _join(self) -> None:
        self._waits = True
        self._turns.join(self._take_turn, self._peer)

    def _take_turn(self) -> None:
        self._waits = False
        for _ in range(_PIECES_PER_TURN):
            if self._arrived and not self._paused:
                self._take_piece()
            if not self._is_open or self._piece_bytes == _SHORT_PIECE_BYTES:
                break
        self._read_on()

    def _take_piece(self) -> None:
        """Decrypt a piece of what has arrived, and hand on what it holds."""
        piece = self._next_piece()
        self._incoming.write(piece)
        if not self._is_open and not self._shake_hands(len(piece)):
            return
        held, ended = self._decrypted()
        self._weigh(len(piece), len(held))
        if self._outgoing.pending:
            self._answer()
        if held:
            self._guest.data_received(held)
        if ended:
            self.close()

    def _next_piece(self) -> bytes | memoryview:
        piece = self._arrived.popleft()
        if len(piece) > self._piece_bytes:
            whole = memoryview(piece)
            piece = whole[: self._piece_bytes]
            self._arrived.appendleft(whole[self._piece_bytes :])
        self._arrived_bytes -= len(piece)
        return piece

    def _shake_hands(self, arrived_bytes: int) -> bool:
        """Go on with the handshake; whether it is done."""
        self._handshake_bytes += arrived_bytes
        if self._handshake_bytes > self._most_handshake_bytes:
            self._give_up(too_long=True)
            self.abort()
            return False
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._send()
            return False
        except ssl.SSLError as problem:
            self.problem = problem
            self._send()  # what is wrong with it
            self._give_up()
            self.close()
            return False
        self._wait_no_longer()
        self._failed, self._is_open = None, True
        self._guest.connection_made(cast("asyncio.Transport", self))
        return True

    def _decrypted(self) -> tuple[bytes, bool]:
        """What the piece holds, and whether nothing follows: the client has said so, or what it says is no TLS."""
        parts: list[bytes] = []
        try:
            while self._incoming.pending or self._tls.pending():
                part = self._tls.read(_RECORD_BYTES)
                if not part:
                    return b"".join(parts), True
                parts.append(part)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:
            return b"".join(parts), True
        return parts[0] if len(parts) == 1 else b"".join(parts), False

    def _weigh(self, arrived_bytes: int, held_bytes: int) -> None:
        """See whether the client sends what is worth a long piece, or a short read at once."""
        self._barren_bytes = min(2 * _BARREN_BYTES, max(0, self._barren_bytes + arrived_bytes - 4 * held_bytes))
        self._piece_bytes = _LONG_PIECE_BYTES if 2 * held_bytes > arrived_bytes else _SHORT_PIECE_BYTES

    def _answer(self) -> None:
        """Send what TLS answers by itself; a client that has it answer and takes nothing is let go."""
        if self._may_write:
            self._send()
        else:
            self.abort()

    def _send(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())

    def _read_on(self) -> None:
        """Join the queue for what has arrived, and have the socket read if that is not much."""
        if not self._reads:
            return
        if self._arrived and not self._paused and not self._waits:
            self._join()
        elif self._is_at_end and not self._arrived:
            self.close()
            return
        self._hold_back()

    def _hold_back(self) -> None:
        """Have the socket read no more than can be kept."""
        too_much = self._arrived_bytes > _MOST_ARRIVED_BYTES
        if too_much and not self._socket_paused:
            self._socket.pause_reading()
        elif self._socket_paused and not too_much:
            self._socket.resume_reading()
        self._socket_paused = too_much

    def _stop_reading(self) -> None:
        self._reads = False
        self._arrived.clear()
        self._arrived_bytes = 0

    def _end(self) -> None:
        """Say that nothing follows, and see that it is so."""
        if not self._is_closing:
            with suppress(ssl.SSLError):  # it wants to read that the client ends as well, which need not be waited for
                self._tls.unwrap()
            self._send()
        self._is_closing = True
        self._stop_reading()
        if self._socket_paused:  # else the end of the client would not be seen
            self._socket.resume_reading()
