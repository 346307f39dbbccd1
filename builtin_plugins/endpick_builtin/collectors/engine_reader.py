"""Reads what one engine reports off a metrics page, into columns."""

from __future__ import annotations

import math
from collections.abc import Iterator

from endpick.api import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    ColumnWriter,
    DataKey,
    LoraAdapters,
    MetricSample,
    MetricsPage,
)
from endpick_builtin.collectors.engines import EngineConfig
from endpick_builtin.collectors.metric_spec import MetricSpec, parse_spec


class EngineReader:
    """The specs of one `EngineConfig`, parsed once."""

    def __init__(self, config: EngineConfig) -> None:
        counts = ((WAITING_QUEUE_SIZE, config.queued_requests_spec), (RUNNING_REQUESTS_SIZE, config.running_requests_spec))
        shares = ((KV_CACHE_USAGE, config.kv_usage_spec), *custom_keys_of(config))
        layout = ((CACHE_BLOCK_SIZE, config.cache_block_size_spec), (CACHE_NUM_BLOCKS, config.cache_num_blocks_spec))
        self._counts = tuple(_parsed(counts))
        self._numbers = tuple(_parsed(shares))
        self._layout = tuple(_parsed(layout))
        self._lora = parse_spec(config.lora_spec)
        self._cache_info = parse_spec(config.cache_info_spec)
        self._cache_labels = (
            (CACHE_BLOCK_SIZE, config.cache_block_size_label_name),
            (CACHE_NUM_BLOCKS, config.cache_num_blocks_label_name),
        )

    def read(self, page: MetricsPage, writer: ColumnWriter) -> list[str]:
        """Write everything the page has; returns the specs it should have had.

        LoRA adapters and the KV-cache layout may be missing: engines report them only when they are configured to.
        """
        missing = []
        for key, spec in self._counts:
            if (value := _number(page, spec)) is None:
                missing.append(str(spec))
            else:
                writer.set(key, math.trunc(value))
        for key, spec in self._numbers:
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
            if (value := _number(page, spec)) is not None:
                writer.set(key, math.trunc(value))
        info = page.newest(self._cache_info.name, self._cache_info.labels) if self._cache_info else None
        if info is not None:
            for key, label in self._cache_labels:
                if (count := _count(info.labels.get(label, ""))) is not None:
                    writer.set(key, count)


def custom_keys_of(config: EngineConfig) -> tuple[tuple[DataKey[float], str], ...]:
    """The data keys of an engine's custom metrics, each with its spec."""
    return tuple(
        (DataKey(custom.attribute_key, float, doc=f"The metric {custom.metric_spec}, as the model server reports it."), custom.metric_spec)
        for custom in config.custom_metrics
    )


def _parsed(specs: tuple[tuple[DataKey[float], str], ...]) -> Iterator[tuple[DataKey[float], MetricSpec]]:
    for key, text in specs:
        if spec := parse_spec(text):
            yield key, spec


def _number(page: MetricsPage, spec: MetricSpec) -> float | None:
    """The newest value; NaN and infinities are what exporters write when they know nothing."""
    sample = page.newest(spec.name, spec.labels)
    return sample.value if sample is not None and math.isfinite(sample.value) else None


def _lora_adapters(page: MetricsPage, spec: MetricSpec) -> LoraAdapters | None:
    """The series with the greatest value: engines put the time of the last change there and leave older series on the page."""
    newest: MetricSample | None = None
    for sample in page.samples(spec.name):
        if spec.labels.items() <= sample.labels.items() and (newest is None or sample.value > newest.value):
            newest = sample
    if newest is None:
        return None
    labels = newest.labels
    running, waiting = _names(labels.get("running_lora_adapters", "")), _names(labels.get("waiting_lora_adapters", ""))
    return LoraAdapters(running, waiting, _count(labels.get("max_lora", "")) or 0)


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
