"""The rows and columns behind every view of endpoints, between two membership changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from endpick.api.endpoint import Endpoint


@dataclass(frozen=True, slots=True)
class Column:
    """The read-only values of one data key, one per row.

    Attributes:
        values: float64 for numeric keys, object otherwise.
        written_at: Monotonic seconds; -inf if never written.
        derived: Results of `Endpoints.derived`; emptied when a value changes.
    """

    values: NDArray[np.float64] | NDArray[np.object_]
    written_at: NDArray[np.float64]
    derived: dict[object, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Generation:
    """The endpoint table between two membership changes. Rows never change; values change in place."""

    endpoints: tuple[Endpoint, ...]
    columns: Mapping[str, Column]
    pool: Mapping[str, object]
    clock: Callable[[], float]
    pool_written_at: Mapping[str, float] = field(default_factory=dict)
    row_of: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "row_of", {endpoint.name: row for row, endpoint in enumerate(self.endpoints)})
