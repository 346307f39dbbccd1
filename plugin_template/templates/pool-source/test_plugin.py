"""Tests of `{{ cookiecutter.plugin_type }}` and its collector."""

from __future__ import annotations

from pathlib import Path

import pytest
from endpick.api import Parameters, PluginContext, Unavailable
from endpick.testing import make_pool
from hypothesis import given
from hypothesis import strategies as st

from {{ cookiecutter.__package }}.collector import {{ cookiecutter.__collector }}
from {{ cookiecutter.__package }}.keys import {{ cookiecutter.__key }}
from {{ cookiecutter.__package }}.source import (
    {{ cookiecutter.__parameters }},
    {{ cookiecutter.__payload }},
    {{ cookiecutter.__class }},
)


def source(path: Path) -> {{ cookiecutter.__class }}:
    return {{ cookiecutter.__class }}("it", {{ cookiecutter.__parameters }}(path=str(path)), PluginContext())


def collected(payload: {{ cookiecutter.__payload }}) -> float | None:
    """The value for plugins after one payload."""
    table = make_pool(1, keys=[{{ cookiecutter.__key }}])
    collector = {{ cookiecutter.__collector }}("it", Parameters(), PluginContext())
    collector.collect(payload, table.writer(None))
    return table.view().pool({{ cookiecutter.__key }})


@pytest.mark.asyncio
async def test_file_is_read_each_time(tmp_path: Path) -> None:
    path = tmp_path / "number.txt"
    found = []
    for text in ("0.25", " 3\n"):
        path.write_text(text)
        found.append(await source(path).poll_pool())

    assert found == [{{ cookiecutter.__payload }}(0.25), {{ cookiecutter.__payload }}(3.0)]


@pytest.mark.asyncio
@pytest.mark.parametrize("text", [None, "", "much"])
async def test_file_without_a_number_is_unavailable(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "number.txt"
    if text is not None:
        path.write_text(text)
    with pytest.raises(Unavailable, match="cannot read a number from"):
        await source(path).poll_pool()


@given(st.floats(0, 1e6))
def test_plugins_can_read_the_number(value: float) -> None:
    assert collected({{ cookiecutter.__payload }}(value)) == value


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_invalid_number_is_dropped(value: float) -> None:
    with pytest.raises(Unavailable, match="is not a valid number"):
        collected({{ cookiecutter.__payload }}(value))
