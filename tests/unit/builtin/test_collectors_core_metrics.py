"""What the core metrics extractor makes of the pages of each engine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pydantic import ValidationError

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    DataKey,
    Endpoint,
    MetricsPage,
    PluginContext,
    Unavailable,
)
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS, LoraAdapters
from endpick_builtin.collection.core_metrics import CORE_KEYS, CoreMetricsExtractor, CoreMetricsParameters

VLLM = """\
# HELP vllm:num_requests_waiting Requests waiting.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 9.0
vllm:num_requests_running{engine="0",model_name="m"} 5.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.42
vllm:lora_requests_info{max_lora="2",running_lora_adapters="lora1",waiting_lora_adapters=" lora4 , ,lora5"} 3000
vllm:lora_requests_info{max_lora="4",running_lora_adapters="lora2,lora3",waiting_lora_adapters=""} 1000
vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",enable_prefix_caching="True"} 1.0
"""
SGLANG_LAYOUT = 'sglang:cache_config_info{page_size="64",num_pages="11147"} 1'
SGLANG = """\
sglang:num_queue_reqs 20
sglang:num_running_reqs 2
sglang:token_usage 0.1
sglang:cache_config_info{page_size="64",num_pages="11147"} 1
"""
TRTLLM = """\
trtllm_num_requests_waiting 1
trtllm_num_requests_running 2
trtllm_kv_cache_utilization 0.3
trtllm_kv_cache_tokens_per_block 32
trtllm_kv_cache_max_blocks 500
"""
TRITON_TRTLLM = """\
nv_trt_llm_request_metrics{model="m",request_type="waiting",version="1"} 4
nv_trt_llm_request_metrics{model="m",request_type="scheduled",version="1"} 6
nv_trt_llm_request_metrics{model="m",request_type="max",version="1"} 99
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="m"} 0.42
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="tokens_per",model="m"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="m"} 6239
"""
TRITON = """\
nv_inference_pending_request_count{model="m",version="1"} 7
nv_inference_exec_count{model="m",version="1"} 8
"""
ATOM = """\
atom:requests_waiting 1
atom:requests_running 2
atom:kv_cache_usage_ratio 0.5
atom:cache_config_info{block_size="16",num_gpu_blocks="300"} 1
"""
TOKENSPEED = """\
tokenspeed:num_requests_waiting 3
tokenspeed:num_requests_running 4
tokenspeed:kv_cache_usage_perc 0.25
"""


class Written:
    """A column writer that keeps what was written."""

    def __init__(self, labels: Mapping[str, str] | None = None, name: str = "default/a") -> None:
        self.endpoint = Endpoint(name, "10.0.0.1", 8000, labels or {})
        self.values: dict[str, object] = {}

    def set(self, key, value, endpoint=None):
        assert endpoint is None
        self.values[key.name] = value

    def set_pool(self, key, value):
        raise AssertionError("a metrics page is no pool-wide payload")

    def endpoints(self):
        return (self.endpoint,)


def extractor(**parameters) -> CoreMetricsExtractor:
    return CoreMetricsExtractor("core", CoreMetricsParameters.model_validate(parameters), PluginContext())


def collected(page: str, labels: Mapping[str, str] | None = None, **parameters) -> dict[str, object]:
    writer = Written(labels)
    extractor(**parameters).collect(MetricsPage(page.encode()), writer)
    return writer.values


def numbers(waiting, running, usage, block_size=None, blocks=None) -> dict[str, object]:
    values = {
        WAITING_QUEUE_SIZE: waiting,
        RUNNING_REQUESTS_SIZE: running,
        KV_CACHE_USAGE: usage,
        CACHE_BLOCK_SIZE: block_size,
        CACHE_NUM_BLOCKS: blocks,
    }
    return {key.name: value for key, value in values.items() if value is not None}


def test_a_vllm_page_gives_everything():
    adapters = LoraAdapters(frozenset({"lora1"}), frozenset({"lora4", "lora5"}), 2)
    assert collected(VLLM) == {**numbers(3, 5, 0.42, 16, 1000), LORA_ADAPTERS.name: adapters}


@pytest.mark.parametrize(
    ("engine", "page", "values"),
    [
        ("sglang", SGLANG, numbers(20, 2, 0.1, 64, 11147)),
        ("sglang", SGLANG.replace(SGLANG_LAYOUT, "sglang:page_size 64\nsglang:num_pages 11147"), numbers(20, 2, 0.1, 64, 11147)),
        ("trtllm-serve", TRTLLM, numbers(1, 2, 0.3, 32, 500)),
        ("triton-tensorrt-llm", TRITON_TRTLLM, numbers(4, 6, 0.42, 64, 6239)),
        ("triton", TRITON, numbers(7, 8, None)),
        ("atom", ATOM, numbers(1, 2, 0.5, 16, 300)),
        ("tokenspeed", TOKENSPEED, numbers(3, 4, 0.25)),
    ],
)
def test_each_engine_has_its_own_names(engine, page, values):
    assert collected(page, {"llm-d.ai/engine-type": engine}) == values
    assert collected(page, defaultEngine=engine) == values


@pytest.mark.parametrize(
    ("labels", "waiting"),
    [
        ({"llm-d.ai/engine-type": "sglang"}, 20),
        ({"inference.networking.k8s.io/engine-type": "sglang"}, 20),
        ({"llm-d.ai/engine-type": "vllm", "inference.networking.k8s.io/engine-type": "sglang"}, 3),
        ({"llm-d.ai/engine-type": "unheard-of"}, 3),
        ({}, 3),
    ],
)
def test_engine_label_decides_with_a_default(labels, waiting):
    assert collected(VLLM + SGLANG, labels)[WAITING_QUEUE_SIZE.name] == waiting


def test_the_engine_label_may_have_another_key():
    assert collected(VLLM + SGLANG, {"engine": "sglang"}, engineLabelKey="engine")[WAITING_QUEUE_SIZE.name] == 20


def test_counts_are_whole_numbers():
    page = VLLM.replace("} 3.0", "} 3.9").replace("} 5.0", "} -0.5")
    values = collected(page)
    assert (values[WAITING_QUEUE_SIZE.name], values[RUNNING_REQUESTS_SIZE.name]) == (3, 0)


def test_what_is_there_is_written_though_the_rest_is_missing():
    writer = Written()
    with pytest.raises(Unavailable) as failure:
        extractor().collect(MetricsPage(b"vllm:num_requests_waiting 5\n"), writer)
    assert writer.values == {WAITING_QUEUE_SIZE.name: 5}
    assert str(failure.value) == "the metrics page has no number for vllm:num_requests_running, vllm:kv_cache_usage_perc"


@pytest.mark.parametrize("page", [b"", b"<html>no metrics here</html>", b"\x00\xff" * 100, b"vllm:num_requests_waiting many\n"])
def test_a_page_without_a_single_metric_writes_nothing(page):
    writer = Written()
    with pytest.raises(Unavailable, match="vllm:num_requests_waiting, vllm:num_requests_running, vllm:kv_cache_usage_perc"):
        extractor().collect(MetricsPage(page), writer)
    assert writer.values == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
def test_a_value_that_is_no_number_counts_as_missing(value):
    writer = Written()
    with pytest.raises(Unavailable, match="has no number for vllm:kv_cache_usage_perc"):
        extractor().collect(MetricsPage(VLLM.replace("0.42", value).encode()), writer)
    assert KV_CACHE_USAGE.name not in writer.values
    assert WAITING_QUEUE_SIZE.name in writer.values


def test_adapters_and_cache_layout_may_be_missing():
    page = "".join(line for line in VLLM.splitlines(keepends=True) if "lora" not in line and "cache_config" not in line)
    assert collected(page) == numbers(3, 5, 0.42)


@pytest.mark.parametrize("label", ["None", "", "-16", "1e3", "\u0661\u0666"])
def test_a_cache_layout_that_is_not_known_yet_is_left_out(label):
    values = collected(VLLM.replace('num_gpu_blocks="1000"', f'num_gpu_blocks="{label}"'))
    assert CACHE_NUM_BLOCKS.name not in values
    assert values[CACHE_BLOCK_SIZE.name] == 16


def test_adapters_of_a_server_without_limit_are_read():
    page = 'vllm:lora_requests_info{running_lora_adapters="",max_lora="many"} 1\n'
    writer = Written()
    with pytest.raises(Unavailable):
        extractor().collect(MetricsPage(page.encode()), writer)
    assert writer.values == {LORA_ADAPTERS.name: LoraAdapters()}


def test_adapters_are_those_of_the_series_the_spec_names():
    page = """\
        lora{engine="0",running_lora_adapters="mine",max_lora="1"} 1
        lora{engine="1",running_lora_adapters="other",max_lora="1"} 2
    """
    values = collected(page, defaultEngine="x", engineConfigs=[{"name": "x", "loraSpec": "lora{engine=0}"}])
    assert values == {LORA_ADAPTERS.name: LoraAdapters(frozenset({"mine"}), frozenset(), 1)}


def test_the_latest_sample_of_a_series_counts():
    page = "vllm:num_requests_waiting 6 1000\nvllm:num_requests_waiting 5 3000\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0\n"
    assert collected(page)[WAITING_QUEUE_SIZE.name] == 5


def test_own_engine_replaces_the_built_in_of_its_name():
    mine = {
        "name": "vllm",
        "queuedRequestsSpec": "my_queue{kind=waiting}",
        "cacheBlockSizeSpec": "my_block_size",
    }
    page = 'my_queue{kind="running"} 1\nmy_queue{kind="waiting"} 2\nmy_block_size 128\n'
    assert collected(VLLM + page, engineConfigs=[mine]) == {WAITING_QUEUE_SIZE.name: 2, CACHE_BLOCK_SIZE.name: 128}
    assert collected(SGLANG, {"llm-d.ai/engine-type": "sglang"}, engineConfigs=[mine])[WAITING_QUEUE_SIZE.name] == 20


NIXL_KEYS = tuple(DataKey(name, float) for name in ("NixlFailedTransfers", "NixlFailedNotifications", "NixlKVExpiredRequests"))
CUSTOM = {
    "name": "mine",
    "customMetrics": [{"attributeKey": "acme.example/gpu-temperature", "metricSpec": "gpu_temperature{gpu=0}"}],
}


def test_custom_metrics_are_columns_under_keys_of_ones_own():
    temperature = DataKey("acme.example/gpu-temperature", float)
    parameters = CoreMetricsParameters.model_validate({"defaultEngine": "mine", "engineConfigs": [CUSTOM]})
    produced = CoreMetricsExtractor.subscriptions(parameters).produces
    assert produced == (*CORE_KEYS, *NIXL_KEYS, temperature)
    assert produced[-1].is_number
    page = 'gpu_temperature{gpu="1"} 99\ngpu_temperature{gpu="0"} 61.5\n'
    assert collected(page, defaultEngine="mine", engineConfigs=[CUSTOM]) == {temperature.name: 61.5}
    with pytest.raises(Unavailable, match=r'has no number for gpu_temperature\{gpu="0"\}'):
        collected("", defaultEngine="mine", engineConfigs=[CUSTOM])


def test_a_custom_key_of_two_engines_is_produced_once():
    parameters = CoreMetricsParameters.model_validate({"engineConfigs": [CUSTOM, {**CUSTOM, "name": "other"}]})
    assert [key.name for key in CoreMetricsExtractor.subscriptions(parameters).produces].count("acme.example/gpu-temperature") == 1


def test_without_parameters_the_declared_keys_are_the_core_keys():
    produced = CoreMetricsExtractor.subscriptions(CoreMetricsParameters()).produces
    assert produced == (*CoreMetricsExtractor.produces, *NIXL_KEYS)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"defaultEngine": "unheard-of"}, "defaultEngine 'unheard-of' not found in engineConfigs; there are vllm, sglang"),
        ({"engineConfigs": [{"name": "default"}]}, "'default' is a reserved name"),
        ({"engineConfigs": [{"name": ""}]}, "at least 1 character"),
        ({"engineConfigs": [{}]}, "name"),
        ({"engineConfigs": [{"name": "vllm"}, {"name": "vllm"}]}, "engine 'vllm' already exists"),
        ({"engineConfigs": [{"name": "x", "kvUsageSpec": "a{"}]}, "'a{' names no metric"),
        ({"engineConfigs": [{"name": "x", "kvUsage": "a"}]}, "kvUsage"),
        ({"engineConfigs": [{"name": "x", "customMetrics": [{"attributeKey": "k", "metricSpec": ""}]}]}, "metricSpec"),
        (
            {"engineConfigs": [{"name": "x", "customMetrics": [{"attributeKey": "kv-cache-usage", "metricSpec": "a"}]}]},
            "data key of endpick",
        ),
    ],
)
def test_parameters_that_cannot_work_are_refused(parameters, message):
    with pytest.raises(ValidationError, match=message):
        CoreMetricsParameters.model_validate(parameters)
