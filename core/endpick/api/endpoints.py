"""Endpoints and what is known of them, as plugins see it: immutable views of rows and columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from endpick.api.access import Access
from endpick.api.data import DataKey, Scope
from endpick.api.endpoint import Endpoint
from endpick.api.errors import UnknownKey
from endpick.api.generation import Column, Generation

T = TypeVar("T")
V = TypeVar("V")
Scalar = TypeVar("Scalar", bound=np.generic)

FloatArray: TypeAlias = NDArray[np.float64]
BoolArray: TypeAlias = NDArray[np.bool_]
RowArray: TypeAlias = NDArray[np.intp]


def _read_only(values: FloatArray) -> FloatArray:
    values.flags.writeable = False
    return values


def unchangeable(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """A copy in memory that nothing can make writable again. An array of objects is the same one, read-only for those who leave it so."""
    if values.dtype.hasobject or not values.size:
        values.flags.writeable = False
        return values
    copied: NDArray[Scalar] = np.frombuffer(values.tobytes(), values.dtype)
    return copied if values.ndim == 1 else copied.reshape(values.shape)


class Endpoints:
    """An immutable, ordered view of some endpoints and their columns: the candidates a plugin is asked about.

    Iterating gives `Endpoint`s. All arrays have shape `(len(endpoints),)`, in the order of iteration; columns are read-only.
    """

    __slots__ = ("_access", "_generation", "_members", "_ones", "_pool_members", "_rows", "_size")

    def __init__(self, generation: Generation, rows: RowArray | None = None, access: Access | None = None) -> None:
        """Made by the host, and by `where`, `take` and `only`; `rows=None` means every row of the generation."""
        self._generation = generation
        self._rows = rows
        self._access = Access() if access is None else access
        self._pool_members = generation.endpoints
        self._members: tuple[Endpoint, ...] | None = None
        self._size = len(generation.endpoints) if rows is None else len(rows)
        self._ones: dict[int, Endpoints] = {}
        """What `take` has answered for one position: pickers take one, and of the whole pool the same ones again and again."""

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.members)

    def __contains__(self, endpoint: object) -> bool:
        return endpoint in self.members

    def __repr__(self) -> str:
        return f"Endpoints({[endpoint.name for endpoint in self.members]})"

    @property
    def members(self) -> tuple[Endpoint, ...]:
        """The endpoints themselves, in order. Costs one pass over them the first time; prefer columns."""
        if self._members is None:
            pool, rows = self._pool_members, self._rows
            self._members = pool if rows is None else tuple([pool[row] for row in rows.tolist()])
        return self._members

    @property
    def pool_members(self) -> tuple[Endpoint, ...]:
        """Every endpoint of the pool, whichever of them this view holds.

        The same tuple until an endpoint joins, leaves or changes: a plugin that works something out from labels or names keeps the tuple
        beside the result, and works it out again when `pool_members` is another one. `gather` then picks what this view needs.
        """
        return self._pool_members

    def gather(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """The entries for the endpoints of this view out of an array with one entry for each of `pool_members`, in their order."""
        return values if self._rows is None else values[self._rows]

    def pool_position(self, name: str) -> int | None:
        """Where the endpoint of that name stands among `pool_members`; None when it is not in the pool."""
        return self._generation.row_of.get(name)

    def position(self, name: str) -> int | None:
        """Where the endpoint of that name stands in this view, as `take` counts; None when the view does not hold it."""
        row = self._generation.row_of.get(name)
        if row is None or self._rows is None:
            return row
        found = (self._rows == row).nonzero()[0]
        return int(found[0]) if len(found) else None

    def __getitem__(self, key: DataKey[float]) -> FloatArray:
        """The numbers of a column, read-only; NaN where nothing has been reported yet.

        Raises:
            UnknownKey: the key is not a number per endpoint (its scope is another, or its type is not float).
            UndeclaredAccess: under test, when the running plugin does not consume the key.
        """
        scope, column = self._access.scope, self._generation.columns.get(key.name)
        # What `_column` does, without its call where nothing is out of the ordinary: scorers do little else.
        limit = None
        if column is None or (scope is not None and key.name not in scope.unlimited):
            column, limit = self._column(key), self._limit(key)
        if column is None:
            return _read_only(np.full(len(self), np.nan))
        if not key.is_number:
            raise UnknownKey(f"'{key.name}' holds {key.type.__name__} objects, not numbers; read it with endpoints.objects(...)")
        if limit is not None:
            return _read_only(np.where(self._is_fresh(column, limit), self.gather(column.values), np.nan))
        if self._rows is None:
            return column.values[...]  # type: ignore[return-value]  # a view for each caller, which may change its shape
        values: FloatArray = column.values[self._rows]  # type: ignore[assignment]
        values.flags.writeable = False
        return values

    def derived(self, key: DataKey[float], work: Callable[[FloatArray], T]) -> T:
        """What `work` makes of a column; for the whole pool it is worked out again only when a value of the column has changed.

        Model servers report some times a second, and requests come in thousands: what depends on a column alone, such as the scores that
        follow from queue lengths, need not be worked out for each of them.

        Args:
            key: Of a column of numbers.
            work: A function of the column, as `endpoints[key]` gives it, and of nothing else. Functions are told apart by equality, so pass
                one of a module, or the method of an instance, and no lambda made for the call.

        Returns:
            The result. An array that `work` made is read-only then, for the next request may get the same.

        Raises:
            UnknownKey, UndeclaredAccess: as `endpoints[key]`.
        """
        scope, column = self._access.scope, self._generation.columns.get(key.name)
        if column is None or self._rows is not None or (scope is not None and key.name not in scope.unlimited):
            return work(self[key])
        found = column.derived.get(work, column)
        if found is column:  # which is in no result
            found = work(self[key])
            if isinstance(found, np.ndarray):
                found = unchangeable(found)
            column.derived[work] = found
        return found  # type: ignore[return-value]

    def derived_from_objects(self, key: DataKey[V], work: Callable[[Sequence[V | None]], T]) -> T:
        """What `work` makes of a column of objects for the whole pool; worked out again only when a value of the column has changed.

        A loop over objects is slow where arithmetic on numbers is not: let `work` make arrays of them, with one entry for each of
        `pool_members` in their order, and let `gather` pick what this view needs.

        Args:
            key: Of a column of objects.
            work: A function of the objects of `pool_members`, None where nothing has been reported yet, and of nothing else; functions are
                told apart as for `derived`.

        Raises:
            UnknownKey, UndeclaredAccess: as `objects`.
        """
        column = self._column(key)
        if column is None:
            return work([None] * len(self._generation.endpoints))
        if self._limit(key) is not None:
            fresh: list[V | None] = Endpoints(self._generation, None, self._access)._objects(key)
            return work(fresh)
        found = column.derived.get(work, column)
        if found is column:  # which is in no result
            found = work(column.values.tolist())
            column.derived[work] = found
        return found  # type: ignore[return-value]

    def objects(self, key: DataKey[T]) -> Sequence[T | None]:
        """The objects of a column; None where nothing has been reported yet.

        Raises:
            UnknownKey: the key's scope is not `ENDPOINT`.
            UndeclaredAccess: under test, when the running plugin does not consume the key.
        """
        return self._objects(key)

    def _objects(self, key: DataKey[T]) -> list[Any]:
        column = self._column(key)
        if column is None:
            return [None] * len(self)
        values = column.values if self._rows is None else column.values[self._rows]
        objects: list[Any] = values.tolist()
        limit = self._limit(key)
        if limit is not None:
            fresh = self._is_fresh(column, limit).tolist()
            return [value if is_fresh else None for value, is_fresh in zip(objects, fresh, strict=True)]
        return objects

    def age(self, key: DataKey[T]) -> FloatArray:
        """Seconds since each value of the column was written; +inf where it never was.

        A plugin that takes old values for stale says how old in `tolerated_age_seconds`; to find them missing, see
        `DataKey.no_older_than`, which changes no age.

        Raises:
            UnknownKey: the key's scope is not `ENDPOINT`.
        """
        column = self._column(key)
        if column is None:
            return np.full(len(self), np.inf)
        written_at = column.written_at if self._rows is None else column.written_at[self._rows]
        return self._generation.clock() - written_at

    def pool(self, key: DataKey[T]) -> T | None:
        """A value that belongs to the whole pool; the key's default while no plugin has written it, or where it is older than allowed.

        Raises:
            UnknownKey: the key's scope is not `POOL`.
        """
        if key.scope is not Scope.POOL:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'pool'")
        scope = self._access.scope
        if scope is not None and key.name not in scope.readable:
            self._access.on_violation(scope, key.name, "read")
        limit = self._limit(key)
        if limit is not None and self.pool_age(key) > limit:
            return key.default
        value: T | None = self._generation.pool.get(key.name, key.default)  # type: ignore[assignment]
        return value

    def pool_age(self, key: DataKey[T]) -> float:
        """Seconds since a value that belongs to the whole pool was written; +inf while no plugin has written it.

        Raises:
            UnknownKey: the key's scope is not `POOL`.
        """
        if key.scope is not Scope.POOL:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'pool'")
        return self._generation.clock() - self._generation.pool_written_at.get(key.name, -np.inf)

    def where(self, mask: BoolArray) -> Endpoints:
        """The endpoints whose mask is True, in the same order.

        Args:
            mask: Boolean array of shape `(len(self),)`.

        Raises:
            ValueError: the mask has another shape or is not boolean.
        """
        if mask.shape != (len(self),) or mask.dtype != np.bool_:
            raise ValueError(f"a mask for {len(self)} endpoints must be a boolean array of that length, not {mask.dtype} {mask.shape}")
        # Here and in `take`: in arrays as small as these, counting or `argmax` takes a fifth of the time of `all` or `max`.
        if np.count_nonzero(mask) == len(mask):
            return self
        return Endpoints(self._generation, mask.nonzero()[0] if self._rows is None else self._rows[mask], self._access)

    def take(self, positions: Sequence[int] | RowArray) -> Endpoints:
        """The endpoints at these positions of this view, in the order given.

        Raises:
            IndexError: a position is outside the view.
        """
        if len(positions) == 1:
            position = int(positions[0])
            one = self._ones.get(position)
            if one is None:
                one = self._ones[position] = self._one(position)
            return one
        wanted = np.array(positions, np.intp)  # a copy: whose array it is may change it
        if len(wanted) and not (wanted[wanted.argmin()] >= 0 and wanted[wanted.argmax()] < self._size):
            raise IndexError(f"a position is outside the {self._size} endpoints of this view")
        return Endpoints(self._generation, wanted if self._rows is None else self._rows[wanted], self._access)

    def _one(self, position: int) -> Endpoints:
        if not 0 <= position < self._size:
            raise IndexError(f"a position is outside the {self._size} endpoints of this view")
        row = position if self._rows is None else int(self._rows[position])
        rows = np.array([row], dtype=np.intp)
        rows.flags.writeable = False
        return KnownEndpoints(self._generation, rows, self._access, (self._pool_members[row],))

    def only(self, keep: Callable[[Endpoint], bool]) -> Endpoints:
        """The endpoints for which `keep` is true: for plugins that think one endpoint at a time."""
        return self.where(np.fromiter((keep(endpoint) for endpoint in self.members), dtype=np.bool_, count=len(self)))

    def _accessed_by(self, access: Access) -> Endpoints:
        """The same view judged by another `Access`: for plugins that run across an await."""
        return Endpoints(self._generation, self._rows, access)

    def each(self) -> Iterator[EndpointRow]:
        """One `EndpointRow` per endpoint, for `PerEndpointScorer`s."""
        return (EndpointRow(endpoint, self, position) for position, endpoint in enumerate(self.members))

    def _row_numbers(self) -> RowArray:
        return np.arange(len(self._generation.endpoints)) if self._rows is None else self._rows

    def _limit(self, key: DataKey[T]) -> float | None:
        scope = self._access.scope
        return None if scope is None else scope.max_ages.get(key.name)

    def _is_fresh(self, column: Column, limit: float) -> BoolArray:
        return self.gather(column.written_at) >= self._generation.clock() - limit

    def _column(self, key: DataKey[T]) -> Column | None:
        if key.scope is not Scope.ENDPOINT:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', so it is no column of the endpoint table")
        scope = self._access.scope
        if scope is not None and key.name not in scope.readable:
            self._access.on_violation(scope, key.name, "read")
        column = self._generation.columns.get(key.name)
        if column is None and key.producer:
            return self._generation.columns.get(key.shared_name)
        return column


class KnownEndpoints(Endpoints):
    """A view whose members are known from the start: of the whole pool, or of one endpoint. Made by the host."""

    __slots__ = ("_known",)

    def __init__(self, generation: Generation, rows: RowArray | None, access: Access | None, members: tuple[Endpoint, ...]) -> None:
        super().__init__(generation, rows, access)
        self._known = members

    @property
    def members(self) -> tuple[Endpoint, ...]:
        """See `Endpoints`."""
        return self._known


@dataclass(frozen=True, slots=True)
class EndpointRow:
    """One endpoint with its values: convenient, and slower than columns from about thirty endpoints on."""

    endpoint: Endpoint
    view: Endpoints = field(repr=False)
    position: int = field(repr=False)

    @property
    def name(self) -> str:
        """`namespace/name`."""
        return self.endpoint.name

    @property
    def address(self) -> str:
        """`host:port`."""
        return self.endpoint.address

    @property
    def labels(self) -> Mapping[str, str]:
        """As discovery gave them."""
        return self.endpoint.labels

    def __getitem__(self, key: DataKey[float]) -> float:
        """The endpoint's number; NaN when it has not been reported. Raises as `Endpoints.__getitem__`."""
        return float(self.view[key][self.position])

    def object(self, key: DataKey[T]) -> T | None:
        """The endpoint's object; None when it has not been reported. Raises as `Endpoints.objects`."""
        return self.view.objects(key)[self.position]
