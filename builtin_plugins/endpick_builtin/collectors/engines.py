"""Under which names model-server engines report what endpick wants to know."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from endpick.api import Parameters
from endpick_builtin.collectors.metric_spec import SpecText

LABEL_KEY = "llm-d.ai/engine-type"
LEGACY_LABEL_KEY = "inference.networking.k8s.io/engine-type"


class CustomMetric(Parameters):
    """A further number to keep for each endpoint."""

    attribute_key: Annotated[str, Field(alias="attributeKey", min_length=1, description="Name of the data key it is kept under.")]
    metric_spec: Annotated[SpecText, Field(alias="metricSpec", min_length=1, description="The metric to read.")]


class EngineConfig(Parameters):
    """The metrics of one engine. A spec that is empty means the engine has no such metric."""

    name: Annotated[str, Field(min_length=1, description="The engine's name, as endpoints carry it in the engine label.")]
    queued_requests_spec: Annotated[SpecText, Field(alias="queuedRequestsSpec", description="Requests waiting.")] = ""
    running_requests_spec: Annotated[SpecText, Field(alias="runningRequestsSpec", description="Requests being worked on.")] = ""
    kv_usage_spec: Annotated[SpecText, Field(alias="kvUsageSpec", description="Share of the KV cache in use, 0 to 1.")] = ""
    lora_spec: Annotated[
        SpecText, Field(alias="loraSpec", description="LoRA adapters, in the labels of the series with the greatest value.")
    ] = ""
    cache_info_spec: Annotated[SpecText, Field(alias="cacheInfoSpec", description="KV-cache layout, in the labels of the series.")] = ""
    cache_block_size_label_name: Annotated[
        str, Field(alias="cacheBlockSizeLabelName", description="Label of the cache info that holds tokens per block.")
    ] = "block_size"
    cache_num_blocks_label_name: Annotated[
        str, Field(alias="cacheNumBlocksLabelName", description="Label of the cache info that holds the number of blocks.")
    ] = "num_gpu_blocks"
    cache_block_size_spec: Annotated[
        SpecText, Field(alias="cacheBlockSizeSpec", description="Tokens per KV-cache block, where it is a metric of its own.")
    ] = ""
    cache_num_blocks_spec: Annotated[
        SpecText, Field(alias="cacheNumBlocksSpec", description="Number of KV-cache blocks, where it is a metric of its own.")
    ] = ""
    custom_metrics: Annotated[
        tuple[CustomMetric, ...], Field(alias="customMetrics", description="Further numbers to keep, under data keys of your own.")
    ] = ()

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name == "default":
            raise ValueError("'default' is a reserved name; name the engine, and choose it with defaultEngine")
        return name


BUILT_IN_ENGINES = (
    EngineConfig(
        name="vllm",
        queued_requests_spec="vllm:num_requests_waiting",
        running_requests_spec="vllm:num_requests_running",
        kv_usage_spec="vllm:kv_cache_usage_perc",
        lora_spec="vllm:lora_requests_info",
        cache_info_spec="vllm:cache_config_info",
    ),
    EngineConfig(
        name="sglang",
        queued_requests_spec="sglang:num_queue_reqs",
        running_requests_spec="sglang:num_running_reqs",
        kv_usage_spec="sglang:token_usage",
        cache_info_spec="sglang:cache_config_info",
        cache_block_size_label_name="page_size",
        cache_num_blocks_label_name="num_pages",
    ),
    EngineConfig(
        name="trtllm-serve",
        queued_requests_spec="trtllm_num_requests_waiting",
        running_requests_spec="trtllm_num_requests_running",
        kv_usage_spec="trtllm_kv_cache_utilization",
        cache_block_size_spec="trtllm_kv_cache_tokens_per_block",
        cache_num_blocks_spec="trtllm_kv_cache_max_blocks",
    ),
    EngineConfig(
        name="triton-tensorrt-llm",
        queued_requests_spec="nv_trt_llm_request_metrics{request_type=waiting}",
        running_requests_spec="nv_trt_llm_request_metrics{request_type=scheduled}",
        kv_usage_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        cache_block_size_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
        cache_num_blocks_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
    ),
    EngineConfig(name="triton", queued_requests_spec="nv_inference_pending_request_count", running_requests_spec="nv_inference_exec_count"),
)
