"""`core-metrics-extractor`: queue, load, KV cache and LoRA adapters from metrics pages."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Annotated, Self, TypeAlias

from pydantic import Field, model_validator

from endpick.api import (
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    ColumnWriter,
    DataCollector,
    DataKey,
    MetricsPage,
    PluginContext,
    Subscriptions,
    Unavailable,
)
from endpick.api.keys import CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS, LoraAdapters
from endpick.api.metrics import MetricSample
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.collection.engines import AGGREGATE, BUILT_IN_ENGINES, CustomMetric, EngineConfig, MetricSpec, parse_spec

LABEL_KEY = "llm-d.ai/engine-type"
LEGACY_LABEL_KEY = "inference.networking.k8s.io/engine-type"


class EngineReader:
    """Reads the metrics of one `EngineConfig`."""

    def __init__(self, config: EngineConfig) -> None:
        self._counts = _parsed(((WAITING_QUEUE_SIZE, config.queued_requests_spec), (RUNNING_REQUESTS_SIZE, config.running_requests_spec)))
        self._usage = parse_spec(config.kv_usage_spec)
        self._custom = tuple((key, spec, custom) for custom in config.custom_metrics for key, spec in _parsed((_custom_key(custom),)))
        self._block_size = parse_spec(config.cache_block_size_spec)
        self._num_blocks = parse_spec(config.cache_num_blocks_spec)
        self._lora = parse_spec(config.lora_spec)
        self._cache_info = parse_spec(config.cache_info_spec)
        self._block_size_label = config.cache_block_size_label_name
        self._num_blocks_label = config.cache_num_blocks_label_name

    def recognises(self, page: MetricsPage) -> bool:
        """Whether the page has any of the engine's required metrics."""
        required = [spec for _, spec in self._counts] + ([self._usage] if self._usage else [])
        return any(page.samples(spec.name) for spec in required)

    def read(self, page: MetricsPage, writer: ColumnWriter) -> list[str]:
        """Write the engine's values; returns the names of required metrics that are missing."""
        match, missing = _RANK_OF_ENDPOINT.search(writer.endpoint.name if writer.endpoint else ""), []
        rank = match[1] if match else None
        for key, spec in self._counts:
            counts = [value for value in _values(page, spec, rank) if value > -1]
            if counts:
                writer.set(key, math.trunc(math.fsum(counts)))
            else:
                missing.append(str(spec))
        if self._usage is not None:
            shares = [min(value, 1.0) for value in _values(page, self._usage, rank) if value >= 0]
            if shares:
                writer.set(KV_CACHE_USAGE, math.fsum(shares) / len(shares))
            else:
                missing.append(str(self._usage))
        for name, spec, custom in self._custom:
            numbers = _values(page, spec, rank)
            if numbers:
                writer.set(name, AGGREGATE[custom.aggregation](numbers))
            elif not custom.optional:
                missing.append(str(spec))
        self._read_cache_layout(page, writer, rank)
        if self._lora and (adapters := _lora_adapters(_series(page, self._lora, rank))):
            writer.set(LORA_ADAPTERS, adapters)
        return missing

    def _read_cache_layout(self, page: MetricsPage, writer: ColumnWriter, rank: str | None) -> None:
        infos = {_engine(info): info.labels for info in _series(page, self._cache_info, rank)}.values() if self._cache_info else ()
        sizes = _labelled(infos, self._block_size_label) or (_values(page, self._block_size, rank) if self._block_size else [])
        blocks = _labelled(infos, self._num_blocks_label) or (_values(page, self._num_blocks, rank) if self._num_blocks else [])
        if sizes and (size := max(sizes)) > -1:
            writer.set(CACHE_BLOCK_SIZE, math.trunc(size))
        if blocks and (total := math.fsum(blocks)) > -1:
            writer.set(CACHE_NUM_BLOCKS, math.trunc(total))


def _custom_key(custom: CustomMetric) -> tuple[DataKey[float], str]:
    doc = f"The metric {custom.metric_spec}, as the model server reports it."
    return DataKey(custom.attribute_key, float, doc=doc), custom.metric_spec


def _parsed(specs: tuple[tuple[DataKey[float], str], ...]) -> tuple[tuple[DataKey[float], MetricSpec], ...]:
    return tuple((key, spec) for key, text in specs if (spec := parse_spec(text)))


_RANK_OF_ENDPOINT = re.compile(r"-rank-(\d+)$", re.ASCII)
_RANK_LABELS = ("dp_rank", "engine")  # identify an engine behind a server
_PARALLEL_LABELS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank"})  # these ranks work on the same requests


def _series(page: MetricsPage, spec: MetricSpec, rank: str | None) -> Sequence[MetricSample]:
    """Return the series of the endpoint's own rank, if the page distinguishes ranks."""
    series = page.series(spec.name, spec.labels)
    if rank is None or len(series) < 2:
        return series
    own = [sample for sample in series if any(sample.labels.get(label) == rank for label in _RANK_LABELS)]
    return own or series


def _values(page: MetricsPage, spec: MetricSpec, rank: str | None) -> list[float]:
    """Return the finite values, one per data-parallel engine."""
    series = [sample for sample in _series(page, spec, rank) if math.isfinite(sample.value)]
    if len(series) < 2:
        return [sample.value for sample in series]
    engines: dict[Engine, float] = {}
    for sample in series:
        engines[_engine(sample)] = max(sample.value, engines.get(_engine(sample), sample.value))
    return list(engines.values())


Engine: TypeAlias = frozenset[tuple[str, str]]


def _engine(sample: MetricSample, apart_from: Collection[str] = _PARALLEL_LABELS) -> Engine:
    return frozenset(item for item in sample.labels.items() if item[0] not in apart_from)


def _labelled(infos: Iterable[Mapping[str, str]], label: str) -> list[float]:
    return [count for labels in infos if (count := _count(labels.get(label, ""))) is not None]


_ADAPTERS = ("running_lora_adapters", "waiting_lora_adapters", "max_lora")


def _lora_adapters(series: Sequence[MetricSample]) -> LoraAdapters | None:
    """Return the adapters of all engines; the newest series of each counts."""
    engines: dict[Engine, MetricSample] = {}
    for sample in series:
        known = engines.setdefault(_engine(sample, _ADAPTERS), sample)
        if sample.value > known.value:
            engines[_engine(sample, _ADAPTERS)] = sample
    found = [_adapters(*(sample.labels.get(label, "") for label in _ADAPTERS)) for sample in engines.values()]
    if len(found) < 2:
        return found[0] if found else None
    running = frozenset(chain.from_iterable(adapters.running for adapters in found))
    waiting = frozenset(chain.from_iterable(adapters.waiting for adapters in found))
    return LoraAdapters(running, waiting, max(adapters.max_adapters for adapters in found))


@lru_cache(maxsize=1024)
def _adapters(running: str, waiting: str, maximum: str) -> LoraAdapters:
    return LoraAdapters(_names(running), _names(waiting), _count(maximum) or 0)


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _count(text: str) -> int | None:
    return int(text) if len(text) <= _MAX_DIGITS and text.isascii() and text.isdigit() else None


_MAX_DIGITS = 15  # larger numbers are not exact in a column
CORE_KEYS = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS)


class CoreMetricsParameters(CamelParameters):
    """Engines and the names of their metrics."""

    engine_label_key: Annotated[str, Field(description=f"Endpoint label that names the engine; `{LEGACY_LABEL_KEY}` is read too.")] = (
        LABEL_KEY
    )
    default_engine: Annotated[str, Field(description="The engine of endpoints without that label, or with an unknown value.")] = "vllm"
    engine_configs: Annotated[
        tuple[EngineConfig, ...], Field(description="Engines to add; one with the name of a built-in engine replaces it entirely.")
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

    Of several series, such as one per engine, counts are summed, KV-cache usage is the mean, adapters are the union, and block size is
    the maximum. An endpoint that is one data-parallel rank reads the series with its `dp_rank` or `engine`. Counts are truncated,
    KV-cache usage is at most 1. NaN, infinite and negative values count as missing. A missing required metric is an error and keeps
    its column; the others are updated.
    """

    produces = CORE_KEYS
    default_source = "metrics-data-source"

    def __init__(self, name: str, parameters: CoreMetricsParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._readers = {engine: EngineReader(config) for engine, config in parameters.engines.items()}
        self._default = self._readers[parameters.default_engine]

    @classmethod
    def subscriptions(cls, parameters: CoreMetricsParameters) -> Subscriptions:
        custom = {
            metric.attribute_key: _custom_key(metric)[0] for engine in parameters.engines.values() for metric in engine.custom_metrics
        }
        return Subscriptions(produces=(*CORE_KEYS, *custom.values()))

    def collect(self, payload: MetricsPage, writer: ColumnWriter) -> None:
        labels = writer.endpoint.labels if writer.endpoint else {}
        engine = labels.get(self.parameters.engine_label_key) or labels.get(LEGACY_LABEL_KEY, "")
        reader = self._readers.get(engine, self._default)
        missing = reader.read(payload, writer)
        if missing:
            raise Unavailable(f"the metrics page has no number for {', '.join(missing)}{self._advice(reader, payload)}")

    def _advice(self, reader: EngineReader, page: MetricsPage) -> str:
        """Name the engine whose page this is, if it is not the reader's."""
        other = next((name for name, candidate in self._readers.items() if candidate.recognises(page)), "")
        if reader.recognises(page) or not other:
            return ""
        return f"; it looks like a page of {other}: label the Pod `{self.parameters.engine_label_key}: {other}`, or set defaultEngine"
