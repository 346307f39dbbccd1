"""The cells behind one generation's columns: arrays the table writes to, and the read-only views that plugins see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from endpick.api.data import AnyKey
from endpick.api.endpoints import Column, FloatArray

NEW_ROW = -1
"""In a list of origins: this row takes over nothing."""


@dataclass(frozen=True, slots=True)
class Cells:
    """One column as its owner holds it; `written_at` is -inf where nothing was ever written."""

    key: AnyKey
    values: NDArray[np.float64] | NDArray[np.object_]
    written_at: FloatArray

    @classmethod
    def empty(cls, key: AnyKey, rows: int) -> Cells:
        """A column nobody has written to: NaN for numbers, None for objects."""
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
        self.values[row] = value  # type: ignore[call-overload]
        self.written_at[row] = now

    def column(self) -> Column:
        """The read-only view of these cells: it shows later writes and refuses its own."""
        values, written_at = self.values.view(), self.written_at.view()
        values.flags.writeable = written_at.flags.writeable = False
        return Column(values, written_at)
