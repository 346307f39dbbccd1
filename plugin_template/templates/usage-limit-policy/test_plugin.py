"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

import pytest
from endpick.api import PluginContext

from {{ cookiecutter.__package }}.policy import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__class }},
)


@pytest.mark.parametrize(
    ("priorities", "ceilings"),
    [((), []), ((0,), [1.0]), ((5, 0, -1), [1.0, 0.75, 0.75])],
)
def test_only_the_highest_priority_may_fill_the_pool(priorities: tuple[int, ...], ceilings: list[float]) -> None:
    parameters = {{ cookiecutter.__parameters }}(reserve=0.25)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())

    assert list(plugin.ceilings(0.5, priorities)) == ceilings
