"""Child processes that end with their parent, even if it is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from endpick_gateway.envoy import die_with_parent

DRAIN_SECONDS = 0.5  # until children get a second signal, which ends a drain
STOP_SECONDS = 5.0  # from then until they are killed

_POLL_SECONDS = 0.02

_LOG_TAIL_LINES = 15

T = TypeVar("T")


class Children:
    """Children that stop at the end of the `async with` block."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds the logs and is the working directory."""
        self._folder = folder
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._stop()

    async def start(self, name: str, arguments: Sequence[str | Path]) -> Child:
        """Start a process in a new session, so Ctrl-C reaches only the parent. Raises OSError."""
        log = self._folder / f"{name}.log"
        with log.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=die_with_parent(),
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def named(self, name: str) -> Child:
        """Return the child with a name; raises KeyError."""
        return {child.name: child for child in self._children}[name]

    async def watch(self) -> NoReturn:
        """Wait until a child ends. Raises ChildFailed."""
        waits = {asyncio.create_task(child.process.wait()): child for child in self._children}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        child = waits[done.pop()]
        raise child.failure(f"ended unexpectedly with status {child.process.returncode}")

    async def _stop(self) -> None:
        self._signal_all(signal.SIGTERM)
        waits = [asyncio.create_task(child.process.wait()) for child in self._children]
        if waits:
            await asyncio.wait(waits, timeout=DRAIN_SECONDS)
            self._signal_all(signal.SIGTERM)  # ends a drain
            await asyncio.wait(waits, timeout=STOP_SECONDS)
            self._signal_all(signal.SIGKILL)
            await asyncio.wait(waits)

    def _signal_all(self, signal_number: signal.Signals) -> None:
        for child in self._children:
            if child.process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.process.pid, signal_number)


@dataclass(frozen=True, slots=True)
class Child:
    """A child process with its output in a log file."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    async def wait_until_ready(self, probe: Callable[[], Awaitable[T | None]], timeout_seconds: float) -> T:
        """Call `probe` until it returns a result. Raises ChildFailed if the child ends or the timeout passes."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout_seconds
        while (result := await probe()) is None:
            if self.process.returncode is not None:
                raise self.failure(f"ended with status {self.process.returncode} before it was ready")
            if clock() > deadline:
                raise self.failure(f"was not ready within {timeout_seconds:.0f} s")
            await asyncio.sleep(_POLL_SECONDS)
        return result

    def output(self) -> str:
        """Return the text that the child has printed so far, errors included."""
        return self.log.read_text(errors="replace")

    def failure(self, event: str) -> ChildFailed:
        """Build the error for an event, with the end of the log."""
        tail = self.output().splitlines()[-_LOG_TAIL_LINES:]
        return ChildFailed("\n".join((f"{self.name} {event}", *(f"  | {line}" for line in tail))))


class ChildFailed(Exception):  # noqa: N818 - names the event
    """Raised if a child ended or did not become ready; the message ends with its log."""
