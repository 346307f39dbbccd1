"""A whole process that routes by metrics which are pushed to it."""

from __future__ import annotations

import asyncio
import json
import socket

import aiohttp
import pytest

from integration.plugins.serving import serving

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: file-discovery, parameters: {path: endpoints.yaml}}
- {type: otlp-source, parameters: {port: PORT}}
- {type: core-metrics-extractor}
- {type: queue-scorer}
dataLayer:
  injectDefaults: false
  discovery: {endpoints: {pluginRef: file-discovery}}
  sources: [{pluginRef: otlp-source, collectors: [{pluginRef: core-metrics-extractor}]}]
"""


def export(**queues: float) -> bytes:
    def point(value):
        return {"gauge": {"dataPoints": [{"asDouble": value}]}}

    names = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc")
    return json.dumps(
        {
            "resourceMetrics": [
                {
                    "resource": {"attributes": [{"key": "service.instance.id", "value": {"stringValue": name}}]},
                    "scopeMetrics": [
                        {
                            "metrics": [
                                {"name": "vllm:num_requests_waiting", **point(queue)},
                                *({"name": other, **point(0)} for other in names),
                            ]
                        }
                    ],
                }
                for name, queue in queues.items()
            ]
        }
    ).encode()


@pytest.mark.asyncio
async def test_requests_follow_what_is_pushed(tmp_path):
    with socket.socket() as chosen:
        chosen.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        chosen.bind(("127.0.0.1", 0))  # and not listening: the picker, which sets the same option, gets all connections
        port = chosen.getsockname()[1]
        (tmp_path / "config.yaml").write_text(CONFIG.replace("PORT", str(port)))
        (tmp_path / "endpoints.yaml").write_text(
            'endpoints: [{name: a, address: 127.0.0.1, port: "1"}, {name: b, address: 127.0.0.1, port: "2"}]\n'
        )
        async with serving(tmp_path) as picker, aiohttp.ClientSession() as session:
            for queues, best in (({"a": 5, "b": 0}, "127.0.0.1:2"), ({"a": 1, "b": 7}, "127.0.0.1:1")):
                async with asyncio.timeout(20):
                    while (await picker.ask())[0] != best:
                        url = f"http://127.0.0.1:{port}/v1/metrics"
                        async with session.post(url, data=export(**queues), headers={"content-type": "application/json"}) as response:
                            assert response.status == 200
            assert await picker.samples("llm_d_epp_datalayer_extract_errors_total") == {}
