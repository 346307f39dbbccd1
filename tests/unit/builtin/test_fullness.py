"""Fullness of a pool with implausible reports."""

from __future__ import annotations

import numpy as np
import pytest

from endpick_builtin.admission.detectors import mean_fullness


@pytest.mark.parametrize(("reported", "usual"), [(5000.0, 0.0), (np.inf, 0.99)])
def test_mean_fullness_limits_outliers(reported, usual):
    assert mean_fullness(np.array([reported, reported, *[usual] * 10])) == pytest.approx((2 * max(1.0, 2 * usual) + 10 * usual) / 12)


def test_mean_fullness_of_overfull_and_unknown_endpoints():
    assert mean_fullness(np.array([20.0, 30.0, 10.0, 25.0])) == pytest.approx(85 / 4)
    assert mean_fullness(np.array([0.0, 4.0, 0.1])) == pytest.approx(4.1 / 3)
    assert mean_fullness(np.array([np.nan, 0.5, np.nan, 0.5])) == 0.75
    assert mean_fullness(np.empty(0)) == 1.0
