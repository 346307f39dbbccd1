"""State that plugins learn, and the store through which the pickers of a pool share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import ClassVar

from endpick.api.plugin import P, Plugin


class LearntState(ABC):
    """State that an instance learns from requests, as bytes in its own format.

    Inherit it next to a kind. The host keeps the state when parameters change and when the process restarts, and sends changes to the other
    pickers of the pool. Name endpoints by `Endpoint.name`, and ignore unknown ones. Send ages instead of times, because clocks differ. No
    method may block.
    """

    learnt_format: ClassVar[int] = 1
    """The version of the format. Raise it with each change: the host ignores other formats, so pickers of two releases can serve
    together.
    """

    @abstractmethod
    def snapshot(self) -> Iterable[bytes]:
        """Return the state in parts, without requests in flight; no part if nothing was learnt.

        The host calls it when a reload replaces the instance, when another picker asks for a snapshot, and at the end. Another instance
        that restores the parts decides alike. Requests are served between two parts, so let each take no longer than a few milliseconds.
        """

    @abstractmethod
    def restore(self, part: bytes) -> None:
        """Add a part of a snapshot of an instance with the same name, type and format.

        The host calls it for each part, after `start` and once the pool is known, after a reload, and when another picker offers its
        snapshot. Add the part to the state learnt so far.
        """

    @abstractmethod
    def drain_deltas(self) -> bytes:
        """Return the changes by this instance since the last call; empty bytes if there are none.

        The host calls it every few milliseconds if `PluginContext.is_shared`; else nothing needs to be kept.
        """

    @abstractmethod
    def apply(self, deltas: bytes, origin: str) -> None:
        """Add the deltas of another picker, named by `origin`.

        The host calls it for each message. Deltas of one origin come in order, but some may be lost or repeated; those of several come in
        any order. Neither may change the outcome.
        """

    def origin_gone(self, origin: str) -> None:  # noqa: B027 - optional
        """Forget the load of a picker that ended, or lost deltas. Keep its knowledge of endpoints.

        The host calls it when a picker leaves or was silent for 3.5 seconds, when a message was lost, and for every picker when the state
        store cannot be reached. Default: nothing.
        """


class StateStore(Plugin[P]):
    """Carries messages and snapshots between pickers. A configuration has at most one.

    Every method raises ConnectionError, with the reason for the operator, while the store cannot be reached; the host tries again.
    """

    kind: ClassVar[str] = "state-store"

    carries_messages: ClassVar[bool] = True
    """False if the store only keeps snapshots, for a picker that starts again. The host then calls `save` and `load` only."""

    @abstractmethod
    async def publish(self, message: bytes) -> None:
        """Send a message to every picker, this one included. It may be lost.

        The host calls it whenever there is something new, and at least once per second.
        """

    @abstractmethod
    def messages(self) -> AsyncIterator[bytes]:
        """Iterate over messages from now on, including those of this picker.

        Yield empty bytes after each new connection. The host starts over if three seconds pass without a message.
        """

    @abstractmethod
    async def save(self, name: str, snapshot: bytes) -> None:
        """Keep a snapshot under a name for some minutes, and replace an older one.

        The host calls it when another picker asks for a snapshot, and when the process ends.
        """

    @abstractmethod
    async def load(self, name: str) -> bytes | None:
        """Return the snapshot kept under a name, or None if there is none.

        The host calls it at start, and when another picker has saved a snapshot for this one.
        """
