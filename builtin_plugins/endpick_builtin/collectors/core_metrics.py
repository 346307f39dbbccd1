"""`core-metrics-extractor`: queue, load, KV cache and LoRA adapters of each endpoint, from its metrics page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, model_validator

from endpick.api import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    ColumnWriter,
    DataCollector,
    MetricsPage,
    Parameters,
    PluginContext,
    PluginMeta,
    Subscriptions,
    Unavailable,
)
from endpick_builtin.collectors.engine_reader import EngineReader, custom_keys_of
from endpick_builtin.collectors.engines import BUILT_IN_ENGINES, LABEL_KEY, LEGACY_LABEL_KEY, EngineConfig

CORE_KEYS = (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE, CACHE_BLOCK_SIZE, CACHE_NUM_BLOCKS, LORA_ADAPTERS)


class CoreMetricsParameters(Parameters):
    """Which engine an endpoint runs, and what that engine calls its metrics."""

    engine_label_key: Annotated[
        str, Field(alias="engineLabelKey", description=f"Endpoint label that names the engine; `{LEGACY_LABEL_KEY}` is read too.")
    ] = LABEL_KEY
    default_engine: Annotated[
        str, Field(alias="defaultEngine", description="The engine of endpoints without that label, or with one nobody knows.")
    ] = "vllm"
    engine_configs: Annotated[
        tuple[EngineConfig, ...],
        Field(alias="engineConfigs", description="Engines to add; one with the name of a built-in engine replaces it entirely."),
    ] = ()

    @property
    def engines(self) -> Mapping[str, EngineConfig]:
        """Every engine by name: the built-in ones, and those of the configuration before them."""
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
                    raise ValueError(f"customMetrics of engine '{engine.name}': '{custom.attribute_key}' is a data key of endpick's own")
        return self


class CoreMetricsExtractor(DataCollector[CoreMetricsParameters, MetricsPage]):
    """Reads what schedulers want to know of a model server, under the names its engine uses.

    Each value is the newest sample, by timestamp, with the labels of its spec; counts are cut to whole numbers. LoRA adapters are in the
    labels of the sample with the greatest value. A page that lacks some of the required metrics still updates the others, and counts as
    an error; NaN and infinite values count as missing. What is missing stays as it was, and its age grows.
    """

    meta = PluginMeta(
        type="core-metrics-extractor",
        api=">=1.0,<2",
        parameters=CoreMetricsParameters,
        produces=CORE_KEYS,
        payload=MetricsPage,
        default_source="metrics-data-source",
    )

    def __init__(self, name: str, parameters: CoreMetricsParameters, context: PluginContext) -> None:
        super().__init__(name, parameters, context)
        self._readers = {engine: EngineReader(config) for engine, config in parameters.engines.items()}
        self._default = self._readers[parameters.default_engine]

    @classmethod
    def subscriptions(cls, parameters: CoreMetricsParameters) -> Subscriptions:
        """The core keys, and those of the custom metrics."""
        custom = {key.name: key for engine in parameters.engine_configs for key, _ in custom_keys_of(engine)}
        return Subscriptions(produces=(*CORE_KEYS, *custom.values()))

    def collect(self, payload: MetricsPage, writer: ColumnWriter) -> None:
        """Read one page.

        Raises:
            Unavailable: some of what the engine should report is not on the page; the rest is written.
        """
        labels = writer.endpoint.labels if writer.endpoint else {}
        engine = labels.get(self.parameters.engine_label_key) or labels.get(LEGACY_LABEL_KEY, "")
        missing = self._readers.get(engine, self._default).read(payload, writer)
        if missing:
            raise Unavailable(f"the metrics page has no number for {', '.join(missing)}")
