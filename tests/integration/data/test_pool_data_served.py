"""A whole process that routes by a document: endpoints by what a file says of each, and other instances by what it says of all."""

from __future__ import annotations

import asyncio
import json

import pytest

from integration.plugins.serving import serving

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: http-pool-source, parameters: {path: pool.json, interval: 100ms}}
- type: json-values-extractor
  parameters:
    values: [{attributeKey: acme/quota, pointer: /quota, perEndpoint: true}, {attributeKey: acme/price, pointer: /price}]
- {type: endpoint-attribute-scorer, parameters: {attributeKey: acme/quota, algorithm: {type: linear_higher_is_better}}}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
  sources: [{pluginRef: http-pool-source, collectors: [{pluginRef: json-values-extractor}]}]
"""


@pytest.mark.asyncio
async def test_requests_follow_a_pool_file_and_its_changes(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text(
        'endpoints: [{name: a, address: 127.0.0.1, port: "1"}, {name: b, address: 127.0.0.1, port: "2"}]\n'
    )
    document = tmp_path / "pool.json"
    document.write_text(json.dumps({"quota": {"a": 1, "b": 2}, "price": 3}))
    async with serving(tmp_path) as picker:
        for best, quota in (("127.0.0.1:2", {"a": 1, "b": 2}), ("127.0.0.1:1", {"a": 5, "b": 2})):
            document.write_text(json.dumps({"quota": quota, "price": 3}))
            async with asyncio.timeout(20):
                while (await picker.ask())[0] != best:  # noqa: ASYNC110 - read by another process
                    await asyncio.sleep(0.05)
        ages = await picker.samples("endpick_data_age_seconds")
        assert ages[(("key", "acme/price"),)] < 10
        document.unlink()
        async with asyncio.timeout(20):
            while not await picker.samples("llm_d_epp_datalayer_poll_errors_total"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert (await picker.ask())[0] == "127.0.0.1:1", "what is known stays"
