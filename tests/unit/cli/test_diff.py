"""What `endpick diff` prints."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.diagnostics import ExitCode

SCHEMA = Path(__file__).parents[3] / "schemas" / "diff.v1.json"
OLD = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: load-aware-scorer, parameters: {threshold: 64}}
- {type: metrics-data-source, parameters: {path: /stats}}
"""
NEW = OLD.replace("64", "128").replace("/stats", "/metrics")


@pytest.fixture
def diff(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text(OLD)
    return lambda *arguments, text="": CliRunner().invoke(main, ["diff", "old.yaml", *arguments], input=text)


def test_changes_of_routing_come_first(diff):
    result = diff("-", text=NEW)

    assert result.stdout == ("routing\n  load-aware-scorer: threshold 64 → 128\nother\n  metrics-data-source: path /stats → /metrics\n")
    assert result.exit_code == ExitCode.DIFFERENT


def test_same_plan_written_in_other_words_is_equal(diff):
    result = diff("-", text=f"# the same\n{OLD}- {{type: max-score-picker}}\n")

    assert (result.stdout, result.exit_code) == ("old.yaml and - do the same\n", ExitCode.OK)


def test_json_satisfies_its_schema(diff):
    document = json.loads(diff("-", "--format", "json", text=NEW).stdout)

    jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    assert document["old"]["hash"] != document["new"]["hash"]
    assert [one["routes"] for one in document["changes"]] == [True, False]
