"""reference/metrics.md: what `/metrics` shows."""

from __future__ import annotations

import ast
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from docs_reference.builtin import builtin_plugins
from docs_reference.markdown import code, listed, table
from docs_reference.markdown import page as markdown_page
from docs_reference.source import definitions
from endpick.api import KV_CACHE_USAGE, RUNNING_REQUESTS_SIZE, WAITING_QUEUE_SIZE, Endpoint, PluginContext
from endpick.api.endpoint import Column, Generation
from endpick.cli.describe import entry_of
from endpick.extproc import stream as session_counters
from endpick.extproc.stream import SessionCounters
from endpick.host.schema import own_model
from endpick.requests.memory import Memory
from endpick.serve.metrics import EndpickMetrics
from endpick.serve.pool_metrics import FlowControlMetrics, PoolGauges
from endpick.serve.watchdog import OverloadWatch
from endpick.testing.bench import stub_instances
from endpick.transport import limits as transport_counters
from endpick.transport.limits import TransportCounters

_Row = tuple[str, str, str, str]


def page() -> str:
    """The page."""
    header, plugins = ("metric", "type", "labels", "meaning"), _plugin_rows()
    return markdown_page(
        "Metrics",
        "All metrics on the metrics port. Names that begin with `llm_d_epp_` are llm-d's, so its dashboards work; `endpick_` marks "
        "endpick's own. Python's `process_` and `python_` families are there, too. [Runbooks](../how-to/runbooks/index.md) come with "
        "alerts and a dashboard.",
        table(header, sorted(_rows(_registered(EndpickMetrics)))),
        "## Flow control",
        table(header, sorted(_rows(_registered(_flow_control)))),
        "## Memory",
        table(header, (_family(family) for watch in _registered(_overload_watch) for family in watch.collect())),
        "## Pool",
        table(header, (_family(family) for family in _pool_families())),
        "## Plugins",
        "All have the labels `plugin_name` (the instance) and `plugin_type` as well.",
        table((*header, "plugin"), ((*row, one) for one, rows in plugins.items() if ", " not in one for row in rows)),
        *(part for several, rows in plugins.items() if ", " in several for part in (f"### {several}", table(header, rows))),
        "## Events of the gRPC ports",
        "`endpick_transport_events_total` counts the ext_proc port, `endpick_health_events_total` the health port; label `event`.",
        *_events(TransportCounters().snapshot(), dict(_fields(transport_counters, "TransportCounters"))),
        "## Events of ext_proc streams",
        "`endpick_session_events_total`, by `event`.",
        *_events(SessionCounters().snapshot(), dict(_fields(session_counters, "SessionCounters"))),
        "## Other events",
        "- `endpick_polls_total`, by `event`: `made`; `skipped` for an endpoint that is idle or does not respond; `reported` if the "
        "endpoint reported its load in responses.\n"
        "- `endpick_decision_records_total`, by `event`: `recorded`; `shown` to hook objects and the decision log; `dropped` if they are "
        "too slow.",
    )


class _Notes(CollectorRegistry):
    """Remembers what is registered."""

    def __init__(self) -> None:
        super().__init__()
        self.collectors: list[Collector] = []

    def register(self, collector: Collector) -> None:
        self.collectors.append(collector)


def _registered(make: Callable[[CollectorRegistry], object]) -> list[Collector]:
    notes = _Notes()
    make(notes)
    return notes.collectors


def _flow_control(registry: CollectorRegistry) -> object:
    return FlowControlMetrics(registry, "pool", 1, lambda: None)


def _overload_watch(registry: CollectorRegistry) -> object:
    return OverloadWatch(Memory(), registry)


def _rows(collectors: Iterable[Collector]) -> Iterator[_Row]:
    for collector in collectors:
        # Neither prometheus_client nor endpick makes the names of labels public.
        of_collector = getattr(collector, "_labelnames", ()) or getattr(collector, "_label_names", ())
        for family in [*getattr(collector, "describe", tuple)()] or collector.collect():
            labels = of_collector or getattr(family, "_labelnames", ())
            yield code(_shown_name(family)), family.type, listed(labels), family.documentation


def _shown_name(family: Metric) -> str:
    return f"{family.name}_total" if family.type == "counter" else family.name


def _pool_families() -> Iterator[GaugeMetricFamily]:
    """The families of a pool with one endpoint that has reported everything."""
    reported = Column(np.zeros(1), np.zeros(1))
    columns = {key.name: reported for key in (WAITING_QUEUE_SIZE, RUNNING_REQUESTS_SIZE, KV_CACHE_USAGE)}
    generation = Generation((Endpoint("default/a", "127.0.0.1", 8000),), columns, {}, lambda: 0.0)
    return PoolGauges("pool", lambda: generation, lambda: 0.0).collect()


def _plugin_rows() -> dict[str, list[_Row]]:
    """The rows of each set of plugins, under links to them."""
    plugins: defaultdict[_Row, list[str]] = defaultdict(list)
    for loaded in builtin_plugins():
        model = own_model(loaded.plugin)
        if model is None:
            continue
        [entry] = yaml.safe_load(entry_of(loaded))
        given = model.model_validate(entry.get("parameters", {}))
        notes = _Notes()
        loaded.plugin(loaded.type, given, PluginContext(registry=notes, instances=stub_instances(given)))
        for row in _rows(notes.collectors):
            plugins[row].append(f"[`{loaded.type}`](plugins/{loaded.type}.md)")
    rows: defaultdict[str, list[_Row]] = defaultdict(list)
    for row in sorted(plugins):
        rows[", ".join(plugins[row])].append(row)
    return dict(sorted(rows.items()))


def _family(family: Metric) -> _Row:
    return code(_shown_name(family)), family.type, listed(family.samples[0].labels if family.samples else ()), family.documentation


def _events(names: Iterable[str], meanings: dict[str, str]) -> tuple[str, str]:
    """A table of the events with an explanation, and the names of the others."""
    explained = [(code(name), meanings[name]) for name in names if name in meanings]
    others = [name for name in names if name not in meanings]
    return table(("event", "meaning"), explained), f"Others: {listed(others)}." if others else ""


def _fields(module: object, class_name: str) -> Iterator[tuple[str, str]]:
    node, _ = definitions(module)[class_name]  # type: ignore[arg-type]
    assert isinstance(node, ast.ClassDef)
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(after, ast.Expr):
            yield field.target.id, inspect.cleandoc(ast.literal_eval(after.value))
