"""A further picker that an attempt starts itself, for its TLS or for an end of its own; and one question as a gateway asks it."""

from __future__ import annotations

import asyncio
import os
import shlex
import ssl
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.attempts.catalogue import MAY_HOLD_SECONDS, Attempt, Target
from benchmarks.attempts.gateway import HELLO, answered, data, opened, request
from benchmarks.attempts.picker import Picker, picking
from benchmarks.siege.timeline import Timeline

PLAIN = request(b'{"model":"m","prompt":"who goes there"}')
_PICKED = b"x-gateway-destination-endpoint"
_LOOK_SECONDS = 0.02


@dataclass
class Second:
    """It, and what it is judged by once it has ended."""

    picker: Picker
    ends_with: tuple[int, ...] = (0,)
    """Further ones where the attempt has told it three times to end."""
    logs_whole_lines: bool = True
    """False where nothing takes its log."""
    told: list[str] = field(default_factory=list)
    """What was found."""

    def signal(self, number: int) -> None:
        """Send it, unless the process has ended."""
        self.picker.process.send_signal(number)

    async def ended(self, seconds: float) -> None:
        """Wait for the end of the process, and say so where it does not come."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.picker.process.poll() is None:  # noqa: ASYNC110 - a process that another thread may reap
                    await asyncio.sleep(_LOOK_SECONDS)
                return
        self.told.append(f"the second picker had not ended after {seconds:.0f} s")

    def judge(self) -> None:
        """Once it has ended: its exit code, its log, and the turns of its event loop."""
        if self.picker.exit_code not in self.ends_with:
            self.told.append(f"the second picker ended with {self.picker.exit_code}")
        if self.logs_whole_lines:
            self.told.extend(f"of the second picker {fault}" for fault in self.picker.faults())
        timeline = self.picker.folder / "timeline"
        longest = Timeline(timeline).longest_turn_seconds() if timeline.exists() else 0.0
        if longest > MAY_HOLD_SECONDS:
            self.told.append(f"a turn of the second picker took {longest * 1000:.0f} ms of processor time")


@asynccontextmanager
async def second(
    target: Target, *flags: str, files: Mapping[str, str] | None = None, config: str | None = None, before: str = ""
) -> AsyncIterator[Second]:
    """One like the target, told to end with SIGTERM after the block unless it has ended, and then judged.

    Args:
        target: of which it has the interpreter, the transport and the model servers.
        flags: beside the usual ones.
        files: in its working directory.
        config: another than the usual one.
        before: a line of shell that the process runs before it becomes endpick, such as a limit; `out` is its output where it says so.
    """
    words = command_of(target)
    transport = next(word.partition("=")[2] for word in words if word.startswith("--transport="))
    with tempfile.TemporaryDirectory(prefix="second") as place:
        interpreter, folder = _laid_out(Path(place), words[0], before)
        attempt = Attempt(_nothing, flags, files=files or {}, **({} if config is None else {"config": config}))
        starting = picking(attempt, folder, target.model_server_port, interpreter, transport, None)
        made = Second(await asyncio.to_thread(starting.__enter__))
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, made.picker.process.pid, 0)
        try:
            yield made
        finally:
            await asyncio.to_thread(starting.__exit__, None, None, None)
        made.judge()


def command_of(target: Target) -> list[str]:
    """How the target was started."""
    return [word for word in Path(f"/proc/{target.pid}/cmdline").read_text().split("\0") if word]


def _laid_out(place: Path, python: str, before: str) -> tuple[str, Path]:
    """An interpreter that does something first, and an empty working directory."""
    interpreter, folder = place / "python", place / "work"
    taken = "> out 2>&1" if " <out" in before else ""
    interpreter.write_text(f'#!/bin/bash\n{before}\nexec {shlex.quote(python)} "$@" {taken}\n')
    interpreter.chmod(0o755)
    folder.mkdir()
    return str(interpreter), folder


async def asked(port: int, tls: ssl.SSLContext | None = None, seconds: float = 10.0) -> bool:
    """Whether a request on a connection of its own gets its pick."""
    received = b""
    with suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=None if tls is None else "localhost")
            try:
                writer.write(HELLO + opened(1) + data(1, PLAIN))
                while _PICKED not in received and (piece := await reader.read(65_536)):
                    received += piece
            finally:
                writer.transport.abort()
    return _PICKED in received


async def probed(port: int, seconds: float = 2.0) -> bytes:
    """The first line with which `/healthz` answers; empty where it does not."""
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
                return (await answered(reader, seconds)).partition(b"\r\n")[0]
            finally:
                writer.transport.abort()
    return b""


def refused(questions: Iterator[bool] | list[bool], meanwhile: str) -> list[str]:
    """What is to be said of questions that were not all answered."""
    answers = list(questions)
    return [f"{answers.count(False)} of {len(answers)} requests were not answered {meanwhile}"] if not all(answers) else []


async def _nothing(_target: Target) -> None:
    """Stand in for what the second picker suffers, which its attempt does."""
