"""Generate the Grafana dashboard, deploy/grafana/endpick.json; with `--check`, compare."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).resolve().parents[1] / "deploy" / "grafana" / "endpick.json"
COLUMNS = 24
STATES = ("healthy", "degraded", "probing", "ejected")
CIRCUITS = ("closed", "half-open", "open")
Query = tuple[str, str]  # expression, legend


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel; `values` names the values 0, 1, … of a state timeline."""

    title: str
    unit: str
    queries: Sequence[Query]
    kind: str = "timeseries"
    values: Sequence[str] = ()

    @property
    def width(self) -> int:
        """In columns of 24."""
        return 4 if self.kind == "stat" else 8


def of(name: str, **labels: str) -> str:
    """A selector; label values are regular expressions."""
    return name + "{" + ",".join(f'{label}=~"{value}"' for label, value in {"job": "$job", **labels}.items()) + "}"


def rate(name: str, by: str = "", zero: bool = False, **labels: str) -> Query:
    """Per second, summed; with `zero`, 0 while there is no series."""
    return f"{summed('sum', by)}(rate({of(name, **labels)}[$__rate_interval]))" + (" or on() vector(0)" if zero else ""), legend(by)


def level(name: str, by: str = "", how: str = "sum", **labels: str) -> Query:
    """The value now."""
    return f"{summed(how, by)}({of(name, **labels)})", legend(by)


def quantiles(name: str, *shares: float, by: str = "") -> list[Query]:
    """Of a histogram; without samples in the interval Grafana draws a gap."""
    labels = ", ".join(filter(None, (by, "le")))
    return [
        (f"histogram_quantile({share}, {rate(name + '_bucket', labels)[0]})", f"{legend(by)} p{share * 100:.0f}".strip())
        for share in shares
    ]


def summed(how: str, by: str) -> str:
    """The aggregation operator."""
    return f"{how} by ({by}) " if by else how


def legend(by: str) -> str:
    """The values of the labels."""
    return " ".join("{{" + label.strip() + "}}" for label in by.split(",") if label)


def named(name: str, query: Query) -> Query:
    """The query under a legend."""
    return query[0], name


def endpoint_states() -> Query:
    """0 for healthy to 3 for ejected; the worst of all replicas."""
    parts = (f"{number} * {of('endpick_endpoint_state', state=state)}" for number, state in enumerate(STATES))
    return f"max by (endpoint_name) (sum without (state) ({' or '.join(parts)}))", "{{endpoint_name}}"


P = "llm_d_epp_"
ROWS: Mapping[str, Sequence[Panel]] = {
    "Overview": [
        Panel("Ready replicas", "short", [level("endpick_ready")], "stat"),
        Panel("Ready endpoints", "short", [level(P + "ready_endpoints", how="max")], "stat"),
        Panel("Requests", "reqps", [rate(P + "request_total")], "stat"),
        Panel("Errors", "reqps", [rate(P + "request_error_total", zero=True)], "stat"),
        Panel("Time to first token, p95", "s", quantiles(P + "request_ttft_seconds", 0.95), "stat"),
        Panel("Firing alerts", "short", [('count(ALERTS{alertname=~"Endpick.+",alertstate="firing"}) or on() vector(0)', "")], "stat"),
    ],
    "Traffic and errors": [
        Panel("Requests by model", "reqps", [rate(P + "request_total", "target_model_name")]),
        Panel("Errors by code", "reqps", [rate(P + "request_error_total", "error_code", zero=True)]),
        Panel("Requests in flight", "short", [level(P + "request_running", "target_model_name")]),
        Panel("Decisions by endpoint", "reqps", [rate(P + "scheduler_attempts_total", "endpoint_name", status="success")]),
        Panel("Decisions without an endpoint", "reqps", [rate(P + "scheduler_attempts_total", zero=True, status="failure")]),
        Panel(
            "Tokens per second",
            "short",
            [named(kind, rate(f"{P}request_{kind}_tokens_sum", zero=True)) for kind in ("input", "cached", "output")],
        ),
    ],
    "Latency": [
        Panel("Time to first token", "s", quantiles(P + "request_ttft_seconds", 0.5, 0.95, 0.99)),
        Panel("Time per output token", "s", quantiles(P + "request_streaming_tpot_seconds", 0.5, 0.95, 0.99)),
        Panel("Request duration", "s", quantiles(P + "request_duration_seconds", 0.5, 0.95, 0.99)),
        Panel("Scheduling decision", "s", quantiles(P + "scheduler_e2e_duration_seconds", 0.5, 0.95, 0.99)),
        Panel("Request headers to decision", "s", quantiles(P + "request_processing_duration_seconds", 0.5, 0.95, 0.99)),
        Panel("endpick's work on a response", "s", quantiles(P + "response_processing_duration_seconds", 0.5, 0.95, 0.99)),
    ],
    "Pool": [
        Panel("Ready endpoints", "short", [level(P + "ready_endpoints", "instance")]),
        Panel("Waiting requests by endpoint", "short", [level(P + "per_endpoint_queue_size", "model_server_endpoint", how="max")]),
        Panel("Mean waiting requests", "short", [level(P + "average_queue_size", "instance")]),
        Panel("Mean running requests", "short", [level(P + "average_running_requests", "instance")]),
        Panel("Mean KV cache usage", "percentunit", [level(P + "average_kv_cache_utilization", "instance")]),
        Panel("Changes of the pool", "ops", [rate("endpick_pool_changes_total", "change", zero=True)]),
    ],
    "Endpoint health": [
        Panel("State", "short", [endpoint_states()], "state-timeline", STATES),
        Panel("Errors", "reqps", [rate("endpick_endpoint_errors_total", "endpoint_name, reason", zero=True)]),
        Panel("Median time to first token", "s", [level("endpick_endpoint_first_token_seconds", "endpoint_name", how="max")]),
        Panel("Age of metrics by endpoint", "s", [level("endpick_endpoint_data_age_seconds", "endpoint_name", how="max")]),
        Panel("Age of data by key", "s", [level("endpick_data_age_seconds", "key", how="max")]),
        Panel("Failed polls", "ops", [rate(P + "datalayer_poll_errors_total", "source_type", zero=True)]),
    ],
    "Plugins": [
        Panel("Time by plugin", "percentunit", [rate(P + "plugin_duration_seconds_sum", "plugin_name")]),
        Panel("Duration of a call, p99", "s", quantiles(P + "plugin_duration_seconds", 0.99, by="plugin_name")),
        Panel("Faults", "ops", [rate("endpick_plugin_faults_total", "plugin_name, reason", zero=True)]),
        Panel("Circuits", "short", [level("endpick_plugin_circuit_state", "plugin_name", how="max")], "state-timeline", CIRCUITS),
        Panel("Calls skipped by an open circuit", "ops", [rate("endpick_plugin_left_out_total", "plugin_name", zero=True)]),
        Panel("Calls over the time budget", "ops", [rate("endpick_plugin_late_calls_total", "plugin_name", zero=True)]),
    ],
    "Flow control": [
        Panel("Waiting requests by priority", "short", [level(P + "flow_control_queue_size", "priority")]),
        Panel("Queue time, p95", "s", quantiles(P + "flow_control_request_queue_duration_seconds", 0.95, by="priority")),
        Panel("Requests by outcome", "reqps", [rate(P + "flow_control_requests_total", "outcome", zero=True)]),
        Panel("Saturation of the pool", "percentunit", [level(P + "flow_control_pool_saturation", "stage", how="max")]),
        Panel("Waiting bytes", "bytes", [level(P + "flow_control_queue_bytes", "priority")]),
        Panel("Use of the queue limits", "percentunit", [level(P + "flow_control_capacity_utilization_requests", "priority", how="max")]),
    ],
    "Configuration": [
        Panel("Serving plans", "short", [level("endpick_plan_info", "hash, instance")], "table"),
        Panel("Plugins", "short", [level("endpick_plugin_info", "plugin_name, plugin_type, distribution, version")], "table"),
        Panel("Reloads", "short", [level("endpick_config_reloads_total", "outcome")]),
        Panel("The file does not serve", "short", [level("endpick_config_drift", "instance")]),
        Panel("Another version is installed", "short", [level("endpick_plugin_drift", "distribution", how="max")]),
        Panel("Phase", "short", [level("endpick_phase", "phase")]),
    ],
    "Process": [
        Panel("CPU", "percentunit", [rate("process_cpu_seconds_total", "instance")]),
        Panel(
            "Memory",
            "bytes",
            [
                named("resident", level("process_resident_memory_bytes", how="max")),
                named("limit", level("endpick_memory_limit_bytes", how="max")),
                named("undecided requests", level("endpick_memory_held_bytes", how="max")),
            ],
        ),
        Panel("Requests refused for memory", "reqps", [rate("endpick_overload_refusals_total", "action")]),
        Panel("Event loop stalled", "percentunit", [rate("endpick_loop_stalled_seconds_total", "instance")]),
        Panel("Open files", "short", [level("process_open_fds", "instance")]),
        Panel("Gateway streams", "ops", [rate("endpick_transport_events_total", "event", event="streams_.+|session_.+")]),
        Panel("Decision records", "ops", [rate("endpick_decision_records_total", "event")]),
        Panel("Polls of endpoints", "ops", [rate("endpick_polls_total", "event")]),
        Panel("Uncaught errors", "ops", [rate("endpick_uncaught_errors_total", "event", zero=True)]),
    ],
}

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
VARIABLES = [
    {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
    {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": SOURCE,
        "query": "label_values(endpick_phase, job)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    },
]


def dashboard() -> dict[str, object]:
    """The dashboard in Grafana's JSON."""
    panels: list[dict[str, object]] = []
    top = 0
    for row, members in ROWS.items():
        panels.append({"type": "row", "title": row, "id": len(panels) + 1, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}})
        top, left, height = top + 1, 0, 4 if members[0].kind == "stat" else 7
        for panel in members:
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append(drawn(panel) | {"id": len(panels) + 1, "gridPos": place})
            left += panel.width
            if left == COLUMNS:
                left, top = 0, top + height
        top += height if left else 0
    return {
        "uid": "endpick",
        "title": "endpick",
        "tags": ["endpick"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": VARIABLES},
        "panels": panels,
    }


def drawn(panel: Panel) -> dict[str, object]:
    """One panel in Grafana's JSON, without its place."""
    table = panel.kind == "table"
    mappings = [{"type": "value", "options": {str(number): {"text": text} for number, text in enumerate(panel.values)}}]
    targets = [
        {"refId": chr(ord("A") + number), "datasource": SOURCE, "expr": expression, "legendFormat": text}
        | ({"format": "table", "instant": True} if table else {"exemplar": "_bucket" in expression})
        for number, (expression, text) in enumerate(panel.queries)
    ]
    return {
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "mappings": mappings if panel.values else []}, "overrides": []},
        "targets": targets,
    }


def main() -> int:
    """Write the file; with `--check`, the exit code is 1 when it is stale."""
    text = json.dumps(dashboard(), indent=1, ensure_ascii=False) + "\n"
    if "--check" in sys.argv:
        return int(not FILE.exists() or FILE.read_text(encoding="utf-8") != text)
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
