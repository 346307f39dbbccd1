"""`core-metrics-extractor`: queue, load, KV cache and LoRA adapters from metrics pages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Self, TypeAlias

from pydantic import AfterValidator, Field, field_validator, model_validator

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    ColumnWriter,
    DataCollector,
    DataKey,
    MetricsPage,
    Parameters,
    PluginContext,
    Subscriptions,
    Unavailable,
)
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS, LoraAdapters
from endpick.api.metrics import MetricSample

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r"([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*(?:\"([^\"\\]*)\"|'([^'\\]*)'|((?!~)[^\s,{}=\"']+))\s*"
_SPEC = re.compile(rf"\s*({_NAME})\s*(?:\{{\s*((?:{_LABEL}(?:,\s*{_LABEL})*,?\s*)?)\}}\s*)?")
_LABELS = re.compile(_LABEL)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric name and labels of the series."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        labels = ",".join(f'{label}="{value}"' for label, value in self.labels.items())
        return f"{self.name}{{{labels}}}" if labels else self.name


def parse_spec(text: str) -> MetricSpec | None:
    """Parse `name` or `name{label=value}`; None for empty text. Raises ValueError."""
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

LABEL_KEY = "llm-d.ai/engine-type"
LEGACY_LABEL_KEY = "inference.networking.k8s.io/engine-type"


class CustomMetric(Parameters):
    """An additional number to keep for each endpoint."""

    attribute_key: Annotated[str, Field(alias="attributeKey", min_length=1, description="Name of the data key it is kept under.")]
    metric_spec: Annotated[SpecText, Field(alias="metricSpec", min_length=1, description="The metric to read.")]


class EngineConfig(Parameters):
    """The metrics of one engine. An empty spec means that the engine has no such metric."""

    name: Annotated[str, Field(min_length=1, description="The engine's name, as endpoints carry it in the engine label.")]
    queued_requests_spec: Annotated[SpecText, Field(alias="queuedRequestsSpec", description="Requests waiting.")] = ""
    running_requests_spec: Annotated[SpecText, Field(alias="runningRequestsSpec", description="Requests running.")] = ""
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
        SpecText, Field(alias="cacheBlockSizeSpec", description="Tokens per KV-cache block, if the engine has a metric for it.")
    ] = ""
    cache_num_blocks_spec: Annotated[
        SpecText, Field(alias="cacheNumBlocksSpec", description="Number of KV-cache blocks, if the engine has a metric for it.")
    ] = ""
    custom_metrics: Annotated[
        tuple[CustomMetric, ...], Field(alias="customMetrics", description="Additional numbers to keep, under your data keys.")
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
    EngineConfig(name="triton", queued_requests_spec="nv_inference_pending_request_count", running_requests_spec="nv_inference_exec_count"),
)


class EngineReader:
    """Reads the metrics of one `EngineConfig`."""

    def __init__(self, config: EngineConfig) -> None:
        counts = ((WAITING_QUEUE_SIZE, config.queued_requests_spec), (RUNNING_REQUESTS_SIZE, config.running_requests_spec))
        layout = ((CACHE_BLOCK_SIZE, config.cache_block_size_spec), (CACHE_NUM_BLOCKS, config.cache_num_blocks_spec))
        self._counts = tuple(_parsed(counts))
        self._usage = parse_spec(config.kv_usage_spec)
        self._custom = tuple(_parsed(custom_keys_of(config)))
        self._layout = tuple(_parsed(layout))
        self._lora = parse_spec(config.lora_spec)
        self._cache_info = parse_spec(config.cache_info_spec)
        self._cache_labels = (
            (CACHE_BLOCK_SIZE, config.cache_block_size_label_name),
            (CACHE_NUM_BLOCKS, config.cache_num_blocks_label_name),
        )

    def read(self, page: MetricsPage, writer: ColumnWriter) -> list[str]:
        """Write the values; returns missing required metrics."""
        missing = []
        for key, spec in self._counts:
            if (count := _whole(page, spec)) is None:
                missing.append(str(spec))
            else:
                writer.set(key, count)
        if self._usage is not None:
            value = _number(page, self._usage)
            if value is None or value < 0:
                missing.append(str(self._usage))
            else:
                writer.set(KV_CACHE_USAGE, min(value, 1.0))
        for key, spec in self._custom:
            if (value := _number(page, spec)) is None:
                missing.append(str(spec))
            else:
                writer.set(key, value)
        self._read_cache_layout(page, writer)
        if self._lora and (adapters := _lora_adapters(page, self._lora)):
            writer.set(LORA_ADAPTERS, adapters)
        return missing

    def _read_cache_layout(self, page: MetricsPage, writer: ColumnWriter) -> None:
        for key, spec in self._layout:
            if (count := _whole(page, spec)) is not None:
                writer.set(key, count)
        info = page.newest(self._cache_info.name, self._cache_info.labels) if self._cache_info else None
        if info is not None:
            for key, label in self._cache_labels:
                if (count := _count(info.labels.get(label, ""))) is not None:
                    writer.set(key, count)


def custom_keys_of(config: EngineConfig) -> tuple[tuple[DataKey[float], str], ...]:
    """With their specs."""
    return tuple(
        (DataKey(custom.attribute_key, float, doc=f"The metric {custom.metric_spec}, as the model server reports it."), custom.metric_spec)
        for custom in config.custom_metrics
    )


def _parsed(specs: tuple[tuple[DataKey[float], str], ...]) -> Iterator[tuple[DataKey[float], MetricSpec]]:
    for key, text in specs:
        if spec := parse_spec(text):
            yield key, spec


def _number(page: MetricsPage, spec: MetricSpec) -> float | None:
    """None for NaN and infinities: exporters write them for unknown values."""
    sample = page.newest(spec.name, spec.labels)
    if sample is None:
        return None
    value = sample.value
    return value if math.isfinite(value) else None


def _whole(page: MetricsPage, spec: MetricSpec) -> int | None:
    value = _number(page, spec)
    return math.trunc(value) if value is not None and value > -1 else None


def _lora_adapters(page: MetricsPage, spec: MetricSpec) -> LoraAdapters | None:
    """A series' value is the time of its last change."""
    newest: MetricSample | None = None
    for sample in page.samples(spec.name):
        if spec.labels.items() <= sample.labels.items() and (newest is None or sample.value > newest.value):
            newest = sample
    if newest is None:
        return None
    labels = newest.labels
    return _adapters(labels.get("running_lora_adapters", ""), labels.get("waiting_lora_adapters", ""), labels.get("max_lora", ""))


@lru_cache(maxsize=1024)
def _adapters(running: str, waiting: str, maximum: str) -> LoraAdapters:
    return LoraAdapters(_names(running), _names(waiting), _count(maximum) or 0)


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _count(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else None


_MAX_DIGITS = 15  # larger numbers are not exact in a column
CORE_KEYS = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS)


class CoreMetricsParameters(Parameters):
    """Engines and the names of their metrics."""

    engine_label_key: Annotated[
        str, Field(alias="engineLabelKey", description=f"Endpoint label that names the engine; `{LEGACY_LABEL_KEY}` is read too.")
    ] = LABEL_KEY
    default_engine: Annotated[
        str, Field(alias="defaultEngine", description="The engine of endpoints without that label, or with an unknown value.")
    ] = "vllm"
    engine_configs: Annotated[
        tuple[EngineConfig, ...],
        Field(alias="engineConfigs", description="Engines to add; one with the name of a built-in engine replaces it entirely."),
    ] = ()

    @property
    def engines(self) -> Mapping[str, EngineConfig]:
        return {engine.name: engine for engine in (*BUILT_IN_ENGINES, *self.engine_configs)}

    @model_validator(mode="after")
    def _engines_fit_together(self) -> Self:
        for name, count in Counter(engine.name for engine in self.engine_configs).items():
            if count > 1:
                raise ValueError(f"engine '{name}' already exists: engineConfigs names it {count} times")
        if self.default_engine not in self.engines:
            raise ValueError(f"defaultEngine '{self.default_engine}' not found in engineConfigs; there are {', '.join(self.engines)}")
        core = {key.name for key in CORE_KEYS}
        for engine in self.engine_configs:
            for custom in engine.custom_metrics:
                if custom.attribute_key in core:
                    raise ValueError(f"customMetrics of engine '{engine.name}': '{custom.attribute_key}' is a data key of endpick")
        return self


class CoreMetricsExtractor(DataCollector[CoreMetricsParameters, MetricsPage]):
    """Reads queue, running requests, KV cache and LoRA adapters from a metrics page, under the names of the endpoint's engine.

    Each value is the newest sample with its spec's labels; counts are truncated, KV-cache usage is at most 1. NaN, infinite and negative
    values count as missing. A missing required metric is an error and keeps its column; the others are updated.
    """

    produces = CORE_KEYS
    default_source = "metrics-data-source"

    def __init__(self, name: str, parameters: CoreMetricsParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._readers = {engine: EngineReader(config) for engine, config in parameters.engines.items()}
        self._default = self._readers[parameters.default_engine]

    @classmethod
    def subscriptions(cls, parameters: CoreMetricsParameters) -> Subscriptions:
        custom = {key.name: key for engine in parameters.engine_configs for key, _ in custom_keys_of(engine)}
        return Subscriptions(produces=(*CORE_KEYS, *custom.values()))

    def collect(self, payload: MetricsPage, writer: ColumnWriter) -> None:
        labels = writer.endpoint.labels if writer.endpoint else {}
        engine = labels.get(self.parameters.engine_label_key) or labels.get(LEGACY_LABEL_KEY, "")
        missing = self._readers.get(engine, self._default).read(payload, writer)
        if missing:
            raise Unavailable(f"the metrics page has no number for {', '.join(missing)}")
