"""llm-d's gauges of what is in flight, added up from the open accounts when Prometheus asks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from endpick.api import LabelLimit
from endpick_builtin.producers.load_ledger import LoadLedger

LABELS = ("endpoint_name", "namespace", "producer_name", "fairness_id", "priority")


class InflightGauges(Collector):
    """Requests and tokens in flight by endpoint, fairness id and priority; a combination is there while it has requests."""

    def __init__(self, producer_name: str, ledger: LoadLedger) -> None:
        self._producer_name = producer_name
        self._ledger = ledger
        self._fairness_label = LabelLimit()

    def describe(self) -> Iterator[GaugeMetricFamily]:
        """The families without samples."""
        return iter(_families())

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Both families as they are now; called by the registry."""
        requests: Counter[Sequence[str]] = Counter()
        tokens: Counter[Sequence[str]] = Counter()
        for charge in self._ledger.open_charges():
            namespace, _, name = charge.load.endpoint.name.rpartition("/")
            fairness_id, priority = charge.flow
            labels = (name, namespace, self._producer_name, self._fairness_label(fairness_id), str(priority))
            requests[labels] += charge.requests
            tokens[labels] += charge.prompt_tokens + charge.output_tokens
        for family, counts in zip(_families(), (requests, tokens), strict=True):
            for values, count in counts.items():
                family.add_metric(values, count)
            yield family


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily("llm_d_epp_inflight_requests", "Requests sent to an endpoint that have not come back.", labels=LABELS),
        GaugeMetricFamily("llm_d_epp_inflight_tokens", "Estimated tokens that an endpoint is still working on.", labels=LABELS),
    )
