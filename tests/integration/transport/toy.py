"""A session controlled by its messages, and its log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

from endpick.extproc.stream import GrpcStatus, ProtocolError, StreamSession
from endpick.requests.model import CloseCause


@dataclass
class Log:
    """The events of all toy sessions; tests wait for entries instead of sleeping."""

    causes: list[CloseCause] = field(default_factory=list)
    received: list[bytes] = field(default_factory=list)
    opened: int = 0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _notifications: set[asyncio.Task[None]] = field(default_factory=set)

    def note(self) -> None:
        task = asyncio.get_running_loop().create_task(self._notify())
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def until_closed(self, count: int) -> list[CloseCause]:
        """The close causes, once `count` sessions have ended."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.causes) >= count)
        return self.causes

    async def until_received(self, count: int) -> list[bytes]:
        """The messages, once `count` have arrived."""
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(lambda: len(self.received) >= count)
        return self.received


class ToySession:
    """Echoes, except: `later:X`, `never`, `broken`, `raise`, `refuse:N`, `finish`, `reply:N`, `split:N`."""

    def __init__(self, log: Log) -> None:
        self.waiting: Awaitable[object] | None = None
        self.finished = False
        self._log = log
        log.opened += 1

    def receive(self, message: bytes) -> Sequence[bytes]:
        self._log.received.append(message)
        self._log.note()
        verb, _, rest = message.partition(b":")
        match verb:
            case b"later" | b"never" | b"broken":
                self.waiting = self._decide(verb, rest)
                return ()
            case b"raise":
                raise ValueError("a bug")
            case b"refuse":
                raise ProtocolError(GrpcStatus(int(rest)), "not like this: 100% ü")
            case b"finish":
                self.finished = True
            case b"reply":
                return (b"r" * int(rest),)
            case b"split":
                return tuple(b"%d" % number for number in range(int(rest)))
        return () if self.waiting is not None else (message,)

    async def _decide(self, verb: bytes, rest: bytes) -> bytes:
        await asyncio.sleep(0)
        if verb == b"never":
            await asyncio.Event().wait()
        if verb == b"broken":
            raise RuntimeError("no tokenizer")
        return rest

    def resume(self, result: object) -> Sequence[bytes]:
        self.waiting = None
        return (b"resumed:" + bytes(result),)  # type: ignore[call-overload]

    def fail(self, exception: BaseException) -> Sequence[bytes]:
        self.waiting = None
        self.finished = True
        return (f"failed:{exception}".encode(),)

    def close(self, cause: CloseCause) -> None:
        self._log.causes.append(cause)
        self._log.note()


def toy_sessions(log: Log):
    """A factory of sessions that share a log."""

    def open_session() -> StreamSession:
        return ToySession(log)

    return open_session
