"""The rows and columns behind every view of endpoints: what holds between two changes of the pool's membership. Made by the host alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from endpick.api.endpoint import Endpoint


def _nothing() -> Mapping[str, float]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Column:
    """One data key's values for every row of a table generation, read-only.

    Attributes:
        values: float64 for numeric keys and object otherwise.
        written_at: Monotonic seconds, -inf where never written.
        derived: Results of `Endpoints.derived`; its owner empties it when a value changes.
    """

    values: NDArray[np.float64] | NDArray[np.object_]
    written_at: NDArray[np.float64]
    derived: dict[object, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Generation:
    """The rows of the endpoint table between two membership changes. Made by the host; plugins hold views of it.

    Values change in place as data arrives; rows never do. A request that began before a membership change keeps its generation.
    """

    endpoints: tuple[Endpoint, ...]
    columns: Mapping[str, Column]
    pool: Mapping[str, object]
    clock: Callable[[], float]
    pool_written_at: Mapping[str, float] = field(default_factory=_nothing)
    """When each value of `pool` was written, in the seconds of `clock`."""
    row_of: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_of", {endpoint.name: row for row, endpoint in enumerate(self.endpoints)})
