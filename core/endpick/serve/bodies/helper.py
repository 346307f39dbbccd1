"""The helper process as `endpick serve` sees it: started, asked one thing at a time, and ended; no call holds the event loop."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from typing import Self

from pydantic import ValidationError

from endpick.requests.long_body import Body, LongBody, body_of
from endpick.serve.bodies.layout import Place, Received, places_in
from endpick.serve.bodies.wire import FRAME, MOST_HEAD_BYTES, BuildJob, Head, ParseJob, Spec

_PIECE_BYTES = 256 * 1024
"""Sent or received in one turn of the event loop."""
_BOOTSTRAP = """
import sys
sys.path[:] = {path!r}
import signal
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
from endpick.serve.bodies.child import main
main(*map(int, sys.argv[1:]))
"""
"""What ends a service, or has it reload, may tell all its processes, as systemd does. The parent decides what that means, and the body that
is being parsed is still to be answered; the helper ends with its parent.

With the parent's import path before the first import from it: so the same modules are found however the parent was started, and none in
the working directory, which Python puts first by itself."""
_END_SECONDS = 5.0
BUILD_SECONDS = 30.0
_MOST_ANSWERED = 8
"""Times the bytes of a body, and a MiB: what an answer to it may have. Token ids have twice as many as their text."""


class HelperEndedError(Exception):
    """The helper is of no more use: it ended, or said something that it never says."""


class ParserNotBuiltError(Exception):
    """The helper works, but cannot build this parser."""


@dataclass(frozen=True, slots=True)
class Told:
    """An answer of the helper.

    Attributes:
        head: What it is.
        pieces: See `Head`; without those of prompts with media and the body that was rewritten.
        prompts: Those with media, piece by piece, to be read when a plugin asks for them.
        body: The one that was rewritten.
    """

    head: Head
    pieces: tuple[bytes, ...]
    prompts: Received | None = None
    body: Body | None = None


class Helper:
    """One helper process."""

    def __init__(self, process: asyncio.subprocess.Process, channel: socket.socket) -> None:
        self._process = process
        self._channel = channel
        self._received = _Buffered(b"")
        self._built: dict[bytes, int] = {}

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether a helper that has nothing to say is gone: its socket tells at once, and the event loop when it has been waited for."""
        try:
            self._channel.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    @classmethod
    async def start(cls) -> Self:
        """Start a process that imports what this one would.

        Raises:
            OSError: there are no more processes or descriptors to be had.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                "-c",
                _BOOTSTRAP.format(path=[*map(str, sys.path)]),
                str(theirs.fileno()),
                str(os.getpid()),
                str(logging.getLogger().getEffectiveLevel()),
                stdin=asyncio.subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # numpy's idle threads would cost a tenth of a second each and map memory that parsing is then said to have taken.
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ},
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(process, ours)

    async def build(self, spec: Spec) -> tuple[int, Head | None]:
        """The number of this parser in the helper; with what the helper said, unless it had the parser already.

        Raises:
            HelperEndedError: the helper ended.
            ParserNotBuiltError: the parser does not load there, or cannot be built.
            TimeoutError: that took longer than `BUILD_SECONDS`.
        """
        key = pickle.dumps(spec)
        if key in self._built:
            return self._built[key], None
        async with asyncio.timeout(BUILD_SECONDS):
            told = await self._ask(BuildJob(spec), b"")
        if told.head.kind != "built":
            raise ParserNotBuiltError(told.head.problem)
        self._built[key] = len(self._built)
        return self._built[key], told.head

    async def parse(self, job: ParseJob, body: Body) -> Told:
        """What the parser makes of a body. Who stops waiting for it has to `kill` the helper: the rest of the answer is still to come.

        Raises:
            HelperEndedError: the helper ended.
        """
        return await self._ask(job, body)

    async def _ask(self, job: BuildJob | ParseJob, body: Body) -> Told:
        try:
            head = pickle.dumps(job)
            await self._send(FRAME.pack(len(head), len(body)) + head)
            await self._send(*body.pieces if isinstance(body, LongBody) else (body,))
            return await self._answer(_MOST_ANSWERED * len(body) + MOST_HEAD_BYTES)
        except (OSError, EOFError) as problem:
            raise HelperEndedError(await self._how_it_ended()) from problem
        except (ValidationError, _NonsenseError) as problem:
            raise HelperEndedError(f"it answered nonsense: {problem}") from problem

    async def _send(self, *content: bytes | bytearray | memoryview) -> None:
        loop, sent = asyncio.get_running_loop(), 0
        for each in content:
            whole = memoryview(each)
            for start in range(0, len(whole), _PIECE_BYTES):
                part = whole[start : start + _PIECE_BYTES]
                await loop.sock_sendall(self._channel, part)
                sent += len(part)
                if sent >= _PIECE_BYTES:
                    sent = 0
                    await asyncio.sleep(0)

    async def _answer(self, most_bytes: int) -> Told:
        head_bytes, piece_bytes = FRAME.unpack(await self._receive(FRAME.size))
        if head_bytes > MOST_HEAD_BYTES or piece_bytes > most_bytes:
            raise _NonsenseError(f"{head_bytes} bytes of head and {piece_bytes} bytes of pieces")
        head = Head.model_validate_json(await self._receive(head_bytes))
        if sum(head.pieces) != piece_bytes or min(head.pieces, default=0) < 0:
            raise _NonsenseError("pieces that do not add up")
        if len(head.pieces) < 2 * head.media + head.rewritten:
            raise _NonsenseError("pieces that are missing")
        sizes = [*head.pieces]
        rewritten = sizes.pop() if head.rewritten else 0
        content = sizes.pop() if head.media else 0
        pieces = [await self._receive(size) for size in sizes]
        prompts = await self._prompts(pieces.pop(), content) if head.media else None
        body = body_of([part async for part in self._parts(rewritten)]) if head.rewritten else None
        return Told(head, tuple(pieces), prompts, body)

    async def _prompts(self, layout: bytes, content: int) -> Received:
        """Prompts with media, each piece by itself: a picture of thirty megabytes is not cut out of something longer."""
        prompts: list[tuple[tuple[Place, bytes], ...]] = []
        try:
            for places in places_in(layout, content):
                pieces: list[tuple[Place, bytes]] = []
                for place in places:
                    pieces.append((place, await self._receive(place.size)))
                    if place.size >= _PIECE_BYTES:
                        await asyncio.sleep(0)
                prompts.append(tuple(pieces))
        except (ValueError, TypeError) as problem:
            raise _NonsenseError(f"prompts that cannot be read: {problem}") from problem
        return tuple(prompts)

    async def _receive(self, size: int) -> bytes:
        """So many bytes; gathered where they need not be copied once more at the end."""
        if size <= self._received.left:
            return self._received.take(size)
        gathered = BytesIO()
        async for part in self._parts(size):
            gathered.write(part)
        return gathered.getvalue()

    async def _parts(self, size: int) -> AsyncIterator[bytes]:
        """So many bytes as they come, with a turn for others after each read."""
        loop, missing = asyncio.get_running_loop(), size
        while missing > 0:
            if not self._received.left:
                self._received = _Buffered(await loop.sock_recv(self._channel, _PIECE_BYTES))
                if not self._received.left:
                    raise EOFError
                await asyncio.sleep(0)
            part = self._received.take(min(missing, self._received.left))
            missing -= len(part)
            yield part

    async def _how_it_ended(self) -> str:
        try:
            async with asyncio.timeout(_END_SECONDS):
                status = await self._process.wait()
        except TimeoutError:
            return "it closed its socket"
        return f"it was ended by {signal.Signals(-status).name}" if status < 0 else f"it ended with status {status}"

    async def end(self) -> None:
        """Close the socket, upon which the helper ends by itself; kill it where it does not."""
        self._channel.close()
        try:
            async with asyncio.timeout(_END_SECONDS):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    async def kill(self) -> None:
        """End it at once, whatever it does."""
        self._channel.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class _Buffered:
    """What one read gave, of which the beginning may be taken already."""

    __slots__ = ("_bytes", "left")

    def __init__(self, content: bytes) -> None:
        self._bytes = content
        self.left = len(content)

    def take(self, size: int) -> bytes:
        """The next bytes, of which no fewer are left; what follows is not copied for it."""
        start = len(self._bytes) - self.left
        self.left -= size
        return self._bytes[start : start + size]


class _NonsenseError(Exception):
    """The helper said something that it never says."""
