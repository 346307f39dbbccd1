"""The table of parameters that goes into a README."""

from __future__ import annotations


def test_markdown_table_has_a_row_for_each_parameter(run_cli):
    lines = run_cli("describe", "metrics-data-source", "--format", "markdown").stdout.splitlines()

    assert lines[:2] == ["| parameter | type | default | meaning |", "| --- | --- | --- | --- |"]
    assert '| `scheme` | "http" or "https" | `"http"` | `http` or `https`. |' in lines
    assert any(line.startswith('| `interval` | duration | `"0s"` |') for line in lines)


def test_required_parameter_has_no_default(run_cli):
    assert "| `path` | string | (required) |" in run_cli("describe", "file-discovery", "--format", "markdown").stdout


def test_plugin_without_parameters_says_so(run_cli):
    assert run_cli("describe", "queue-scorer", "--format", "markdown").stdout == "It has no parameters.\n"
