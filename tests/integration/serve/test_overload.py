"""A served process short of memory: what it refuses, and that it recovers."""

from __future__ import annotations

import pytest

from integration.plugins.serving import Picker, serving
from integration.serve.gateway import until

pytestmark = pytest.mark.asyncio

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: acme.hoarder}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
HOARDER = """
from pathlib import Path

from endpick.api import DataProducer


class Hoarder(DataProducer):
    kept = b""

    def produce(self, request, endpoints, state):
        if request.headers["x-request-id"].isdigit():
            self.kept = b"x" * (int(request.headers["x-request-id"]) << 20)
"""


async def reaches(picker: Picker, name: str) -> None:
    async def reached() -> bool:
        found = await picker.samples("endpick_overload_stage")
        return next(labels[0][1] for labels, value in found.items() if value) == name

    await until(reached, f"stage {name}")


async def test_requests_are_refused_until_there_is_memory_again(tmp_path, make_distribution):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text('endpoints: [{name: a, address: 127.0.0.1, port: "1"}]\n')
    hoarder = make_distribution("acme-hoarder", {"acme.hoarder": "hoarder:Hoarder"}, modules={"hoarder": HOARDER})
    async with serving(tmp_path, "--max-memory=500Mi", path=[hoarder]) as picker:
        assert await picker.ask() == ("127.0.0.1:1", 0)
        call, _ = await picker.begin(request_id="400")
        await reaches(picker, "refusing")
        refusal = await (await picker.announce()).read()
        assert refusal.immediate_response.status.code == 503
        assert (await picker.health())[1].count("short of memory: new requests get 503") == 1
        assert (await picker.samples("endpick_overload_refusals_total"))[("action", "refused"),] == 1
        call.cancel()
        assert await picker.logged("short of memory: new requests get 503")


async def test_memory_limit_below_the_process_size_is_refused(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG.replace("- {type: acme.hoarder}\n", ""))
    (tmp_path / "endpoints.yaml").write_text("endpoints: []\n")
    with pytest.raises(AssertionError, match="E0807"):
        async with serving(tmp_path, "--max-memory=32Mi"):
            pass
