"""State that plugins learn, and the store through which the pickers of a pool share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from typing import ClassVar

from endpick.api.plugin import P, Plugin


class LearntState(ABC):
    """State that an instance learns from requests, as bytes in its own format. Inherit it next to a kind.

    The host keeps it when parameters change and when the process restarts, and tells other pickers of the pool about changes. Name
    endpoints by `Endpoint.name`, and ignore unknown ones. Send ages instead of times, because clocks differ. No method may block.
    """

    learnt_format: ClassVar[int] = 1
    """Raise it with the format: other formats are ignored, so pickers of two releases can serve together."""

    @abstractmethod
    def snapshot(self) -> Iterable[bytes]:
        """Everything that another instance needs to decide alike, without requests in flight, in parts; none if nothing was learnt.

        Requests are served between two parts, so let each take no longer than a few milliseconds.
        """

    @abstractmethod
    def restore(self, part: bytes) -> None:
        """Add a part of a snapshot of an instance with the same name and type. Called after `start`, once the pool is known."""

    @abstractmethod
    def drain_deltas(self) -> bytes:
        """Changes by this instance since the last call; empty if there are none.

        Called every few milliseconds if `PluginContext.is_shared`; else nothing needs to be kept.
        """

    @abstractmethod
    def apply(self, deltas: bytes, origin: str) -> None:
        """Add the deltas of the picker `origin`.

        Deltas of one origin come in order, but some may be lost or repeated; those of several come in any order. Neither may change the
        outcome.
        """

    def origin_gone(self, origin: str) -> None:  # noqa: B027 - optional
        """Forget the load of a picker that ended, or lost deltas. Keep its knowledge of endpoints."""


class StateStore(Plugin[P]):
    """Carries messages and snapshots between pickers. A configuration has at most one.

    Every method raises ConnectionError, with the reason for the operator, while the store cannot be reached; the host tries again.
    """

    kind: ClassVar[str] = "state-store"

    carries_messages: ClassVar[bool] = True
    """False if it only keeps snapshots, for a picker that starts again."""

    @abstractmethod
    async def publish(self, message: bytes) -> None:
        """Send a message to every picker. It may be lost."""

    @abstractmethod
    def messages(self) -> AsyncIterator[bytes]:
        """Messages from now on, also those of this picker. Empty bytes mark a new connection."""

    @abstractmethod
    async def save(self, name: str, snapshot: bytes) -> None:
        """Keep a snapshot under `name` for some minutes."""

    @abstractmethod
    async def load(self, name: str) -> bytes | None:
        """The snapshot under `name`, or None."""
