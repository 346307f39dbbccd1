"""Publishes KV cache events over ZeroMQ in vLLM's format."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from endpick_lab.settings import KvEventSettings

if TYPE_CHECKING:
    import zmq

KEPT = 10_000  # messages for replay, as in vLLM
END_OF_REPLAY = (-1).to_bytes(8, "big", signed=True)


@dataclass(frozen=True, slots=True)
class BlockContent:
    """A prompt block; `parent` is the previous block's hash, and `adapter` is None for the base model."""

    parent: int | None
    tokens: tuple[int, ...]
    adapter: str | None


@dataclass(slots=True)
class _Known:
    content: BlockContent
    jobs: int = 0


@dataclass(slots=True)
class KvEventLog:
    """Converts cache changes into vLLM's events."""

    block_size: int
    _contents: dict[int, _Known] = field(default_factory=dict)
    _events: list[dict[str, object]] = field(default_factory=list)

    def expect(self, hashes: Sequence[int], contents: Sequence[BlockContent]) -> None:
        """Register a job's blocks before they are stored."""
        for chained, content in zip(hashes, contents, strict=True):
            self._contents.setdefault(chained, _Known(content)).jobs += 1

    def forget(self, hashes: Sequence[int]) -> None:
        """Unregister a finished job's blocks."""
        for chained in hashes:
            known = self._contents[chained]
            known.jobs -= 1
            if not known.jobs:
                del self._contents[chained]

    def stored(self, chained: int) -> None:
        known = self._contents.get(chained)
        if known is None:
            return
        content, last = known.content, self._events[-1] if self._events else {}
        if last.get("type") == "BlockStored" and content.parent is not None and last["block_hashes"][-1] == content.parent:  # type: ignore[index]
            last["block_hashes"].append(chained)  # type: ignore[attr-defined]
            last["token_ids"].extend(content.tokens)  # type: ignore[attr-defined]
            return
        self._events.append(
            {
                "type": "BlockStored",
                "block_hashes": [chained],
                "parent_block_hash": content.parent,
                "token_ids": list(content.tokens),
                "block_size": self.block_size,
                "lora_id": None if content.adapter is None else 1,
                "medium": "GPU",
                "lora_name": content.adapter,
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
            }
        )

    def removed(self, chained: int) -> None:
        self._events.append({"type": "BlockRemoved", "block_hashes": [chained], "medium": "GPU", "group_idx": 0})

    def take(self) -> list[dict[str, object]]:
        """Return the events since the last call."""
        events, self._events = self._events, []
        return events


class KvEventPublisher:
    """A PUB socket and an optional ROUTER socket for replay."""

    def __init__(self, settings: KvEventSettings, log: KvEventLog, topic: str) -> None:
        """Bind to addresses with a `*`, else connect, like vLLM. Raises OSError."""
        import msgspec  # noqa: PLC0415 - only simulated servers that publish need the extra
        import zmq  # noqa: PLC0415

        self._log, self._topic = log, topic.encode()
        self._encode = msgspec.msgpack.Encoder().encode
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=KEPT)
        self._number = 0
        self._noblock, self._again = zmq.NOBLOCK, zmq.Again
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._loop = asyncio.get_running_loop()
        self._replay: zmq.Socket[bytes] | None = None
        try:
            self._socket = self._open(zmq.PUB, settings.address, listen="*" in settings.address or settings.address.startswith("ipc:"))
            if settings.replay_address:
                self._replay = self._open(zmq.ROUTER, settings.replay_address, listen=True)
                self._descriptor = int(self._replay.getsockopt(zmq.FD))
                self._loop.add_reader(self._descriptor, self._answer)
        except zmq.ZMQError as problem:
            self._context.destroy(linger=0)
            raise OSError(problem.errno, f"{problem.strerror} ({settings.address}, {settings.replay_address})") from problem
        self.address = settings.address if "*" not in settings.address else self._socket.get_string(zmq.LAST_ENDPOINT)
        self.replay_address = None if self._replay is None else self._replay.get_string(zmq.LAST_ENDPOINT)

    def sources(self) -> dict[str, dict[str, object]]:
        """Return the body of `GET /kv_event_sources`, by rank."""
        return {"0": {"endpoint": self.address, "replay_endpoint": self.replay_address, "topic": self._topic.decode()}}

    def flush(self) -> None:
        """Publish the events since the last call as one message, and keep it for replay."""
        events = self._log.take()
        if events:
            payload = self._encode([time.time(), events, 0])
            self._kept.append((self._number, payload))
            self._socket.send_multipart([self._topic, self._number.to_bytes(8, "big"), payload])
            self._number += 1

    def close(self) -> None:
        """Close the sockets without waiting for unsent messages."""
        if self._replay is not None:
            self._loop.remove_reader(self._descriptor)
        self._context.destroy(linger=0)

    def _open(self, kind: int, address: str, *, listen: bool) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.linger = 0
        if listen:
            socket.bind(address)
        else:
            socket.connect(address)
        return socket

    def _answer(self) -> None:
        assert self._replay is not None
        while True:
            try:
                frames = self._replay.recv_multipart(self._noblock)
            except self._again:
                return
            if len(frames) == 3 and len(frames[2]) == 8:
                client, first = frames[0], int.from_bytes(frames[2], "big")
                for number, payload in self._kept:
                    if number >= first:
                        self._replay.send_multipart([client, b"", self._topic, number.to_bytes(8, "big"), payload])
                self._replay.send_multipart([client, b"", b"", END_OF_REPLAY, b""])
