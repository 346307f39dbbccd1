"""reference/metrics.md: what `/metrics` shows."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator

import numpy as np
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from pydantic import ValidationError

from docs_reference.builtin import builtin_plugins
from docs_reference.markdown import code, listed, table
from docs_reference.markdown import page as markdown_page
from docs_reference.source import definitions
from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, Endpoint, PluginContext
from endpick.api.generation import Column, Generation
from endpick.extproc import stream as session_counters
from endpick.extproc.stream import SessionCounters
from endpick.host.schema import own_model
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.pool_metrics import PoolGauges
from endpick.testing.bench import doubles
from endpick.transport import limits as transport_counters
from endpick.transport.limits import TransportCounters


def page() -> str:
    """The page."""
    header = ("metric", "type", "labels", "meaning")
    transport, session = TransportCounters().snapshot(), SessionCounters().snapshot()
    return markdown_page(
        "Metrics",
        "Look up here what `/metrics` on the metrics port shows, with its labels: names that begin with `llm_d_epp_` are llm-d's, so its "
        "dashboards work; names that begin with `endpick_` are endpick's own. Python's own `process_`, `python_` families come on top.",
        table(header, sorted(_row(collector) for collector in _registered())),
        "## The pool",
        "Computed when Prometheus asks.",
        table(header, (_family(family) for family in _pool_families())),
        "## What plugins tell of themselves",
        "endpick adds the labels `plugin_name` (the instance) and `plugin_type`, so that instances never clash, not even with those they "
        "replace at a reload. Any plugin may have metrics, see `registry` of `PluginContext`; these are the built-in ones.",
        table((*header, "plugin"), _plugin_families()),
        "## Events on the ext_proc port",
        "`endpick_transport_events_total`, label `event`. A rising count in the second half of the table is a guard that acted.",
        table(("event", "meaning"), _events(transport, dict(_fields(transport_counters, "TransportCounters")))),
        "`endpick_health_events_total` has the same labels for the gRPC health port.",
        "## Events in ext_proc streams",
        "`endpick_session_events_total`, label `event`.",
        table(("event", "meaning"), _events(session, dict(_fields(session_counters, "SessionCounters")))),
        "## Polls",
        "`endpick_polls_total`, label `event`: `made`, `skipped` because the endpoint is idle or down, or `reported` "
        "because responses reported all required data; see `--idle-metrics-interval`.",
        "## Decision records",
        "`endpick_decision_records_total`, label `event`: `shown` to the hook objects that watch decisions, or `dropped` because they are "
        "too slow.",
    )


class _Notes(CollectorRegistry):
    """Remembers what is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        self.collectors.append(collector)


def _registered() -> list[Collector]:
    notes = _Notes()
    EndpickMetrics(notes)
    return notes.collectors


def _row(collector: Collector) -> tuple[str, str, str, str]:
    (family,) = collector.describe()
    # The names of labels are public in neither prometheus_client's metrics nor endpick's own.
    labels = getattr(collector, "_labelnames", None) or getattr(collector, "_label_names", ())
    name = f"{family.name}_total" if family.type == "counter" else family.name
    return code(name), family.type, listed(labels), family.documentation


def _pool_families() -> Iterator[GaugeMetricFamily]:
    """Of a pool with one endpoint that has reported everything."""
    reported = Column(np.zeros(1), np.zeros(1))
    columns = {key.name: reported for key in (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)}
    generation = Generation((Endpoint("default/a", "127.0.0.1", 8000),), columns, {}, lambda: 0.0)
    return PoolGauges("pool", lambda: generation, lambda: 0.0).collect()


def _plugin_families() -> Iterator[tuple[str, ...]]:
    for loaded in builtin_plugins():
        parameters = own_model(loaded.plugin)
        if parameters is None:
            continue
        try:
            given = parameters()
        except ValidationError:
            continue  # it needs to be told something, and what would stand here is no plugin anyone has configured
        registry = CollectorRegistry()
        loaded.plugin(loaded.type, given, PluginContext(registry=registry, instances=doubles(given)))
        for family in registry.collect():
            labels = listed(getattr(family, "_labelnames", ()))
            yield code(family.name), family.type, labels, family.documentation, f"[`{loaded.type}`](plugins/{loaded.type}.md)"


def _family(family: GaugeMetricFamily) -> tuple[str, str, str, str]:
    return code(family.name), family.type, listed(family.samples[0].labels if family.samples else ()), family.documentation


def _events(names: Iterable[str], meanings: dict[str, str]) -> Iterator[tuple[str, str]]:
    return ((code(name), meanings.get(name) or meanings.get(_group(name), "")) for name in names)


def _group(name: str) -> str:
    return "protocol_errors" if name.startswith("protocol_error_") else name


def _fields(module: object, class_name: str) -> Iterator[tuple[str, str]]:
    node, _ = definitions(module)[class_name]  # type: ignore[arg-type]
    assert isinstance(node, ast.ClassDef)
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(after.value))
