"""Windows that are given and taken back while long replies are on their way, counted to the byte; and TLS that is taken up again."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from benchmarks.attempts.bodies import REWRITE
from benchmarks.attempts.catalogue import Attempt, Target
from benchmarks.attempts.connections_tls import authority, certified, client, clients, secure
from benchmarks.attempts.gateway import HELLO, answered, connected, data, opened, request
from benchmarks.attempts.posing import place
from benchmarks.attempts.second import PLAIN, Second, asked, refused
from benchmarks.attempts.streams import replies
from endpick.transport.h2 import frames
from endpick.transport.h2.frames import FrameType

_MOST = 2**31 - 1
_TEXT = b"0123456789abcdef"
_LONG = request(b'{"model":"m","prompt":"' + _TEXT * 60_000 + b'"}', {REWRITE: "another"})
_ANOTHER = b'{"model":"another","prompt":"' + _TEXT * 60_000 + b'"}'
_STREAMS = range(1, 17, 2)
_PICKED = b"x-gateway-destination-endpoint"


class _Counting:
    """What of a connection a client may be sent, as RFC 9113 has it, and what it was sent beyond that."""

    def __init__(self) -> None:
        self.connection = 65_535
        self.initial = 65_535
        self.streams = dict.fromkeys(_STREAMS, self.initial)
        self.announced: deque[int] = deque()
        """Initial windows that are not acknowledged yet."""
        self.granted = 0
        """Of the picker: what it may be sent."""
        self.granted_to: dict[int, int] = defaultdict(int)
        self.heard: dict[int, bytearray] = defaultdict(bytearray)
        self.ended = False
        self.wrong: list[str] = []
        self._buffer = b""

    def announce(self, window: int) -> bytes:
        self.announced.append(window)
        return frames.settings({4: window})

    def grow(self, stream_id: int, by: int) -> bytes:
        if stream_id:
            self.streams[stream_id] += by
        else:
            self.connection += by
        return frames.window_update(stream_id, by)

    def read(self, piece: bytes) -> None:
        self._buffer += piece
        while len(self._buffer) >= 9 and len(self._buffer) >= 9 + (length := int.from_bytes(self._buffer[:3], "big")):
            kind, flags, stream_id = self._buffer[3], self._buffer[4], int.from_bytes(self._buffer[5:9], "big")
            content, self._buffer = self._buffer[9 : 9 + length], self._buffer[9 + length :]
            if kind == FrameType.DATA:
                self.heard[stream_id] += content
                self.connection -= length
                self.streams[stream_id] -= length
                if length and (self.connection < 0 or self.streams[stream_id] < 0):
                    self.wrong.append(f"{length} bytes came where windows of {self.connection} and {self.streams[stream_id]} were left")
            elif kind == FrameType.WINDOW_UPDATE:
                self.granted_to[stream_id] += int.from_bytes(content, "big")
            elif kind == FrameType.SETTINGS and flags & 1 and self.announced:
                window = self.announced.popleft()
                for each in self.streams:
                    self.streams[each] += window - self.initial
                self.initial = window
            elif kind == FrameType.SETTINGS:
                for at in range(0, length, 6):
                    if content[at : at + 2] == b"\0\x04":
                        for each in _STREAMS:
                            self.granted_to[each] += int.from_bytes(content[at + 2 : at + 6], "big") - 65_535
            elif kind in (FrameType.GOAWAY, FrameType.RST_STREAM):
                self.ended = True


async def windows_that_are_taken_back(target: Target) -> Iterable[str]:
    """Eight replies of a megabyte while SETTINGS make windows negative and wide again: each byte is counted, and each reply is whole."""
    counting, unsent = _Counting(), {each: memoryview(_LONG) for each in _STREAMS}
    sent: dict[int, int] = defaultdict(int)
    async with connected(target.ext_proc_port) as (reader, writer), asyncio.timeout(20):
        writer.write(frames.PREFACE + counting.announce(0) + b"".join(map(opened, _STREAMS)))

        async def write() -> None:
            while unsent:
                for each, left in [*unsent.items()]:
                    room = min(
                        65_535 + counting.granted_to[each] - sent[each], 65_535 + counting.granted_to[0] - sent[0], len(left), 60_000
                    )
                    if room > 0:
                        writer.write(data(each, bytes(left[:room])))
                        sent[each], sent[0], unsent[each] = sent[each] + room, sent[0] + room, left[room:]
                        if room == len(left):
                            del unsent[each]
                await writer.drain()
                await asyncio.sleep(0.001)

        async def shake() -> None:
            for _ in range(40):
                await asyncio.sleep(0.02)
                writer.write(counting.announce(target.rng.choice((0, 1, 9, 16_384, 65_535, 300_000))))
                writer.write(counting.grow(0, target.rng.choice((1, 5000, 200_000))))
                writer.write(counting.grow(target.rng.choice(_STREAMS), target.rng.choice((1, 20_000))))
            writer.write(counting.announce(1 << 24) + counting.grow(0, 1 << 27))

        acting = asyncio.gather(write(), shake())
        while not (acting.done() and all(len(counting.heard[each]) > len(_ANOTHER) + 400 for each in _STREAMS)):
            if not (piece := await reader.read(1 << 16)):
                break
            counting.read(piece)
            if counting.ended:
                counting.wrong.append("the connection or a stream was ended")
                break
        await acting
    for each in _STREAMS:
        body = b"".join(reply.request_body.response.body_mutation.streamed_response.body for reply in replies(bytes(counting.heard[each])))
        if body != _ANOTHER:
            counting.wrong.append(f"of a body of {len(_ANOTHER)} bytes {len(body)} came, or others")
    return counting.wrong[:5]


async def windows_beyond_counting(target: Target) -> Iterable[str]:
    """SETTINGS make windows of replies that wait wider than HTTP/2 can count: each such connection ends, and what waits goes with it."""
    ended = 0

    async def overflown() -> None:
        nonlocal ended
        async with connected(target.ext_proc_port, source=f"127.0.4.{target.rng.randrange(1, 250)}") as (reader, writer):
            writer.write(frames.PREFACE + frames.settings({4: 0}) + b"".join(opened(each) + data(each, PLAIN) for each in _STREAMS))
            await answered(reader, 0.3)
            grown = b"".join(frames.window_update(each, target.rng.choice((2000, 5000, 70_000))) for each in _STREAMS)
            writer.write(grown + frames.settings({4: 0}) + frames.settings({4: _MOST}) + frames.settings({4: _MOST}))
            await answered(reader, 3, 1 << 20)
            ended += reader.at_eof() or reader.exception() is not None

    with suppress(OSError):
        await asyncio.gather(*(overflown() for _ in range(60)))
    return [] if ended > 30 else [f"the attempt was none: {ended} connections ended for it"]


def _greeted(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> tuple[bool, bool, ssl.SSLSession | None]:
    """Whether a request got its pick, whether the session was taken up again, and the one to take up next."""
    received = b""
    with (
        suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 3) as plain,
        context.wrap_socket(plain, server_hostname="localhost", session=session) as tls,
    ):
        tls.sendall(HELLO + opened(1) + data(1, PLAIN))
        while _PICKED not in received and (piece := tls.recv(65_536)):
            received += piece
        return _PICKED in received, bool(tls.session_reused), tls.session
    return False, False, None


def _versions() -> list[ssl.SSLContext]:
    contexts = [client(certified("a gateway", authority())) for _ in range(3)]
    contexts[1].maximum_version = contexts[2].maximum_version = ssl.TLSVersion.TLSv1_2
    contexts[2].options |= ssl.OP_NO_TICKET
    return contexts


async def _renewed(made: Second, content: str) -> None:
    """Replace the authority, and wait until both ports that ask for certificates have it."""

    def reloads() -> int:
        return (made.picker.folder / "log").read_text().count("has been reloaded")

    before = reloads()
    place(Path(made.picker.folder, "certs", "ca.crt"), content.encode())
    async with asyncio.timeout(15):
        while reloads() < before + 2:  # noqa: ASYNC110 - a file
            await asyncio.sleep(0.1)


async def tickets_of_an_authority_that_is_gone(target: Target) -> Iterable[str]:
    """Sessions of TLS 1.2 and 1.3, by ticket and by number, are taken up again hundreds of times, also once their authority is replaced."""
    other = certified("another authority")
    async with secure(target) as made:
        port, again = made.picker.ext_proc_port, 0
        for context in await asyncio.to_thread(_versions):
            picked, _, session = await asyncio.to_thread(_greeted, port, context, None)
            answers = [picked]
            taken = await asyncio.gather(*(asyncio.to_thread(_greeted, port, context, session) for _ in range(60)))
            answers += [each[0] for each in taken]
            again += sum(each[1] for each in taken)
            made.told += refused(answers, "on sessions that were taken up again")
            await _renewed(made, other.chain_pem)
            late = await asyncio.gather(*(asyncio.to_thread(_greeted, port, context, each[2] or session) for each in taken))
            if any(each[0] for each in late):
                made.told.append(f"{sum(each[0] for each in late)} clients of an authority that was replaced got in with old sessions")
            made.told += refused([await asked(port, client(certified("a gateway", other)))], "of the new authority")
            await _renewed(made, authority().chain_pem)
            made.told += refused([await asked(port, clients()["right"])], "of the authority that is trusted again")
        if again < 60:
            made.told.append(f"the attempt was none: {again} sessions were taken up again")
    return made.told


ATTEMPTS = (
    Attempt(windows_that_are_taken_back),
    Attempt(windows_beyond_counting, transports=("h2",)),
    Attempt(tickets_of_an_authority_that_is_gone, transports=("h2",)),
)
