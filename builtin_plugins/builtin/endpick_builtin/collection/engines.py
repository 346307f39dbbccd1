"""The metrics of each engine: names, labels, and how series become one number."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, field_validator

from endpick_builtin.camel_parameters import CamelParameters

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(?:\"([^\"\\]*)\"|'([^'\\]*)'|((?!~)[^\s,{}=\"']+))\s*"
_SPEC = re.compile(rf"\s*({_NAME})\s*(?:\{{\s*((?:{_LABEL}(?:,\s*{_LABEL})*,?\s*)?)\}}\s*)?")
_LABELS = re.compile(_LABEL)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """Selects the series of a metric by name and labels."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        labels = ",".join(f'{label}="{value}"' for label, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


def parse_spec(text: str) -> MetricSpec | None:
    """Parse `name` or `name{label=value}`; returns None for empty text, and raises ValueError."""
    if not text.strip():
        return None
    match = _SPEC.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' names no metric; write `name` or `name{{label=value}}`")
    labels = _LABELS.findall(match[2] or "")
    return MetricSpec(match[1], {label: double or single or bare for label, double, single, bare in labels})


def _checked(text: str) -> str:
    parse_spec(text)
    return text


SpecText: TypeAlias = Annotated[str, AfterValidator(_checked), Field(examples=["vllm:num_requests_waiting", "name{label=value}"])]


Aggregation: TypeAlias = Literal["sum", "mean", "max", "min"]
"""How the series of a metric become one number."""


AGGREGATE: Mapping[Aggregation, Callable[[Sequence[float]], float]] = {
    "sum": math.fsum,
    "mean": lambda values: math.fsum(values) / len(values),
    "max": max,
    "min": min,
}


class CustomMetric(CamelParameters):
    """An additional number to keep for each endpoint."""

    attribute_key: Annotated[str, Field(min_length=1, description="Name of the data key it is kept under.")]
    metric_spec: Annotated[SpecText, Field(min_length=1, description="The metric to read.")]
    optional: Annotated[bool, Field(description="A page without the metric is no error.")] = False
    aggregation: Annotated[
        Aggregation, Field(description="The number for several series, such as one per engine: `sum`, `mean`, `max` or `min`.")
    ] = "sum"


class EngineConfig(CamelParameters):
    """The metrics of one engine. An empty spec means that the engine has no such metric."""

    name: Annotated[str, Field(min_length=1, description="The engine's name, as endpoints carry it in the engine label.")]
    queued_requests_spec: Annotated[SpecText, Field(description="Requests waiting.")] = ""
    running_requests_spec: Annotated[SpecText, Field(description="Requests running.")] = ""
    kv_usage_spec: Annotated[SpecText, Field(description="Share of the KV cache in use, 0 to 1.")] = ""
    lora_spec: Annotated[SpecText, Field(description="LoRA adapters, in the labels of the series with the greatest value.")] = ""
    cache_info_spec: Annotated[SpecText, Field(description="KV-cache layout, in the labels of the series.")] = ""
    cache_block_size_label_name: Annotated[str, Field(description="Label of the cache info that holds tokens per block.")] = "block_size"
    cache_num_blocks_label_name: Annotated[str, Field(description="Label of the cache info that holds the number of blocks.")] = (
        "num_gpu_blocks"
    )
    cache_block_size_spec: Annotated[SpecText, Field(description="Tokens per KV-cache block, if the engine has a metric for it.")] = ""
    cache_num_blocks_spec: Annotated[SpecText, Field(description="Number of KV-cache blocks, if the engine has a metric for it.")] = ""
    custom_metrics: Annotated[tuple[CustomMetric, ...], Field(description="Additional numbers to keep, under your data keys.")] = ()

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, name: str) -> str:
        if name == "default":
            raise ValueError("'default' is a reserved name; name the engine, and choose it with defaultEngine")
        return name


def _nixl(attribute_key: str, metric: str) -> CustomMetric:
    return CustomMetric(attribute_key=attribute_key, metric_spec=metric, optional=True)


BUILT_IN_ENGINES = (
    EngineConfig(
        name="vllm",
        queued_requests_spec="vllm:num_requests_waiting",
        running_requests_spec="vllm:num_requests_running",
        kv_usage_spec="vllm:kv_cache_usage_perc",
        lora_spec="vllm:lora_requests_info",
        cache_info_spec="vllm:cache_config_info",
        custom_metrics=(
            _nixl("NixlFailedTransfers", "vllm:nixl_num_failed_transfers_total"),
            _nixl("NixlFailedNotifications", "vllm:nixl_num_failed_notifications_total"),
            _nixl("NixlKVExpiredRequests", "vllm:nixl_num_kv_expired_reqs_total"),
        ),
    ),
    EngineConfig(
        name="sglang",
        queued_requests_spec="sglang:num_queue_reqs",
        running_requests_spec="sglang:num_running_reqs",
        kv_usage_spec="sglang:token_usage",
        cache_info_spec="sglang:cache_config_info",
        cache_block_size_label_name="page_size",
        cache_num_blocks_label_name="num_pages",
        # Metrics since SGLang 0.5.11, labels before.
        cache_block_size_spec="sglang:page_size",
        cache_num_blocks_spec="sglang:num_pages",
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
    EngineConfig(
        name="atom",
        queued_requests_spec="atom:requests_waiting",
        running_requests_spec="atom:requests_running",
        kv_usage_spec="atom:kv_cache_usage_ratio",
        cache_info_spec="atom:cache_config_info",
    ),
    EngineConfig(
        name="tokenspeed",
        queued_requests_spec="tokenspeed:num_requests_waiting",
        running_requests_spec="tokenspeed:num_requests_running",
        kv_usage_spec="tokenspeed:kv_cache_usage_perc",
    ),
    EngineConfig(name="triton", queued_requests_spec="nv_inference_pending_request_count", running_requests_spec="nv_inference_exec_count"),
)
