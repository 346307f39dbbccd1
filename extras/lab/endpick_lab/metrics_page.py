"""The metrics page of a simulated server, as vLLM's."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from endpick_lab.engine import EngineMetrics
from endpick_lab.settings import EngineSettings
from endpick_lab.sidecar import Outcome, Stage

_Family = CounterMetricFamily | GaugeMetricFamily
_LABELS = ("model_name", "engine")
_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640)


class SimulatedMetricsPage(Collector):
    """Renders one server's metrics with the names of vLLM."""

    def __init__(self, model: str, settings: EngineSettings, read_engine: Callable[[], EngineMetrics]) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self._labels = (model, "0")
        self._settings = settings
        self._read_engine = read_engine
        self.first_token_seconds = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.")
        self.next_token_seconds = self._histogram("vllm:inter_token_latency_seconds", "One token to the next.")
        self.request_seconds = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.")
        labels = (*_LABELS, "finished_reason")
        self._ended = Counter("vllm:request_success", "Requests ended, by reason.", labels, registry=self._registry)
        description = "Requests to other servers that the sidecar made, by stage: encode, prefill, rank; and outcome: ok, refused, failed."
        self._stages = Counter("sim:remote_stages", description, ("stage", "outcome"), registry=self._registry)

    def count_end(self, reason: str) -> None:
        """Count an ended request: `stop`, `length` or `abort`."""
        self._ended.labels(*self._labels, reason).inc()

    def count_stage(self, stage: Stage, outcome: Outcome) -> None:
        """Count a request to another server."""
        self._stages.labels(stage, outcome).inc()

    def render(self) -> bytes:
        """Render the page in Prometheus text format."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, doc: str) -> Histogram:
        return Histogram(name, doc, _LABELS, buckets=_BUCKETS, registry=self._registry).labels(*self._labels)

    def collect(self) -> Iterator[Metric]:
        metrics = self._read_engine()
        gauge, counter = partial(self._family, GaugeMetricFamily), partial(self._family, CounterMetricFamily)
        yield gauge("vllm:num_requests_running", "Requests in the batch.", metrics.running)
        yield gauge("vllm:num_requests_waiting", "Requests in the queue.", metrics.waiting)
        yield gauge("vllm:kv_cache_usage_perc", "KV cache in use; 1 means 100 percent.", metrics.kv_cache_usage)
        yield counter("vllm:prefix_cache_queries", "Prompt tokens looked up.", metrics.prefix_cache_queried_tokens)
        yield counter("vllm:prefix_cache_hits", "Prompt tokens found cached.", metrics.prefix_cache_hit_tokens)
        yield counter("vllm:prompt_tokens", "Prompt tokens processed.", metrics.prompt_tokens)
        yield counter("vllm:generation_tokens", "Tokens generated.", metrics.generated_tokens)
        yield counter("vllm:num_preemptions", "Requests put back for lack of KV blocks.", metrics.preemptions)
        yield self._cache_config()
        if self._settings.max_loras:
            yield self._adapters(metrics)

    def _family(self, kind: type[_Family], name: str, doc: str, value: float) -> Metric:
        family = kind(name, doc, labels=_LABELS)
        family.add_metric(self._labels, value)
        return family

    def _cache_config(self) -> Metric:
        labels = {
            "block_size": str(self._settings.block_size),
            "num_gpu_blocks": str(self._settings.kv_blocks),
            "enable_prefix_caching": "True",
        }
        family = GaugeMetricFamily("vllm:cache_config_info", "Layout of the KV cache.", labels=(*labels, "engine"))
        family.add_metric((*labels.values(), "0"), 1)
        return family

    def _adapters(self, metrics: EngineMetrics) -> Metric:
        """The value is the current time, as in vLLM, so readers find the newest series."""
        names = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        running, waiting = ",".join(metrics.running_adapters), ",".join(metrics.waiting_adapters)
        family = GaugeMetricFamily("vllm:lora_requests_info", "LoRA adapters in use and waited for.", labels=names)
        family.add_metric((str(self._settings.max_loras), running, waiting), time.time())
        return family
