"""Scores from where a number lies between the smallest and the largest among the candidates."""

from __future__ import annotations

import numpy as np

from endpick.api import FloatArray


def smaller_is_better(values: FloatArray) -> FloatArray:
    """(largest - value) / (largest - smallest): 1 for the smallest, 0 for the largest, 1 for all when they are equal; NaN gives 0.

    Not finite values other than NaN do not occur in columns. Shape as `values`, which is not empty.
    """
    largest = values[values.argmax()]
    if np.isnan(largest):  # which `argmax` finds first
        return _among_the_known(values)
    spread = largest - values[values.argmin()]
    return (largest - values) / spread if spread > 0.0 else np.ones(len(values))


def _among_the_known(values: FloatArray) -> FloatArray:
    """The same where some are NaN: twice the work."""
    largest = np.fmax.reduce(values)
    spread = largest - np.fmin.reduce(values)
    if spread > 0.0:
        scores: FloatArray = np.fmax((largest - values) / spread, 0.0)
        return scores
    return np.where(np.isnan(values), 0.0, 1.0)
