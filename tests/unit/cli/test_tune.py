"""`endpick tune`: it changes numbers only, judges on requests it has not searched, and says when there is nothing to gain."""

from __future__ import annotations

import pytest
import yaml
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.diagnostics import ExitCode
from endpick_lab.tuning import Document, TuningError

CONFIG = """# mine
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
  - type: load-aware-scorer
    parameters: {threshold: 10}   # a comment
  - type: prefix-cache-scorer
  - type: active-request-scorer
    name: open
  - type: header-profile-handler
schedulingProfiles:
  - name: several
    plugins:
      - {pluginRef: load-aware-scorer, weight: 2}
      - pluginRef: prefix-cache-scorer
  - name: lonely
    plugins:
      - pluginRef: open
"""
WORKLOAD = "duration: 20s\ntraffic: [{rate: 6, questionTokens: 300, outputTokens: 20, tenants: 4, prefixTokens: 640}]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.yaml").write_text(WORKLOAD)
    (tmp_path / "config.yaml").write_text(CONFIG.replace("  - name: lonely\n    plugins:\n      - pluginRef: open\n", ""))
    return tmp_path


def tune(*arguments: str):
    return CliRunner().invoke(main, ["tune", *arguments, "--servers", "2", "--kv-blocks", "300", "--trials", "3"])


def test_weights_are_those_of_profiles_with_several_scorers():
    found = list(Document(CONFIG).weights())
    assert [one.name for one in found] == ["several/load-aware-scorer", "several/prefix-cache-scorer"]


def test_only_numbers_change():
    document = Document(CONFIG)
    queue, prefix = document.weights()
    threshold = document.parameter("load-aware-scorer.threshold=1..100")
    busy = document.parameter("open.maxBusyScore=0.5..1.5")
    changed = document.with_values({queue: 0.12345, prefix: 7.0, threshold: 42.0, busy: 1.25})
    expected = (
        CONFIG.replace("weight: 2", "weight: 0.123")
        .replace("- pluginRef: prefix-cache-scorer\n", "- pluginRef: prefix-cache-scorer\n        weight: 7.0\n")
        .replace("threshold: 10", "threshold: 42")
        .replace("name: open\n", "name: open\n    parameters:\n      maxBusyScore: 1.25\n")
    )
    assert yaml.safe_load(changed) == yaml.safe_load(expected)
    assert ("# mine" in changed, "# a comment" in changed) == (True, True)
    assert yaml.safe_load(document.with_values({})) == yaml.safe_load(CONFIG)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("load-aware-scorer", "is not PLUGIN.PARAMETER=LOW..HIGH"),
        ("load-aware-scorer.threshold=9..9", "is empty"),
        ("queue.threshold=1..9", "has no plugin 'queue'"),
    ],
)
def test_wrong_ranges_are_explained(text, message):
    with pytest.raises(TuningError, match=message):
        Document(CONFIG).parameter(text)


@pytest.mark.long
def test_the_outcome_is_repeatable_and_judged_on_other_requests():
    pytest.importorskip("optuna", reason="searching needs optuna: pip install 'endpick[simulate]'")
    once = tune("config.yaml", "--trace", "load.yaml")
    assert once.exit_code == 0, once.output
    assert "on the other half" in once.stderr
    assert yaml.safe_load(once.stdout)["plugins"] == yaml.safe_load(CONFIG)["plugins"]
    assert tune("config.yaml", "--trace", "load.yaml").output == once.output


@pytest.mark.parametrize(
    ("change", "trace", "code", "message"),
    [
        (("queue", "queue"), "missing.yaml", ExitCode.FAILED, "missing.yaml cannot be read"),
        (("weight: 2}\n      - pluginRef: prefix-cache-scorer", "weight: 2}"), "load.yaml", ExitCode.USAGE, "nothing to vary"),
        (("type: load-aware-scorer", "type: load"), "load.yaml", ExitCode.CONFIG_INVALID, "E0501"),
    ],
)
def test_mistakes_are_explained(folder, change, trace, code, message):
    pytest.importorskip("optuna", reason="searching needs optuna: pip install 'endpick[simulate]'")
    file = folder / "config.yaml"
    file.write_text(file.read_text().replace(*change))
    result = tune("config.yaml", "--trace", trace)
    assert result.exit_code == code, result.output
    assert message in result.stderr
