"""What is known of one request while it lives: shared data under declared keys, and each plugin's private scratch."""

from __future__ import annotations

from typing import Final, TypeVar

import numpy as np

from endpick.api.access import Access
from endpick.api.data import DataKey, Scope
from endpick.api.endpoints import Endpoints, FloatArray
from endpick.api.errors import UnknownKey
from endpick.api.keys import PrefixBlocks, PromptTokens

T = TypeVar("T")
_HASH_BYTES: Final = 40
"""Of a block's hash: a number of 64 bits, and where it stands."""
_COLUMN_BYTES: Final = 600
"""Of a column beside its numbers: the array, and what its producer and its readers keep in `private`, an object or two each."""

_REQUEST: Final = Scope.REQUEST
_CANDIDATE: Final = Scope.CANDIDATE
"""Each request asks for them some times, and an attribute of an enum is slow to find."""


class ScoringState:
    """The cycle state as filters, scorers, pickers and profile handlers see it: they read what producers left.

    Lives from the decision to the end of the response, so a `PreRequest` or `ResponseObserver` finds in `private` what the same
    instance left there.
    """

    __slots__ = ("_access", "_columns", "_left_bytes", "_private", "_profile_private", "_values")

    def __init__(self, access: Access | None = None) -> None:
        """Made by the host, once per request."""
        self._access = Access() if access is None else access
        self._values: dict[str, object] = {}
        self._columns: dict[str, tuple[Endpoints, FloatArray]] = {}
        self._left_bytes = [0]
        """About what all that producers left takes, for the host; shared by all who write to this state."""
        self._private: dict[str, dict[str, object]] = {}
        self._profile_private: dict[str, dict[str, object]] = {}

    def get(self, key: DataKey[T]) -> T | None:
        """The request's value under `key`; the key's default when no producer wrote it.

        Raises:
            UnknownKey: the key's scope is not `REQUEST`.
            UndeclaredAccess: under test, when the running plugin does not consume the key.
        """
        if key.scope is not _REQUEST:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'request'")
        scope = self._access.scope
        if scope is not None and key.name not in scope.readable:
            self._access.on_violation(scope, key.name, "read")
        value: T | None = self._values.get(key.name, key.default)  # type: ignore[assignment]
        return value

    def column(self, key: DataKey[float], endpoints: Endpoints) -> FloatArray:
        """The request's number for each of these endpoints; NaN where no producer wrote one. Shape `(len(endpoints),)`.

        Raises:
            UnknownKey: the key's scope is not `CANDIDATE`.
            UndeclaredAccess: under test, when the running plugin does not consume the key.
        """
        if key.scope is not _CANDIDATE:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'candidate'")
        scope = self._access.scope
        if scope is not None and key.name not in scope.readable:
            self._access.on_violation(scope, key.name, "read")
        stored = self._columns.get(key.name)
        if stored is None or stored[0]._generation is not endpoints._generation:
            return np.full(len(endpoints), np.nan)
        rows = endpoints._rows
        return stored[1].copy() if rows is None else stored[1][rows]  # either is the reader's own

    @property
    def private(self) -> dict[str, object]:
        """The running instance's own scratch for this request; no other instance sees it."""
        scope = self._access.scope
        return self._private.setdefault(scope.instance if scope else "", {})

    @property
    def profile(self) -> dict[str, object]:
        """The running instance's scratch for this run of this profile: two profiles never overwrite each other."""
        scope = self._access.scope
        return self._profile_private.setdefault(scope.instance if scope else "", {})


class CycleState(ScoringState):
    """The cycle state as data producers see it: they may write the keys they declared under `produces`.

    What they write is found under the key and, for consumers that insist on one producer, under `key.from_producer(instance)`.
    """

    __slots__ = ()

    def put(self, key: DataKey[T], value: T) -> None:
        """Leave a value for the rest of the request.

        Raises:
            UnknownKey: the key's scope is not `REQUEST`.
            UndeclaredAccess: under test, when the running plugin does not produce the key.
        """
        if key.scope is not _REQUEST:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'request'")
        scope = self._access.scope
        if scope is not None and key.name not in scope.writable:
            self._access.on_violation(scope, key.name, "write")
        # A film of years is a mebibyte of tokens, though the body has two hundred bytes.
        left: object = value
        if type(left) is tuple:
            for each in left:
                if type(each) is PromptTokens:
                    self._left_bytes[0] += each.token_ids.nbytes
        elif type(left) is PrefixBlocks and type(left.hashes) is tuple:
            self._left_bytes[0] += _HASH_BYTES * len(left.hashes)
        self._values[key.name] = value
        if scope is not None and key.name in scope.own_names:
            self._values[scope.own_names[key.name]] = value

    def put_column(self, key: DataKey[float], endpoints: Endpoints, values: FloatArray) -> None:
        """Leave a number for each of these endpoints for the rest of the request.

        Args:
            key: Of scope `CANDIDATE`.
            endpoints: The candidates, as `produce` was given them.
            values: Shape `(len(endpoints),)`; what is written to it afterwards is not seen.

        Raises:
            UnknownKey: the key's scope is not `CANDIDATE`.
            ValueError: the shape does not fit.
            UndeclaredAccess: under test, when the running plugin does not produce the key.
        """
        if key.scope is not _CANDIDATE:
            raise UnknownKey(f"'{key.name}' has scope '{key.scope}', not 'candidate'")
        if values.shape != (endpoints._size,):
            raise ValueError(f"'{key.name}' needs one number for each of {len(endpoints)} endpoints, not shape {values.shape}")
        scope = self._access.scope
        if scope is not None and key.name not in scope.writable:
            self._access.on_violation(scope, key.name, "write")
        if endpoints._rows is not None:
            full = np.full(len(endpoints.pool_members), np.nan)
            full[endpoints._rows] = values
            values = full
        else:  # whose array it is may change it, and a class of its own may do anything: its readers would be blamed
            values = np.array(values, np.float64)
        self._left_bytes[0] += values.nbytes + _COLUMN_BYTES
        self._columns[key.name] = endpoints, values
        if scope is not None and key.name in scope.own_names:
            self._columns[scope.own_names[key.name]] = endpoints, values

    def _accessed_by(self, access: Access) -> CycleState:
        """The same state judged by another `Access`: for plugins that run across an await."""
        other = CycleState(access)
        other._values, other._columns = self._values, self._columns
        other._private, other._profile_private = self._private, self._profile_private
        other._left_bytes = self._left_bytes
        return other

    def _begin_profile_run(self) -> None:
        """Called by the host before each profile run: gives every instance an empty `profile` scratch."""
        self._profile_private = {}
