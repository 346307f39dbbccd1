"""Metrics of NVIDIA's GPU exporter and of other clusters' endpoint pickers."""

from __future__ import annotations

import math
import re
from typing import Annotated, Literal

from pydantic import Field

from endpick.api import ColumnWriter, DataCollector, Endpoint, MetricsPage, Parameters, Stability, Unavailable
from endpick.api.keys import GPU_UTILIZATION, MULTICLUSTER_KV_CACHE_USAGE, MULTICLUSTER_QUEUE_SIZE
from endpick.api.metrics import MetricSample
from endpick_builtin.camel_parameters import CamelParameters
from endpick_builtin.collection.engines import MetricSpec, SpecText, parse_spec
from endpick_builtin.collection.sources import MetricsPageSource, MetricsSourceParameters

NODE_ADDRESS_LABEL = "endpick/node-address"


class DcgmSourceParameters(MetricsSourceParameters):
    """Locates the metrics page of the GPU exporter for an endpoint."""

    port: Annotated[int, Field(ge=0, le=65535, description="Port of the exporter; 0 is the endpoint's metrics port.")] = 9400
    use_node_address: Annotated[
        bool, Field(description=f"Ask the address in the endpoint's label `{NODE_ADDRESS_LABEL}` instead of the endpoint's.")
    ] = False


class DcgmDataSource(MetricsPageSource[DcgmSourceParameters]):
    """Fetches the metrics page of NVIDIA's GPU exporter (dcgm-exporter) on every endpoint's host.

    With `useNodeAddress` an endpoint without the label is a poll error.
    """

    default_collectors = ("dcgm-extractor",)
    stability = Stability.EXPERIMENTAL

    def _authority_of(self, endpoint: Endpoint) -> str:
        if not self.parameters.use_node_address:
            return super()._authority_of(endpoint)
        node = endpoint.labels.get(NODE_ADDRESS_LABEL, "")
        if not node:
            raise Unavailable(f"'{endpoint.name}' has no label '{NODE_ADDRESS_LABEL}', which useNodeAddress needs")
        port = self.parameters.port or int(endpoint.metrics_address.rpartition(":")[2])
        return Endpoint("", node.strip("[]"), port).address


_UTILIZATION_PERCENT = "DCGM_FI_DEV_GPU_UTIL"
_RANK = re.compile(r"-rank-\d+$", re.ASCII)


class DcgmExtractor(DataCollector[Parameters, MetricsPage]):
    """Keeps the GPU utilization of an endpoint: the maximum `DCGM_FI_DEV_GPU_UTIL` of its pod, divided by 100.

    A sample belongs to the endpoint if its label `pod` is the endpoint's name without a suffix such as `-rank-0`, and any `namespace` is
    the endpoint's. Without pods on the page all samples count. Values are clipped to 0..100; without a number the column stays.
    """

    produces = (GPU_UTILIZATION,)
    default_source = "dcgm-data-source"
    stability = Stability.EXPERIMENTAL

    def collect(self, payload: MetricsPage, writer: ColumnWriter) -> None:
        samples = payload.samples(_UTILIZATION_PERCENT)
        if any(sample.labels.get("pod") for sample in samples):
            samples = [sample for sample in samples if _is_of(sample, writer.endpoint)]
        percents = [sample.value for sample in samples if math.isfinite(sample.value)]
        if not percents:
            raise Unavailable(f"the page has no {_UTILIZATION_PERCENT} of this endpoint")
        writer.set(GPU_UTILIZATION, min(max(*percents, 0.0), 100.0) / 100.0)


def _is_of(sample: MetricSample, endpoint: Endpoint | None) -> bool:
    if endpoint is None:
        return False
    namespace, _, name = endpoint.name.rpartition("/")
    return sample.labels.get("pod") in (name, _RANK.sub("", name)) and sample.labels.get("namespace", namespace) == namespace


class MulticlusterSourceParameters(MetricsSourceParameters):
    """Locates the metrics page of a cluster's endpoint picker."""

    scheme: Annotated[Literal["http", "https"], Field(description="`http` or `https`.")] = "https"
    insecure_skip_verify: Annotated[bool, Field(description="With https: accept any certificate.")] = False


class MulticlusterMetricsDataSource(MetricsPageSource[MulticlusterSourceParameters]):
    """Fetches the metrics page of each cluster's endpoint picker; `multicluster-file-discovery` gives its address."""

    default_collectors = ("multicluster-metrics-extractor",)
    stability = Stability.EXPERIMENTAL


class MulticlusterExtractorParameters(CamelParameters):
    """Names the metrics that hold a cluster's mean queue size and KV-cache usage."""

    kv_cache_metric: Annotated[
        SpecText, Field(alias="kvCacheUtilizationMetric", min_length=1, description="Mean share of the KV cache in use.")
    ] = "llm_d_epp_average_kv_cache_utilization"
    queue_metric: Annotated[SpecText, Field(alias="queueSizeMetric", min_length=1, description="Mean length of the waiting queues.")] = (
        "llm_d_epp_average_queue_size"
    )


class MulticlusterMetricsExtractor(DataCollector[MulticlusterExtractorParameters, MetricsPage]):
    """Keeps the mean queue size and KV-cache usage of a cluster, as its endpoint picker reports them.

    A missing, NaN or infinite metric is an error and keeps its value; the other is written.
    """

    produces = (MULTICLUSTER_KV_CACHE_USAGE, MULTICLUSTER_QUEUE_SIZE)
    default_source = "multicluster-metrics-data-source"
    stability = Stability.EXPERIMENTAL

    def collect(self, payload: MetricsPage, writer: ColumnWriter) -> None:
        missing = []
        for key, text in (
            (MULTICLUSTER_KV_CACHE_USAGE, self.parameters.kv_cache_metric),
            (MULTICLUSTER_QUEUE_SIZE, self.parameters.queue_metric),
        ):
            spec = parse_spec(text) or MetricSpec(text)
            sample = payload.newest(spec.name, spec.labels)
            if sample is None or not math.isfinite(sample.value):
                missing.append(str(spec))
            else:
                writer.set(key, sample.value)
        if missing:
            raise Unavailable(f"the metrics page has no number for {', '.join(missing)}")
