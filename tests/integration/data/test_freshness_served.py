"""A whole process in which one instance takes no old figures: they count as missing for it, and their age is exported."""

from __future__ import annotations

import asyncio
import json

import aiohttp
import pytest

from integration.data.test_otlp_served import export
from integration.plugins.serving import serving

pytestmark = pytest.mark.long

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: otlp-source, parameters: {port: 0, grpcPort: null}}
- {type: core-metrics-extractor}
- {type: http-pool-source, parameters: {path: pool.json, interval: 100ms}}
- {type: json-values-extractor, parameters: {values: [{attributeKey: acme/quota, pointer: /quota, perEndpoint: true}]}}
- {type: queue-scorer, maxAge: 2s}
- {type: endpoint-attribute-scorer, parameters: {attributeKey: acme/quota, algorithm: {type: linear_higher_is_better}}}
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: 5}, {pluginRef: endpoint-attribute-scorer, weight: 1}]
dataLayer:
  injectDefaults: false
  discovery: {endpoints: {pluginRef: file-discovery}}
  sources:
  - {pluginRef: otlp-source, collectors: [{pluginRef: core-metrics-extractor}]}
  - {pluginRef: http-pool-source, collectors: [{pluginRef: json-values-extractor}]}
"""
AGE = "endpick_data_age_seconds"


@pytest.mark.asyncio
async def test_a_figure_decides_until_it_is_too_old(tmp_path):
    (tmp_path / "config.yaml").write_text(CONFIG)
    (tmp_path / "endpoints.yaml").write_text(
        'endpoints: [{name: a, address: 127.0.0.1, port: "1"}, {name: b, address: 127.0.0.1, port: "2"}]\n'
    )
    (tmp_path / "pool.json").write_text(json.dumps({"quota": {"a": 2, "b": 1}}))
    async with serving(tmp_path) as picker, aiohttp.ClientSession() as session:
        (told,) = await picker.logged("takes metrics over OTLP at")
        listening = str(told["event"]).split()[-1]
        async with asyncio.timeout(30):
            while (await picker.ask())[0] != "127.0.0.1:1":  # noqa: ASYNC110 - the document is read by another process
                await asyncio.sleep(0.05)
            while (await picker.ask())[0] != "127.0.0.1:2":
                async with session.post(listening, data=export(a=5, b=0), headers={"content-type": "application/json"}) as response:
                    assert response.status == 200
            while (await picker.ask())[0] != "127.0.0.1:1":  # noqa: ASYNC110 - nothing is pushed any more, and the figures age
                await asyncio.sleep(0.05)
        ages = {dict(labels)["key"]: age for labels, age in (await picker.samples(AGE)).items()}
        assert ages["waiting-queue-size"] >= 2 > ages["acme/quota"]
