"""Connects a picker's exchange with the state store. Decisions never wait for it."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Coroutine, Mapping
from typing import Final, TypeVar

from endpick.api.fleet import StateStore
from endpick.api.plugin import Parameters
from endpick.fleet.exchange import HEARTBEAT_SECONDS, Exchange, MessageKind, encode_snapshot
from endpick.host.awaiting import is_being_cancelled
from endpick.host.failures import PLUGIN_ERRORS, describe_error
from endpick.host.instance import Instance
from endpick.host.planning.plan import FleetPlan

T = TypeVar("T")
_log = logging.getLogger("endpick.fleet")

SYNC_SECONDS: Final = 0.05
SHORTEST_SYNC_SECONDS: Final = 0.01
IDLE_SYNC_SECONDS: Final = 0.2  # waking up is all that an idle picker spends on sharing
PUBLISH_SECONDS: Final = 1.0
SILENCE_SECONDS: Final = 3.0  # without a message, before the link reconnects
EVERYONE: Final = "*"
LAST: Final = "last"  # the snapshot that the next picker begins with
_SNAPSHOT_SECONDS: Final = 1.5
_RETRY_SECONDS: Final = 0.5
_NOT_YET: Final = "it is not connected yet"


def new_origin() -> str:
    """Return a name that no other picker has: host, process and a random suffix."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class FleetLink:
    """Moves messages between the exchange and the state store, once `start` or `change` was called."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._store: StateStore[Parameters] | None = None
        self._sync_seconds = SYNC_SECONDS
        self._publish_seconds = PUBLISH_SECONDS
        self._tasks: list[asyncio.Task[None]] = []
        self._offline_reason: str | None = _NOT_YET
        self._is_subscribed = False
        self._was_offline = False
        self.bytes_sent = 0
        self.bytes_received = 0

    @property
    def is_connected(self) -> bool:
        """True while the store delivers messages."""
        return self._offline_reason is None

    def sizes(self) -> dict[str, int]:
        """Return the bytes sent and received, for a metric."""
        return {"sent": self.bytes_sent, "received": self.bytes_received}

    def remarks(self) -> tuple[str, ...]:
        """Return a sentence for `/healthz` while the store is unreachable."""
        if self._store is None or self._offline_reason is None or not self._store.carries_messages:
            return ()
        return (f"this picker shares nothing with others: {self._offline_reason}",)

    async def start(self, plan: FleetPlan | None, instances: Mapping[str, Instance]) -> None:
        """Restore the last snapshot, then exchange deltas in the background."""
        self._exchange.follow(instances.values())
        self._use(plan, instances)
        if self._store is not None:
            await self._restore(LAST)
            self._run()

    def change(self, plan: FleetPlan | None, instances: Mapping[str, Instance]) -> None:
        """Continue with the instances of a reload, and reconnect if the store was replaced."""
        self._exchange.follow(instances.values())
        before = self._store
        self._use(plan, instances)
        if self._store is not before:
            self._cancel()
            self._exchange.cut_off()
            self._offline_reason, self._is_subscribed, self._was_offline = _NOT_YET, False, True
            self._run()

    async def stop(self) -> None:
        """Save a snapshot for the next picker, and disconnect."""
        tasks = self._cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._store is not None:
            if self.is_connected:
                await self._publish(self._exchange.message(MessageKind.BYE))
            await self._save(LAST)

    def _use(self, plan: FleetPlan | None, instances: Mapping[str, Instance]) -> None:
        if plan is None:
            self._store = None
            return
        store = instances[plan.store].plugin
        assert isinstance(store, StateStore)
        self._store = store
        self._sync_seconds = min(max(plan.sync_seconds or SYNC_SECONDS, SHORTEST_SYNC_SECONDS), HEARTBEAT_SECONDS)
        self._publish_seconds = plan.publish_seconds or PUBLISH_SECONDS

    def _run(self) -> None:
        if self._store is not None and self._store.carries_messages:
            self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive(self._store))]
            for task in self._tasks:
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("a fault of endpick ended the exchange with other pickers", exc_info=task.exception())
            self._cut_off("a fault of endpick ended the exchange, see the log")

    def _cancel(self) -> list[asyncio.Task[None]]:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        return tasks

    @property
    def _stored(self) -> StateStore[Parameters]:
        assert self._store is not None
        return self._store

    async def _send(self) -> None:
        while not is_being_cancelled():
            idle = self._exchange.is_idle
            await asyncio.sleep(max(self._sync_seconds, IDLE_SYNC_SECONDS) if idle else self._sync_seconds)
            self._exchange.expire()
            message = self._exchange.drain()
            if not self._is_subscribed:
                continue  # nobody would receive it
            if self._offline_reason is not None:
                await self._announce()
            elif message is not None:
                await self._publish(message)

    async def _receive(self, store: StateStore[Parameters]) -> None:
        while not is_being_cancelled():  # clients of stores may swallow a cancellation
            messages = store.messages()
            try:
                while not is_being_cancelled():
                    async with asyncio.timeout(SILENCE_SECONDS):  # every picker receives at least its own messages
                        message = await anext(messages)
                    self.bytes_received += len(message)
                    if message:
                        await self._handle(message)
                    else:
                        self._is_subscribed = True  # `_send` announces this picker
            except TimeoutError:
                self._cut_off("the state store sends nothing")
            except StopAsyncIteration:
                self._cut_off("the state store ended the connection")
            except PLUGIN_ERRORS as error:
                self._cut_off(str(error) if isinstance(error, ConnectionError) else describe_error(error))
            self._is_subscribed = False
            await asyncio.sleep(_RETRY_SECONDS)

    async def _handle(self, data: bytes) -> None:
        message = self._exchange.receive(data)
        if message is None:
            return
        if message.kind is MessageKind.HELLO and self._exchange.answers(message):
            await self._share_snapshot(message.origin)
        elif message.kind is MessageKind.SAVED and message.to in (self._exchange.origin, EVERYONE):
            await self._restore(message.origin)

    async def _announce(self) -> None:
        if not await self._publish(self._exchange.message(MessageKind.HELLO)):
            await asyncio.sleep(_RETRY_SECONDS)
            return
        _log.info("connected to the state store", extra={"origin": self._exchange.origin})
        was_offline, self._offline_reason, self._was_offline = self._was_offline, None, False
        if was_offline:
            await self._share_snapshot(EVERYONE)  # the state learnt while disconnected

    async def _share_snapshot(self, to: str) -> None:
        if await self._save(self._exchange.origin):
            await self._publish(self._exchange.message(MessageKind.SAVED, to=to))

    async def _publish(self, message: bytes) -> bool:
        answer = await _call_store(self._publish_seconds, self._stored.publish(message))
        if isinstance(answer, _Problem):
            self._cut_off(answer)
            return False
        self.bytes_sent += len(message)
        return True

    async def _save(self, name: str) -> bool:
        pieces = []
        for piece in self._exchange.snapshot():
            pieces.append(piece)
            await asyncio.sleep(0)  # requests come first
        answer = await _call_store(_SNAPSHOT_SECONDS, self._stored.save(name, encode_snapshot(pieces)))
        if isinstance(answer, _Problem):
            _log.warning("no snapshot is kept for other pickers: %s", answer)
            return False
        return True

    async def _restore(self, name: str) -> None:
        snapshot = await _call_store(_SNAPSHOT_SECONDS, self._stored.load(name))
        if isinstance(snapshot, _Problem):
            _log.warning("the snapshot of other pickers cannot be read: %s", snapshot)
        elif snapshot:
            restored = set()
            for key in self._exchange.restore(snapshot):
                restored.add(key)
                await asyncio.sleep(0)
            _log.info("restored what was learnt", extra={"instances": len(restored), "bytes": len(snapshot), "from": name})

    def _cut_off(self, reason: str) -> None:
        if self._offline_reason in (None, _NOT_YET):
            _log.warning("this picker shares nothing with others until the state store is back: %s", reason)
        self._offline_reason, self._was_offline = reason, True
        self._exchange.cut_off()


class _Problem(str):
    __slots__ = ()


async def _call_store(seconds: float, call: Coroutine[object, object, T]) -> T | _Problem:
    try:
        async with asyncio.timeout(seconds):
            return await call
    except TimeoutError:
        return _Problem(f"the state store does not answer within {seconds:g} s")
    except ConnectionError as error:
        return _Problem(error)
    except PLUGIN_ERRORS as error:
        return _Problem(describe_error(error))
