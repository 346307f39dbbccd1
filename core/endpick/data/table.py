"""The endpoint table: one row per endpoint, one column per data key."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from endpick.api.access import Access, AccessScope, OnViolation, refuse
from endpick.api.data import AnyKey, DataKey, Scope
from endpick.api.discovery import ModelRewrite
from endpick.api.endpoint import Column, Endpoint, Generation
from endpick.api.endpoints import Endpoints, FloatArray
from endpick.api.errors import UnknownKey
from endpick.data.model_rules import ModelRules

MAX_ENDPOINTS = 4096
_MAX_NUMBER = 1e300  # larger numbers become NaN: differences and products stay finite
NEW_ROW = -1


@dataclass(frozen=True, slots=True)
class _Cells:
    """A writable column; `written_at` is -inf for empty cells."""

    key: AnyKey
    values: NDArray[np.float64] | NDArray[np.object_]
    written_at: FloatArray
    derived: dict[object, object] = field(default_factory=dict)

    @classmethod
    def empty(cls, key: AnyKey, rows: int) -> _Cells:
        values = np.full(rows, np.nan) if key.is_number else np.full(rows, None, dtype=np.object_)
        return cls(key, values, np.full(rows, -np.inf))

    def moved(self, origins: Sequence[int]) -> _Cells:
        """Copy the cells to new rows; each origin is an earlier row or `NEW_ROW`."""
        moved = _Cells.empty(self.key, len(origins))
        if not len(self.values):
            return moved
        old = np.asarray(origins, dtype=np.intp)
        kept = old != NEW_ROW
        moved.values[kept] = self.values[old[kept]]
        moved.written_at[kept] = self.written_at[old[kept]]
        return moved

    def write(self, row: int, value: object, now: float) -> None:
        """Raises TypeError or ValueError for a value of another type."""
        if self.key.is_number and not -_MAX_NUMBER <= value <= _MAX_NUMBER:  # type: ignore[operator]
            value = math.nan
        # An equal value keeps its derived results.
        if not self.derived or self.values[row] != value:
            self.values[row] = value  # type: ignore[call-overload]
            self.derived.clear()
        self.written_at[row] = now

    def write_numbers(self, values: FloatArray, now: float) -> None:
        """Write every cell, except those whose value is NaN."""
        known = values == values
        if np.count_nonzero(known & (self.values != values)):
            np.copyto(self.values, values, where=known)
            self.derived.clear()
        self.written_at[known] = now

    def clear(self, row: int) -> None:
        self.values[row] = math.nan if self.key.is_number else None
        self.written_at[row] = -math.inf
        self.derived.clear()

    def column(self) -> Column:
        """A read-only view, in which later writes are visible."""
        return Column(_read_only(self.values), _read_only(self.written_at), self.derived)


Array = TypeVar("Array", bound=np.ndarray)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


T = TypeVar("T")


class _Writable(Protocol):
    @property
    def generation(self) -> Generation: ...

    def write(self, key: AnyKey, endpoint: Endpoint, value: object, since: float | None = None) -> None: ...

    def write_pool(self, key: AnyKey, value: object) -> None: ...

    def restarted(self, endpoint: Endpoint) -> None: ...

    def view(self, access: Access | None = None) -> Endpoints: ...


class TableWriter:
    """The `ColumnWriter` of a collector, confined to the keys of its scope."""

    __slots__ = ("_on_violation", "_scope", "_since", "_table", "endpoint")

    def __init__(
        self,
        table: _Writable,
        scope: AccessScope | None,
        endpoint: Endpoint | None,
        on_violation: OnViolation,
        since: float | None = None,
    ) -> None:
        self._table = table
        self._since = since
        self._scope = scope
        self._on_violation = on_violation
        self.endpoint = endpoint

    def set(self, key: DataKey[T], value: T, endpoint: Endpoint | None = None) -> None:
        target = endpoint or self.endpoint
        if target is None:
            raise ValueError(f"'{key.name}' belongs to an endpoint: this payload is pool-wide, so name one")
        scope = self._scope
        if key.scope is Scope.ENDPOINT and (scope is None or key.name in scope.writable):
            self._table.write(key, target, value, self._since)
        else:
            self._refuse(key, Scope.ENDPOINT)

    def set_pool(self, key: DataKey[T], value: T) -> None:
        scope = self._scope
        if key.scope is Scope.POOL and (scope is None or key.name in scope.writable):
            self._table.write_pool(key, value)
        else:
            self._refuse(key, Scope.POOL)

    def restarted(self, endpoint: Endpoint | None = None) -> None:
        target = endpoint or self.endpoint
        if target is not None:
            self._table.restarted(target)

    def endpoints(self) -> Endpoints:
        return self._table.view(Access(self._scope, self._on_violation))

    def _refuse(self, key: DataKey[T], scope: Scope) -> None:
        if key.scope is not scope:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not '{scope}'")
        if self._scope is not None:
            self._on_violation(self._scope, key.name, "write")


class EndpointTable:
    """The endpoints and their data. Reports of discoveries pass through `Registry` first.

    A membership change copies columns to a new `Generation`; requests keep theirs. Values change in place: no reader awaits.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        keys: Iterable[AnyKey] = (),
        on_violation: OnViolation = refuse,
        max_endpoints: int = sys.maxsize,
    ) -> None:
        """`clock` gives monotonic seconds; `on_violation` receives writes of undeclared keys, which are dropped."""
        self.on_changed: list[Callable[[Generation], None]] = []  # after a membership change
        self.on_removed: list[Callable[[str], None]] = []  # for an endpoint that left, moved or restarted
        self.on_left_out: list[Callable[[], None]] = []  # for a report of too many endpoints
        self.on_delivered: list[Callable[[], None]] = []  # after collectors read a payload
        self.on_polled: list[Callable[[str, Endpoint, frozenset[str], float], None]] = []  # with source, keys that may be written, and time
        self.received: dict[tuple[str, str], float] = {}  # when another worker's poll arrived, by source and endpoint
        self.sent: set[str] = set()  # addresses that got requests, to be polled at the full rate
        self.rules = ModelRules()
        self.is_ready = asyncio.Event()  # after the first complete report
        self.is_ending = asyncio.Event()  # when the process shuts down
        self.on_stand_by: list[Callable[[str], None]] = []  # with the reason to stand by, or "" to serve
        self.clock = clock
        self._on_violation = on_violation
        self._max_endpoints = max_endpoints
        self._pool_keys: frozenset[str] = frozenset()
        self._pool: dict[str, object] = {}
        self._pool_written_at: dict[str, float] = {}
        self._cells: dict[str, _Cells] = {}
        self._generation = self._next_generation(())
        self.declare(keys)

    @property
    def generation(self) -> Generation:
        """The current rows, replaced when membership changes."""
        return self._generation

    def view(self, access: Access | None = None) -> Endpoints:
        """Return all endpoints. The view is valid until `generation` changes."""
        return Endpoints(self._generation, None, access)

    def find(self, name: str) -> Endpoint | None:
        """Return the endpoint with this name, or None."""
        row = self._generation.row_of.get(name)
        return None if row is None else self._generation.endpoints[row]

    def declare(self, keys: Iterable[AnyKey]) -> None:
        """Set the columns: keys of scope `ENDPOINT` and `POOL`. Unchanged keys keep their values."""
        declared = {key.name: key for key in keys}
        self._pool_keys = frozenset(name for name, key in declared.items() if key.scope is Scope.POOL)
        for name in self._pool.keys() - self._pool_keys:
            del self._pool[name], self._pool_written_at[name]
        rows = len(self._generation.endpoints)
        self._cells = {
            name: self._carried_over(key) or _Cells.empty(key, rows) for name, key in declared.items() if key.scope is Scope.ENDPOINT
        }
        self._generation = self._next_generation(self._generation.endpoints)

    def writer(self, scope: AccessScope | None, endpoint: Endpoint | None = None, since: float | None = None) -> TableWriter:
        """Return a writer for the keys of `scope` (None: all) and a payload requested at `since` (None: pushed)."""
        return TableWriter(self, scope, endpoint, self._on_violation, since)

    def write(self, key: AnyKey, endpoint: Endpoint, value: object, since: float | None = None) -> None:
        """Write a cell; ignored if the endpoint left or moved, the key is undeclared, or the cell is newer."""
        cells = self._cells.get(key.name)
        generation = self._generation
        row = generation.row_of.get(endpoint.name)
        if cells is None or row is None:
            return
        current = generation.endpoints[row]
        if current is not endpoint and current.address != endpoint.address:
            return
        if since is not None and cells.written_at[row] > since:
            return
        cells.write(row, value, self.clock())

    def write_numbers(self, key: DataKey[float], values: FloatArray) -> None:
        """Write the numbers of all endpoints, in row order, if the key is declared; NaN keeps a cell unchanged."""
        cells = self._cells.get(key.name)
        if cells is not None:
            cells.write_numbers(values, self.clock())

    def write_pool(self, key: AnyKey, value: object) -> None:
        """Write a pool-wide value if its key is declared."""
        if key.name in self._pool_keys:
            self._pool[key.name] = value
            self._pool_written_at[key.name] = self.clock()

    def restarted(self, endpoint: Endpoint) -> None:
        """Clear the data of an endpoint whose model server restarted in place."""
        row = self._generation.row_of.get(endpoint.name)
        if row is None or self._generation.endpoints[row].address != endpoint.address:
            return
        for cells in self._cells.values():
            cells.clear(row)
        self._tell_removed(endpoint.name)

    def key(self, name: str) -> AnyKey | None:
        """Return the declared key of scope `ENDPOINT` with this name, or None."""
        cells = self._cells.get(name)
        return None if cells is None else cells.key

    def cell(self, key: str, name: str) -> tuple[object, float]:
        """Return the value of a key for an endpoint, and its write time. Raises KeyError for unknown names."""
        cells, row = self._cells[key], self._generation.row_of[name]
        return cells.values[row].item() if cells.key.is_number else cells.values[row], float(cells.written_at[row])

    def oldest_write(self, name: str, keys: Iterable[str]) -> float:
        """Return the time of the oldest write to these cells; -inf if a cell is empty."""
        row = self._generation.row_of.get(name)
        if row is None:
            return -math.inf
        cells = [self._cells.get(key) for key in keys]
        return min((-math.inf if column is None else float(column.written_at[row]) for column in cells), default=-math.inf)

    def upsert(self, endpoint: Endpoint) -> None:
        members = {member.name: member for member in self._generation.endpoints}
        if endpoint.name not in members and len(members) >= self._max_endpoints:
            self._leave_out()
            return
        members[endpoint.name] = endpoint
        self._become(members)

    def remove(self, name: str) -> None:
        self._become({member.name: member for member in self._generation.endpoints if member.name != name})

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        reported = {endpoint.name: endpoint for endpoint in endpoints}
        self._become(dict(list(reported.items())[: self._max_endpoints]))
        if len(reported) > self._max_endpoints:
            self._leave_out()

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        self.rules.objectives = dict(priorities)

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        self.rules.discovered(rewrites)

    def ready(self) -> None:
        self.is_ready.set()

    def stand_by(self, reason: str) -> None:
        for listener in self.on_stand_by:
            listener(reason)

    def until_ending(self) -> Coroutine[Any, Any, Any]:
        return self.is_ending.wait()

    def _leave_out(self) -> None:
        for listener in self.on_left_out:
            listener()

    def _become(self, wanted: Mapping[str, Endpoint]) -> None:
        before = {member.name: member for member in self._generation.endpoints}
        members = tuple(_unless_same(before.get(name), endpoint) for name, endpoint in wanted.items())
        if members == self._generation.endpoints:
            return
        kept = {member.name for member in members if member.name in before and before[member.name].address == member.address}
        row_of = self._generation.row_of
        origins = [row_of[member.name] if member.name in kept else NEW_ROW for member in members]
        self._cells = {name: cells.moved(origins) for name, cells in self._cells.items()}
        self._generation = self._next_generation(members)
        for changed in tuple(self.on_changed):
            changed(self._generation)
        for name in before.keys() - kept:
            self._tell_removed(name)

    def _tell_removed(self, name: str) -> None:
        for place in [place for place in self.received if place[1] == name]:
            del self.received[place]
        for removed in tuple(self.on_removed):
            removed(name)

    def _next_generation(self, members: tuple[Endpoint, ...]) -> Generation:
        columns = MappingProxyType({name: cells.column() for name, cells in self._cells.items()})
        return Generation(members, columns, MappingProxyType(self._pool), self.clock, MappingProxyType(self._pool_written_at))

    def _carried_over(self, key: AnyKey) -> _Cells | None:
        cells = self._cells.get(key.name)
        return cells if cells is not None and cells.key.type is key.type else None


def _unless_same(old: Endpoint | None, new: Endpoint) -> Endpoint:
    if old is None or old is new:
        return new
    same = old.address == new.address and old.metrics_address == new.metrics_address and old.labels == new.labels
    return old if same else new
