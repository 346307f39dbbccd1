"""Metrics pages in the shapes that real servers and exporters give them, one after the other, over a real socket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from aiohttp import web

from endpick.api import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    LoraAdapters,
    MetricsPage,
    PluginContext,
    Unavailable,
)
from endpick.testing import make_pool
from endpick_builtin.collection.core_metrics import CORE_KEYS, CoreMetricsExtractor, CoreMetricsParameters
from unit.builtin.pages import at, metrics_source, serving, started

TEXT = b"""\
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 3.0
vllm:num_requests_running{model_name="m"} 1
vllm:kv_cache_usage_perc{model_name="m"} 2.5e-1
"""
OPEN_METRICS = b"""\
# TYPE vllm:num_requests_waiting gauge
# UNIT vllm:num_requests_waiting requests
vllm:num_requests_waiting{model_name="say \\"m\\"\\\\n"} 4 1700000000.25 # {trace_id="a b"} 9 1700000001
vllm:num_requests_running{model_name="m"} 2 1.7e9
vllm:kv_cache_usage_perc{model_name="m"} 5E-1
# EOF
"""
TWICE = b"""\
vllm:num_requests_waiting{model_name="m"} 5
vllm:num_requests_waiting{model_name="m"} 6
vllm:num_requests_running 3
vllm:kv_cache_usage_perc 0.75
"""
UNKNOWN = b"vllm:num_requests_waiting NaN\nvllm:num_requests_running +Inf\nvllm:kv_cache_usage_perc -Inf\n"
NONSENSE = (b"<html><body>502</body></html>", b'{"vllm:num_requests_waiting": 9}', b"\x00\xff" * 100, b"", UNKNOWN)


class Read:
    """What is known of one endpoint after some pages."""

    def __init__(self) -> None:
        self.table = make_pool(1, keys=CORE_KEYS)
        self.collector = CoreMetricsExtractor("core", CoreMetricsParameters(), PluginContext())

    def collect(self, page: MetricsPage) -> None:
        self.collector.collect(page, self.table.writer(None, *self.table.generation.endpoints))

    def known(self, *keys) -> list[float]:
        return [float(self.table.view()[key][0]) for key in keys or (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)]


@pytest.mark.asyncio
async def test_a_page_may_change_its_format_from_one_scrape_to_the_next():
    pages = [TEXT, OPEN_METRICS, TWICE, *NONSENSE, TEXT.replace(b"\n", b"\r\n")]
    left = iter(pages)

    async def handler(request):
        return web.Response(body=next(left))

    read = Read()
    seen = []
    async with serving(handler) as port, started(metrics_source()) as source:
        for body in pages:
            page = await source.poll(at(port))
            if body in NONSENSE:
                with pytest.raises(Unavailable):
                    read.collect(page)
            else:
                read.collect(page)
            seen.append(read.known())

    assert seen[:3] == [[3.0, 1.0, 0.25], [4.0, 2.0, 0.5], [5.0, 3.0, 0.75]]
    assert seen[3:-1] == [[5.0, 3.0, 0.75]] * len(NONSENSE), "what makes no sense leaves all as it was"
    assert seen[-1] == [3.0, 1.0, 0.25]


def test_a_page_that_a_real_vllm_wrote_is_read():
    path = Path(os.environ.get("ENDPICK_TEST_DATA", "../shared/data")) / "pages" / "vllm-0.32.0.txt"
    if not path.is_file():
        pytest.skip("needs a captured page; set ENDPICK_TEST_DATA")
    read = Read()

    read.collect(MetricsPage(path.read_bytes()))

    assert read.known() == [24.0, 16.0, 0.18823529411764706]
    assert read.known(CACHE_BLOCK_SIZE) == [32.0]
    assert read.known(CACHE_NUM_BLOCKS)[0] > 0
    (adapters,) = read.table.view().objects(LORA_ADAPTERS)
    assert adapters == LoraAdapters(frozenset({"tiny-lora"}), frozenset({"tiny-lora"}), 2)
