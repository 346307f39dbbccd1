"""What a collector writes through: the endpoint table, narrowed to the keys the collector declared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from endpick.api.access import AccessScope, OnViolation
from endpick.api.data import AnyKey, DataKey, Scope
from endpick.api.endpoints import Endpoint, Generation
from endpick.api.errors import UnknownKey

T = TypeVar("T")


class Writable(Protocol):
    """What the writer needs of the table."""

    @property
    def generation(self) -> Generation:
        """The rows as they are now."""

    def write(self, key: AnyKey, endpoint: Endpoint, value: object) -> None:
        """Put a value into a column."""

    def write_pool(self, key: AnyKey, value: object) -> None:
        """Put a value that belongs to the whole pool."""


class TableWriter:
    """The `ColumnWriter` of one instance, for one payload or, without an endpoint, for as long as it likes."""

    __slots__ = ("_on_violation", "_scope", "_table", "endpoint")

    def __init__(self, table: Writable, scope: AccessScope | None, endpoint: Endpoint | None, on_violation: OnViolation) -> None:
        """Made by the table."""
        self._table = table
        self._scope = scope
        self._on_violation = on_violation
        self.endpoint = endpoint
        """Whose payload this is; None for a pool-wide one."""

    def set(self, key: DataKey[T], value: T, endpoint: Endpoint | None = None) -> None:
        """See `ColumnWriter`."""
        target = endpoint or self.endpoint
        if target is None:
            raise ValueError(f"'{key.name}' belongs to an endpoint: this payload is pool-wide, so name one")
        if self._may_write(key, Scope.ENDPOINT):
            self._table.write(key, target, value)

    def set_pool(self, key: DataKey[T], value: T) -> None:
        """See `ColumnWriter`."""
        if self._may_write(key, Scope.POOL):
            self._table.write_pool(key, value)

    def endpoints(self) -> Iterable[Endpoint]:
        """See `ColumnWriter`."""
        return self._table.generation.endpoints

    def _may_write(self, key: DataKey[T], scope: Scope) -> bool:
        if key.scope is not scope:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not '{scope}'")
        if self._scope is None or key.name in self._scope.writable:
            return True
        self._on_violation(self._scope, key.name, "write")
        return False
