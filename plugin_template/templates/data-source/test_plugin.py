"""Tests of `{{ cookiecutter.plugin_type }}` and its collector."""

from __future__ import annotations

import asyncio
import socket
import time

import pytest
from endpick.api import Endpoint, Parameters, PluginContext, Unavailable
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


def source() -> {{ cookiecutter.__class }}:
    return {{ cookiecutter.__class }}("it", {{ cookiecutter.__parameters }}(), PluginContext(clock=time.monotonic))


def collected(payload: {{ cookiecutter.__payload }}) -> float:
    """The value of the only endpoint after one payload."""
    table = make_pool(1, keys=[{{ cookiecutter.__key }}])
    collector = {{ cookiecutter.__collector }}("it", Parameters(), PluginContext())
    collector.collect(payload, table.writer(None, *table.view()))
    return float(table.view()[{{ cookiecutter.__key }}][0])


@pytest.mark.asyncio
async def test_time_to_connect_is_measured() -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        started = time.monotonic()
        payload = await source().poll(Endpoint("default/e", "127.0.0.1", server.sockets[0].getsockname()[1]))

    assert 0 < payload.connect_seconds <= time.monotonic() - started


@pytest.mark.asyncio
async def test_endpoint_that_refuses_connections_is_unavailable() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound, but not listening
        endpoint = Endpoint("default/e", "127.0.0.1", bound.getsockname()[1])
        with pytest.raises(Unavailable, match=f"cannot connect to {endpoint.address}"):
            await source().poll(endpoint)


@given(st.floats(0, 1e6))
def test_measurements_become_the_column(seconds: float) -> None:
    assert collected({{ cookiecutter.__payload }}(seconds)) == seconds
