"""Tests of `{{ cookiecutter.plugin_type }}`."""

from __future__ import annotations

from endpick.api import PluginContext
from endpick.testing import make_request, make_waiting
from hypothesis import given
from hypothesis import strategies as st

from {{ cookiecutter.__package }}.policy import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__class }},
)


def key(prompt: str, step: int) -> tuple[float, ...]:
    parameters = {{ cookiecutter.__parameters }}(step_bytes=step)
    plugin = {{ cookiecutter.__class }}("it", parameters, PluginContext())
    return plugin.sort_key(make_waiting(request=make_request(prompt)))


def test_sizes_of_one_step_are_equal() -> None:
    assert key("", step=10) == key("123456789", step=10) < key("1234567890", step=10)


@given(st.text(), st.text(), st.integers(1, 100))
def test_a_longer_prompt_never_goes_before_a_part_of_it(start: str, rest: str, step: int) -> None:
    assert key(start, step) <= key(start + rest, step)
