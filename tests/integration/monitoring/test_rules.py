"""The alerting rules: promtool accepts them, and each alert fires and is silent when it should."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import yaml_files

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
RUNBOOKS = ROOT / "docs" / "how-to" / "runbooks"
ADDRESS = "https://docs.example/endpick/how-to/runbooks/"
ALERTS = {rule["alert"]: rule for group in yaml_files.load(RULES)["groups"] for rule in group["rules"]}
BUCKET = 'llm_d_epp_scheduler_e2e_duration_seconds_bucket{job="p",instance="i",le="%s"}'
STATE = 'endpick_endpoint_state{job="p",instance="i",endpoint_name="%s",state="%s"}'
AGE = 'endpick_endpoint_data_age_seconds{job="p",instance="i",endpoint_name="a"}'
QUEUE_AGE = 'endpick_data_age_seconds{job="p",instance="i",key="waiting-queue-size"}'
FAULTS = 'endpick_plugin_faults_total{job="p",instance="i",plugin_name="a",extension_point="Scorer"}'

EVER, ZERO, GROWS, MINUTE = "1+0x90", "0+0x90", "0+1x90", "1m"
FLAPS = "1 1 1 0 " * 23
CASES = {  # series with which the alert fires after 70 minutes, and with which it does not
    "EndpickNotReady": (
        {'endpick_ready{job="p",instance="a"}': ZERO, 'endpick_ready{job="p",instance="b"}': ZERO},
        {'endpick_ready{job="p",instance="leader"}': EVER, 'endpick_ready{job="p",instance="standby"}': ZERO},
    ),
    "EndpickNoReadyEndpoints": (
        {'llm_d_epp_ready_endpoints{job="p",name="x"}': ZERO},
        {'llm_d_epp_ready_endpoints{job="p",name="x"}': EVER},
    ),
    "EndpickAllEndpointsFail": (
        {STATE % ("a", "healthy"): ZERO, STATE % ("a", "degraded"): ZERO, STATE % ("a", "ejected"): EVER},
        {STATE % ("a", "healthy"): ZERO, STATE % ("b", "degraded"): EVER, STATE % ("a", "ejected"): EVER},
    ),
    "EndpickEndpointEjected": (
        {STATE % ("a", "ejected"): "1 1 1 0 " * 23, STATE % ("a", "probing"): "0 0 0 1 " * 23},
        {STATE % ("a", "ejected"): FLAPS, STATE % ("a", "probing"): ZERO},
    ),
    "EndpickMetricsStale": ({AGE: "31+0x90", QUEUE_AGE: "31+0x90"}, {AGE: "+Inf+0x90"}),
    "EndpickPickLatencyHigh": (
        {BUCKET % "0.02": "0+98x90", BUCKET % "0.05": "0+100x90", BUCKET % "+Inf": "0+100x90"},
        {BUCKET % "0.01": "0+99x90", BUCKET % "0.02": "0+100x90", BUCKET % "+Inf": "0+100x90"},
    ),
    "EndpickLoopStalls": ({"endpick_loop_stalls_total": GROWS}, {"endpick_loop_stalls_total": EVER}),
    "EndpickPluginCircuitOpen": (
        {'endpick_plugin_circuit_state{plugin_name="a"}': "2 2 1 " * 30},
        {'endpick_plugin_circuit_state{plugin_name="a"}': "2 0 " * 45},
    ),
    "EndpickPluginFaults": ({FAULTS: GROWS}, {FAULTS: "0+0.4x90"}),
    "EndpickConfigRefused": (
        {'endpick_config_reloads_total{outcome="refused"}': GROWS},
        {'endpick_config_reloads_total{outcome="refused"}': EVER, 'endpick_config_reloads_total{outcome="applied"}': GROWS},
    ),
    "EndpickConfigDrift": ({"endpick_config_drift": EVER}, {"endpick_config_drift": FLAPS}),
    "EndpickPluginDrift": ({'endpick_plugin_drift{distribution="a"}': EVER}, {'endpick_plugin_drift{distribution="a"}': "0+0x20 1+0x69"}),
    "EndpickMemoryShedding": ({'endpick_overload_stage{stage="shedding"}': EVER}, {'endpick_overload_stage{stage="normal"}': EVER}),
    "EndpickDecisionRecordsDropped": (
        {'endpick_decision_records_total{event="dropped"}': GROWS},
        {'endpick_decision_records_total{event="dropped"}': ZERO, 'endpick_decision_records_total{event="recorded"}': GROWS},
    ),
}


def promtool(*arguments: object) -> str:
    binary = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not binary:
        pytest.skip("no promtool: set PROMTOOL to its binary, or put it on the PATH")
    result = subprocess.run([binary, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def rule_test(alert: str, series: dict[str, str], firing: bool) -> dict[str, object]:
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if firing else []
    return {
        "interval": MINUTE,
        "input_series": [{"series": name, "values": values.strip()} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "70m", "exp_samples": expected}],
    }


def test_promtool_accepts_the_rules():
    assert f"{len(ALERTS)} rules found" in promtool("check", "rules", RULES)


def test_each_alert_fires_and_is_silent(tmp_path):
    assert CASES.keys() == ALERTS.keys()
    tests = [rule_test(alert, series, firing) for alert, pair in CASES.items() for series, firing in zip(pair, (True, False), strict=True)]
    file = tmp_path / "tests.yaml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": MINUTE, "tests": tests}))  # JSON is YAML
    promtool("test", "rules", file)


def test_each_alert_has_a_runbook_that_names_it():
    for alert, rule in ALERTS.items():
        url = rule["annotations"]["runbook_url"]
        assert url.startswith(ADDRESS)
        page = RUNBOOKS / url.removeprefix(ADDRESS).replace(".html", ".md")
        assert f"`{alert}`" in page.read_text(), f"{page} does not name {alert}"
    assert {word for page in RUNBOOKS.glob("*.md") for word in re.findall(r"`(Endpick\w+)`", page.read_text())} == ALERTS.keys()


def test_runbooks_fit_on_a_screen():
    for page in RUNBOOKS.glob("*.md"):
        lines = page.read_text().splitlines()
        assert len(lines) <= 45, f"{page.name} has {len(lines)} lines"
