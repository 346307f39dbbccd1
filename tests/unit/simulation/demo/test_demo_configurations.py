"""Which configurations the demo can try."""

from __future__ import annotations

import pytest

from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan
from endpick_lab.demo.runner import built_in, why_unfit

DISCOVERING = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
  - type: file-discovery
    parameters: {path: PATH}
dataLayer:
  discovery: {endpoints: {pluginRef: file-discovery}}
"""
WITHOUT_DISCOVERY = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"


def plan_of(text: str) -> Plan:
    outcome = make_plan(load_config(text=text), discover())
    assert outcome.plan is not None, outcome.diagnostics
    return outcome.plan


@pytest.mark.parametrize("name", ["prefix-aware", "random-picker"])
def test_the_demos_own_configurations_fit(name: str):
    assert why_unfit(plan_of(built_in(name).text)) is None


@pytest.mark.parametrize("text", [WITHOUT_DISCOVERY, DISCOVERING.replace("PATH", "pool.yaml")], ids=["no discovery", "another file"])
def test_configuration_without_the_servers_is_refused(text: str):
    assert why_unfit(plan_of(text)) == (
        "the demo lists its model servers in 'endpoints.yaml'; name a file-discovery with that path under dataLayer.discovery.endpoints"
    )


def test_a_configuration_that_reads_the_demos_file_fits():
    assert why_unfit(plan_of(DISCOVERING.replace("PATH", "endpoints.yaml"))) is None


@pytest.mark.parametrize(
    ("text", "exit_code", "message"),
    [
        (DISCOVERING.replace("PATH", "pool.yaml"), 5, "the demo lists its model servers in 'endpoints.yaml'"),
        (DISCOVERING.replace("path: PATH", "file: endpoints.yaml"), 3, "error[E0402]"),
    ],
)
def test_invalid_configuration_starts_no_process(run_cli, tmp_path, text: str, exit_code: int, message: str):
    (tmp_path / "mine.yaml").write_text(text)
    result = run_cli("demo", "--config", "mine.yaml", environment={"ENDPICK_ENVOY": "/does/not/exist"})
    assert result.exit_code == exit_code
    assert message in result.stderr
    assert "mine.yaml" in result.stderr
    assert "ENVOY" not in result.stderr
    assert result.stdout == ""
