"""Per-request state: shared data under declared keys, and private scratch for each plugin."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np

from endpick.api.access import Access
from endpick.api.data import DataKey, Scope
from endpick.api.endpoints import Endpoints, FloatArray
from endpick.api.errors import UnknownKey

T = TypeVar("T")

_REQUEST: Final = Scope.REQUEST  # faster than an attribute of the enum
_CANDIDATE: Final = Scope.CANDIDATE


class ScoringState:
    """Read access to the request's state, which lives until the end of the response.

    The host creates it once per request. Under test, keys that the plugin does not declare raise `UndeclaredAccess`.
    """

    __slots__ = ("_access", "_columns", "_notes", "_private", "_profile_private", "_values")

    def __init__(self, access: Access | None = None) -> None:
        self._access = Access() if access is None else access
        self._values: dict[str, object] = {}
        self._columns: dict[str, tuple[Endpoints, FloatArray]] = {}
        self._notes: dict[str, dict[str, str | float | bool]] | None = None  # of the decision's record
        self._private: dict[str, dict[str, object]] = {}
        self._profile_private: dict[str, dict[str, object]] = {}

    def get(self, key: DataKey[T]) -> T | None:
        """Return the request's value of a key, or the key's default if it was not written.

        Raises:
            UnknownKey: The key's scope is not `REQUEST`.
        """
        if key.scope is not _REQUEST:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'request'")
        self._check_read(key.name)
        value: T | None = self._values.get(key.name, key.default)  # type: ignore[assignment]
        return value

    def column(self, key: DataKey[float], endpoints: Endpoints) -> FloatArray:
        """Return a number for each endpoint, shape `(len(endpoints),)`; NaN if not written.

        The array is a copy. The numbers are NaN, too, if the pool changed since they were written.

        Raises:
            UnknownKey: The key's scope is not `CANDIDATE`.
        """
        if key.scope is not _CANDIDATE:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'candidate'")
        self._check_read(key.name)
        stored = self._columns.get(key.name)
        if stored is None or stored[0]._generation is not endpoints._generation:
            return np.full(len(endpoints), np.nan)
        rows = endpoints._rows
        return stored[1].copy() if rows is None else stored[1][rows]

    @property
    def private(self) -> dict[str, object]:
        """The instance's own scratch for this request, a dictionary that other instances do not see."""
        scope = self._access.scope
        return self._private.setdefault(scope.instance if scope else "", {})

    @property
    def profile(self) -> dict[str, object]:
        """The instance's own scratch for this run of this profile, emptied before each run."""
        scope = self._access.scope
        return self._profile_private.setdefault(scope.instance if scope else "", {})

    def annotate(self, name: str, value: str | float | bool) -> None:
        """Note a fact for the decision's record and its trace, under the instance's name.

        Does nothing unless the decision is recorded.
        """
        if self._notes is not None:
            scope = self._access.scope
            self._notes.setdefault(scope.instance if scope else "", {})[name] = value

    def _check_read(self, name: str) -> None:
        scope = self._access.scope
        if scope is not None and name not in scope.readable:
            self._access.on_violation(scope, name, "read")


class CycleState(ScoringState):
    """Read and write access to the request's state.

    Attributes:
        first_chunk_at: Time of `PluginContext.clock` at the first body bytes of the response; None before them. Set by the host.
    """

    __slots__ = ("first_chunk_at",)

    def __init__(self, access: Access | None = None) -> None:
        super().__init__(access)
        self.first_chunk_at: float | None = None

    def put(self, key: DataKey[T], value: T) -> None:
        """Leave a value for the rest of the request, in place of an earlier one.

        Raises:
            UnknownKey: The key's scope is not `REQUEST`.
            UndeclaredAccess: The key is not in `produces`. Only under test.
        """
        if key.scope is not _REQUEST:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'request'")
        own_name = self._check_write(key.name)
        self._values[key.name] = value
        if own_name:
            self._values[own_name] = value

    def put_column(self, key: DataKey[float], endpoints: Endpoints, values: FloatArray) -> None:
        """Leave a number for each endpoint for the rest of the request.

        `endpoints` are the candidates passed to `produce`; `values` have shape `(len(endpoints),)`, and are copied.

        Raises:
            UnknownKey: The key's scope is not `CANDIDATE`.
            ValueError: The shape does not fit.
            UndeclaredAccess: The key is not in `produces`. Only under test.
        """
        if key.scope is not _CANDIDATE:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'candidate'")
        if values.shape != (endpoints._size,):
            raise ValueError(f"'{key.name}' needs one number for each of {len(endpoints)} endpoints, not shape {values.shape}")
        own_name = self._check_write(key.name)
        if endpoints._rows is None:
            full = np.array(values, np.float64)
        else:
            full = np.full(len(endpoints.pool_members), np.nan)
            full[endpoints._rows] = values
        self._columns[key.name] = endpoints, full
        if own_name:
            self._columns[own_name] = endpoints, full

    def _check_write(self, name: str) -> str | None:
        """The key's name for consumers of this producer only."""
        scope = self._access.scope
        if scope is None:
            return None
        if name not in scope.writable:
            self._access.on_violation(scope, name, "write")
        return scope.own_names.get(name)

    def _accessed_by(self, access: Access) -> CycleState:
        other = CycleState(access)
        other._values, other._columns = self._values, self._columns
        other._private, other._profile_private, other._notes = self._private, self._profile_private, self._notes
        return other

    def _begin_profile_run(self) -> None:
        self._profile_private = {}
