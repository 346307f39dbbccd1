"""The endpoint table: who is in the pool, and what was last reported of each; one row per endpoint, one column per data key."""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from endpick.api.access import Access, AccessScope, OnViolation, refuse
from endpick.api.data import AnyKey, DataKey, Scope
from endpick.api.datalayer import ModelRewrite
from endpick.api.endpoint import Endpoint
from endpick.api.endpoints import Endpoints, FloatArray, KnownEndpoints
from endpick.api.errors import UnknownKey
from endpick.api.generation import Column, Generation
from endpick.api.records import read_directly
from endpick.data.model_rules import ModelRules
from endpick.data.tasks import until_set
from endpick.data.told import Told

_GREATEST = 1e300
"""No measurement is greater, either way, and differences and products of such numbers stay finite; what is greater counts as not known."""
MAX_ENDPOINTS = 4096
"""Of a pool, unless the operator says otherwise: a discovery that names ever more of them would fill memory and the log."""
_TOLD_AT_ONCE = 64
_TURN_SECONDS = 0.002
_REST_PER_TURN = 3
"""Of names whose learnt state is void: so many are told in one turn, or for so long, and then everything else has so many times as long."""
NEW_ROW = -1
"""In a list of origins: this row takes over nothing."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One column as its owner holds it; `written_at` is -inf where nothing was ever written."""

    key: AnyKey
    values: NDArray[np.float64] | NDArray[np.object_]
    written_at: FloatArray
    derived: dict[object, object] = field(default_factory=dict)
    """See `Column`."""

    @classmethod
    def empty(cls, key: AnyKey, rows: int) -> Cells:
        """A column without values: NaN for numbers, None for objects."""
        values = np.full(rows, np.nan) if key.is_number else np.full(rows, None, dtype=np.object_)
        return cls(key, values, np.full(rows, -np.inf))

    def moved(self, origins: Sequence[int]) -> Cells:
        """A copy with one row per origin: the row it takes over, or `NEW_ROW`."""
        moved = Cells.empty(self.key, len(origins))
        old = np.asarray(origins, dtype=np.intp)
        kept = old != NEW_ROW
        moved.values[kept] = self.values[old[kept]]
        moved.written_at[kept] = self.written_at[old[kept]]
        return moved

    def write(self, row: int, value: object, now: float) -> None:
        """Put a value into a row.

        Raises:
            TypeError, ValueError: the column holds numbers and the value is none.
        """
        if self.key.is_number and not -_GREATEST <= value <= _GREATEST:  # type: ignore[operator]
            value = math.nan
        # An equal object stays the same object, so that those who keep what follows from it see at once that nothing has changed.
        if not self.derived or self.values[row] != value:
            self.values[row] = value  # type: ignore[call-overload]
            self.derived.clear()
        self.written_at[row] = now

    def column(self) -> Column:
        """The read-only view of these cells: it shows later writes and refuses its own, also after `setflags(write=True)`."""
        values = _shown(self.values) if self.key.is_number else self.values  # type: ignore[arg-type]
        return Column(values, _shown(self.written_at), self.derived)


def _shown(cells: FloatArray) -> FloatArray:
    """The same numbers through a buffer that only reads: numpy lets a view of a writable array become writable.

    It is a view of what has the buffer, and views of a view have that as their `base`, so that no plugin meets this array itself.
    """
    return np.frombuffer(memoryview(cells).toreadonly(), np.float64)[...] if len(cells) else cells  # type: ignore[arg-type]


T = TypeVar("T")


class Writable(Protocol):
    """What the writer needs of the table."""

    @property
    def generation(self) -> Generation:
        """The rows as they are now."""

    def write(self, key: AnyKey, endpoint: Endpoint, value: object, since: float | None = None) -> None:
        """Put a value into a column, unless it was told otherwise `since` then."""

    def write_pool(self, key: AnyKey, value: object) -> None:
        """Put a value that belongs to the whole pool."""


class TableWriter:
    """The `ColumnWriter` of one instance, for one payload or, without an endpoint, for as long as it likes."""

    __slots__ = ("_on_violation", "_scope", "_since", "_table", "endpoint")

    def __init__(
        self,
        table: Writable,
        scope: AccessScope | None,
        endpoint: Endpoint | None,
        on_violation: OnViolation,
        since: float | None = None,
    ) -> None:
        """Made by the table."""
        self._table = table
        self._since = since
        self._scope = scope
        self._on_violation = on_violation
        self.endpoint = endpoint
        """Whose payload this is; None for a pool-wide one."""

    def set(self, key: DataKey[T], value: T, endpoint: Endpoint | None = None) -> None:
        """See `ColumnWriter`."""
        target = endpoint or self.endpoint
        if target is None:
            raise ValueError(f"'{key.name}' belongs to an endpoint: this payload is pool-wide, so name one")
        scope = self._scope
        if key.scope is Scope.ENDPOINT and (scope is None or key.name in scope.writable):
            self._table.write(key, target, value, self._since)
        else:
            self._refuse(key, Scope.ENDPOINT)

    def set_pool(self, key: DataKey[T], value: T) -> None:
        """See `ColumnWriter`."""
        scope = self._scope
        if key.scope is Scope.POOL and (scope is None or key.name in scope.writable):
            self._table.write_pool(key, value)
        else:
            self._refuse(key, Scope.POOL)

    def endpoints(self) -> Iterable[Endpoint]:
        """See `ColumnWriter`."""
        return self._table.generation.endpoints

    def _refuse(self, key: DataKey[T], scope: Scope) -> None:
        if key.scope is not scope:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not '{scope}'")
        if self._scope is not None:
            self._on_violation(self._scope, key.name, "write")


class EndpointTable:
    """Rows change by generation, values change in place.

    A membership change copies the columns into a new `Generation`, so that a request keeps the rows it began with. Between two such
    changes writes go straight into the arrays: every reader is on the same thread and none of them awaits while it reads.

    The table is the `EndpointRegistry` that a discovery reports to.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        keys: Iterable[AnyKey] = (),
        on_violation: OnViolation = refuse,
        max_endpoints: int = sys.maxsize,
    ) -> None:
        """An empty table.

        Args:
            clock: Monotonic seconds; virtual in simulations.
            keys: What may be written: columns for scope `ENDPOINT`, single values for scope `POOL`; other scopes are ignored.
            on_violation: Told when a collector writes a key it does not produce; the value is dropped.
            max_endpoints: So many rows at most; endpoints beyond are left out. `serve` gives `MAX_ENDPOINTS` or what its operator says.
        """
        self.on_changed: list[Callable[[Generation], None]] = []
        """Called with the new generation after rows came, went or were replaced."""
        self.on_removed: list[Callable[[str], None]] = []
        """Called with the name of an endpoint whose learnt state is void: it left, or another address took over its name. Of many it is
        called in turns, first of names that come again: before they are there, or, where that would take long, soon after."""
        self.on_left_out: list[Callable[[], None]] = []
        """Called each time that a discovery names more endpoints than the table may have."""
        self.on_delivered: list[Callable[[], None]] = []
        """Called after collectors have read a payload: there may be news."""
        self.sent: set[str] = set()
        """Addresses to which requests were sent since the collection looked: an endpoint with work is asked as often as usual."""
        self.told = Told(clock)
        """What endpoints have told beside being polled."""
        self.rules = ModelRules()
        """What configuration and discovery say about models."""
        self.is_ready = asyncio.Event()
        """Set once a discovery has reported its first complete picture."""
        self.is_ending = asyncio.Event()
        """Set once the process has been told to end."""
        self.on_stand_by: list[Callable[[str], None]] = []
        """Called with the reason when this replica is to stand by, and with nothing when it is to serve."""
        self._void: dict[str, None] = {}
        """Names of `on_removed` that are still to be told, the first one first."""
        self._telling: asyncio.TimerHandle | None = None
        self._clock = clock
        self._on_violation = on_violation
        self._max_endpoints = max_endpoints
        self._pool_keys: frozenset[str] = frozenset()
        self._pool: dict[str, object] = {}
        self._pool_written_at: dict[str, float] = {}
        self._cells: dict[str, Cells] = {}
        self._generation = self._next_generation(())
        self.declare(keys)

    @property
    def generation(self) -> Generation:
        """The rows as they are now."""
        return self._generation

    def view(self, access: Access | None = None) -> Endpoints:
        """Every endpoint, as a plugin may see them; good until `generation` is another one."""
        generation = self._generation
        return KnownEndpoints(generation, None, access, generation.endpoints)

    def find(self, name: str) -> Endpoint | None:
        """The endpoint of that name now."""
        row = self._generation.row_of.get(name)
        return None if row is None else self._generation.endpoints[row]

    def declare(self, keys: Iterable[AnyKey]) -> None:
        """Make these the keys that may be written: at start, and again when a new plan takes over.

        A key that stays, with the same type, keeps its values.
        """
        declared = {key.name: key for key in keys}
        self._pool_keys = frozenset(name for name, key in declared.items() if key.scope is Scope.POOL)
        for name in self._pool.keys() - self._pool_keys:
            del self._pool[name], self._pool_written_at[name]
        rows = len(self._generation.endpoints)
        self._cells = {
            name: self._carried_over(key) or Cells.empty(key, rows) for name, key in declared.items() if key.scope is Scope.ENDPOINT
        }
        self._generation = self._next_generation(self._generation.endpoints)

    def writer(self, scope: AccessScope | None, endpoint: Endpoint | None = None, since: float | None = None) -> TableWriter:
        """Where an instance with this scope writes; `endpoint` is whose payload it read. No scope: host code, nothing is checked.

        `since` is when the payload was asked for; None for one that came by itself.
        """
        return TableWriter(self, scope, endpoint, self._on_violation, since)

    def write(self, key: AnyKey, endpoint: Endpoint, value: object, since: float | None = None) -> None:
        """Put a value into a column, unless the endpoint has left, moved to another address, or no instance declared the key.

        Nor where the endpoint has told another by itself `since` the value was asked for, which is then the older one.
        """
        cells = self._cells.get(key.name)
        generation = self._generation
        row = generation.row_of.get(endpoint.name)
        if cells is None or row is None:
            return
        now_there = generation.endpoints[row]
        if now_there is not endpoint and now_there.address != endpoint.address:
            return
        if since is not None and self.told.any and self.told.is_later(endpoint.name, key.name, since):
            return
        cells.write(row, value, self._clock())
        if key.is_shared:
            self.told.note(endpoint.name, key.name)

    def write_pool(self, key: AnyKey, value: object) -> None:
        """Put a value that belongs to the whole pool, unless no instance declared the key."""
        if key.name in self._pool_keys:
            self._pool[key.name] = value
            self._pool_written_at[key.name] = self._clock()

    def upsert(self, endpoint: Endpoint) -> None:
        """See `EndpointRegistry`."""
        members = {member.name: member for member in self._generation.endpoints}
        if endpoint.name not in members and len(members) >= self._max_endpoints:
            self._leave_out()
            return
        members[endpoint.name] = endpoint
        self._become(members)

    def remove(self, name: str) -> None:
        """See `EndpointRegistry`."""
        self._become({member.name: member for member in self._generation.endpoints if member.name != name})

    def replace_all(self, endpoints: Iterable[Endpoint]) -> None:
        """See `EndpointRegistry`."""
        wanted: dict[str, Endpoint] = {}
        are_too_many = False
        for endpoint in endpoints:
            if len(wanted) >= self._max_endpoints and endpoint.name not in wanted:
                are_too_many = True
                break
            wanted[endpoint.name] = endpoint
        self._become(wanted)
        if are_too_many:
            self._leave_out()

    def set_objectives(self, priorities: Mapping[str, int]) -> None:
        """See `EndpointRegistry`."""
        self.rules.objectives = dict(priorities)

    def set_rewrites(self, rewrites: Iterable[ModelRewrite]) -> None:
        """See `EndpointRegistry`."""
        self.rules.discovered(rewrites)

    def ready(self) -> None:
        """See `EndpointRegistry`."""
        self.is_ready.set()

    def stand_by(self, reason: str) -> None:
        """See `EndpointRegistry`."""
        for told in self.on_stand_by:
            told(reason)

    def until_ending(self) -> Coroutine[object, object, None]:
        """See `EndpointRegistry`."""
        return until_set(self.is_ending)

    def _leave_out(self) -> None:
        for told in self.on_left_out:
            told()

    def _become(self, wanted: Mapping[str, Endpoint]) -> None:
        before = {member.name: member for member in self._generation.endpoints}
        members = tuple(_unless_same(before.get(name), endpoint) for name, endpoint in wanted.items())
        if members == self._generation.endpoints:
            return
        again = [name for name in self._void if name in wanted]
        if again:
            # Some before they are there again, and no more: a discovery that takes thousands back tells thousands of names at once.
            self._void = dict.fromkeys([*again, *self._void])
            self._tell_removed()
        stay = {member.name for member in members if member.name in before and before[member.name].address == member.address}
        row_of = self._generation.row_of
        origins = [row_of[member.name] if member.name in stay else NEW_ROW for member in members]
        self._cells = {name: cells.moved(origins) for name, cells in self._cells.items()}
        self._generation = self._next_generation(members)
        for changed in tuple(self.on_changed):
            changed(self._generation)
        for name in before.keys() - stay:
            self.told.forget(name)
            self._void[name] = None
        self._tell_removed()

    def _tell_removed(self) -> None:
        """A few at once; of more some, and others when everything else has had its turns, as each may take plugins long to forget."""
        began, told = perf_counter(), 0
        while self._void:
            name = next(iter(self._void))
            del self._void[name]
            self._removed(name)
            told += 1
            if told >= _TOLD_AT_ONCE and perf_counter() - began > _TURN_SECONDS and self._tell_later(perf_counter() - began):
                return

    def _tell_later(self, took_seconds: float) -> bool:
        """Whether it is told later; where no event loop runs it cannot be."""
        if self._telling is not None:
            self._telling.cancel()
        self._telling = None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return False
        self._telling = loop.call_later(took_seconds * _REST_PER_TURN, self._tell_removed)
        return True

    def _removed(self, name: str) -> None:
        for removed in tuple(self.on_removed):
            removed(name)

    def _next_generation(self, members: tuple[Endpoint, ...]) -> Generation:
        columns = MappingProxyType({name: cells.column() for name, cells in self._cells.items()})
        return Generation(members, columns, MappingProxyType(self._pool), self._clock, MappingProxyType(self._pool_written_at))

    def _carried_over(self, key: AnyKey) -> Cells | None:
        cells = self._cells.get(key.name)
        return cells if cells is not None and cells.key.type is key.type else None


read_directly(EndpointTable, generation="_generation")


def _unless_same(old: Endpoint | None, new: Endpoint) -> Endpoint:
    """The old object when nothing about the endpoint changed, so that a reload of the same file is no change at all."""
    if old is None or old is new:
        return new
    same = old.address == new.address and old.metrics_address == new.metrics_address and old.labels == new.labels
    return old if same else new
