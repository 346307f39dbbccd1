"""A third-party package decides about real requests, by being installed and named: `endpick serve` from a venv that pip filled."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AbstractAsyncContextManager

import pytest

from integration.plugins.serving import Picker, metrics_page, serving

pytestmark = pytest.mark.long

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
  - type: file-discovery
    parameters: {path: endpoints.yaml}
  - type: acme.cool-scorer
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""


def model_server(temperatures: dict[str, float], name: str) -> AbstractAsyncContextManager[int]:
    """Something with a metrics page that tells a temperature; yields its port."""
    gpu = 'acme_gpu_temperature_celsius{{gpu="{}"}} {}\n'
    return metrics_page(lambda: gpu.format(0, 30) + gpu.format(1, temperatures[name]))


async def until_all_go_to(picker: Picker, address: str) -> None:
    """Ask until ten requests in a row have gone to one address: the first ones come before its temperature is known."""
    async with asyncio.timeout(20):
        while (seen := Counter([await picker.ask() for _ in range(10)])) != {(address, 0): 10}:
            assert seen
            await asyncio.sleep(0.05)


@pytest.mark.asyncio
async def test_requests_go_to_the_cool_endpoint_and_follow_it(plugin_venv, tmp_path):
    temperatures = {"a": 85.0, "b": 45.0}
    async with model_server(temperatures, "a") as port_a, model_server(temperatures, "b") as port_b:
        endpoints = [{"name": name, "address": "127.0.0.1", "port": str(port)} for name, port in (("a", port_a), ("b", port_b))]
        (tmp_path / "endpoints.yaml").write_text(json.dumps({"endpoints": endpoints}))
        (tmp_path / "config.yaml").write_text(CONFIG)

        async with serving(tmp_path, python=plugin_venv, path=None) as picker:
            await until_all_go_to(picker, f"127.0.0.1:{port_b}")
            temperatures["b"] = 89.0
            await until_all_go_to(picker, f"127.0.0.1:{port_a}")
