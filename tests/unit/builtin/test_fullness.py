"""How full a pool is where some of its endpoints say what cannot be."""

from __future__ import annotations

import numpy as np
import pytest

from endpick_builtin.admission.fullness import mean_fullness


@pytest.mark.parametrize("said", [5000.0, 1e308, np.inf])
@pytest.mark.parametrize("usual", [0.0, 0.6, 0.99])
def test_endpoints_that_say_that_they_are_full_do_not_have_the_whole_pool_full(said, usual):
    assert mean_fullness(np.array([said, said, *[usual] * 10])) == pytest.approx((2 * max(1.0, 2 * usual) + 10 * usual) / 12)
    assert mean_fullness(np.array([said, usual, usual, usual / 2])) < (1.0 if usual < 0.75 else 1.2)


def test_a_pool_that_is_fuller_than_full_is_as_full_as_it_says():
    assert mean_fullness(np.array([20.0, 30.0, 10.0, 25.0])) == pytest.approx(85 / 4)
    assert mean_fullness(np.array([0.0, 4.0, 0.1])) == pytest.approx(4.1 / 3)
    assert mean_fullness(np.array([np.nan, 0.5, np.nan, 0.5])) == 0.75
    assert mean_fullness(np.empty(0)) == 1.0
