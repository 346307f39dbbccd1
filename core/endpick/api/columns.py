"""How plugins write into the endpoint table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from endpick.api.data import DataKey
from endpick.api.endpoints import Endpoint

T = TypeVar("T")


class ColumnWriter(Protocol):
    """Where a collector puts what it found; made by the host for one payload."""

    @property
    def endpoint(self) -> Endpoint | None:
        """Whose payload this is; None for a pool-wide one."""

    def set(self, key: DataKey[T], value: T, endpoint: Endpoint | None = None) -> None:
        """Write a value of scope `ENDPOINT`, for `endpoint` or else for the payload's own; ignored for an endpoint that has left.

        Raises:
            UndeclaredAccess: under test, when the collector does not produce the key.
            ValueError: no endpoint was named and the payload has none.
        """

    def set_pool(self, key: DataKey[T], value: T) -> None:
        """Write a value of scope `POOL`."""

    def endpoints(self) -> Iterable[Endpoint]:
        """Everybody in the pool now, for pool-wide payloads that speak of single endpoints."""
