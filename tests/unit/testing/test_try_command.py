"""`endpick try`: files in, one decision out."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from endpick.cli.main import main

CONFIG = """\
apiVersion: endpick/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: decode-filter
  - type: queue-scorer
  - type: lora-affinity-scorer
  - type: max-score-picker
    parameters: {maxNumOfEndpoints: 2}
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: decode-filter
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: lora-affinity-scorer, weight: 1}
      - pluginRef: max-score-picker
"""
ENDPOINTS = """\
endpoints:
  - {name: a, address: 10.0.0.1, port: 8000, data: {waiting-queue-size: 3}}
  - name: b
    namespace: gpu
    address: 10.0.0.2
    port: "8000"
    data: {waiting-queue-size: 1, lora-adapters: {running: [x], max_adapters: 4}}
  - {name: c, address: 10.0.0.3, port: 8000, labels: {llm-d.ai/role: prefill}}
"""
REQUEST = '{"model": "x", "messages": [{"role": "user", "content": "hi"}]}'


@pytest.fixture
def attempt(tmp_path):
    """`attempt(endpoints=…)`: runs the verb on these files."""

    def run(*options, config=CONFIG, endpoints=ENDPOINTS, request=REQUEST):
        files = {"config.yaml": config, "endpoints.yaml": endpoints, "request.json": request}
        for name, text in files.items():
            (tmp_path / name).write_text(text)
        arguments = [tmp_path / "config.yaml", "--request", tmp_path / "request.json", "--endpoints", tmp_path / "endpoints.yaml", *options]
        return CliRunner(env={"COLUMNS": "120"}).invoke(main, ["try", *map(str, arguments)])

    return run


def test_text_shows_who_said_what(attempt):
    result = attempt()

    assert result.exit_code == 0
    assert result.stderr.startswith("warning[W0507]: ")
    assert result.stderr.endswith(
        "\n"
        "warning: default/a, default/c: no 'lora-adapters', which lora-affinity-scorer reads\n"
        "warning: default/c: no 'waiting-queue-size', which queue-scorer reads\n"
    )
    assert result.stdout == (
        "the request goes to 10.0.0.2:8000, with 10.0.0.1:8000 as fallback\n"
        "\n"
        "profile default\n"
        "  filter decode-filter: kept 2 of 3; dropped default/c\n"
        "  ENDPOINT   queue-scorer x2  lora-affinity-scorer x1  TOTAL  PICK (max-score-picker)\n"
        "  gpu/b      1.000 (2.000)    1.000 (1.000)            3.000  1\n"
        "  default/a  0.000 (0.000)    0.000 (0.000)            0.000  2\n"
    )


def test_json_has_the_same_for_programs(attempt):
    result = attempt("--format", "json")

    document = json.loads(result.stdout)
    (run,) = document["runs"]
    assert document["destinations"] == ["10.0.0.2:8000", "10.0.0.1:8000"]
    assert run["scorers"][0] == {
        "instance": "queue-scorer",
        "type": "queue-scorer",
        "weight": 2.0,
        "answered": [0.0, 1.0],
        "weighted": [0.0, 2.0],
        "problem": "",
        "seconds": 0.0,
    }
    assert attempt("--format", "json").stdout == result.stdout


def test_a_refusal_is_a_decision_too(attempt):
    result = attempt(endpoints="endpoints:\n  - {name: c, address: 10.0.0.3, port: 8000, labels: {llm-d.ai/role: prefill}}\n")

    assert result.exit_code == 0
    assert result.stdout.startswith("the request is refused with status 429: failed to find target endpoint")
    assert "filter decode-filter: kept 0 of 1; dropped default/c" in result.stdout


def test_an_unreadable_body_is_refused_as_by_the_parser(attempt):
    result = attempt(request="{")

    assert result.exit_code == 0
    assert result.stdout.startswith("the request is refused with status 400: ")


def test_wrong_data_is_named_with_what_would_be_right(attempt):
    wrong = "endpoints:\n  - {name: a, address: 10.0.0.1, port: 8000, data: {waiting-queue: 3, kv-cache-usage: lots}}\n"

    result = attempt(endpoints=wrong)

    assert result.exit_code == 2
    assert (
        "data of default/a: there is no data key 'waiting-queue' of scope 'endpoint'; did you mean 'waiting-queue-size'?" in result.stderr
    )
    assert "data of default/a: 'lots' is no value of 'kv-cache-usage': Input should be a valid number" in result.stderr


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [
        ("[", "it is not YAML"),
        ("- a", "the document: Input should be a valid dictionary"),
        ("endpoints:\n  - {name: a, address: 10.0.0.1}\n", "endpoints.0.port: Field required"),
        ("endpoints:\n  - {name: a, address: 10.0.0.1, port: 8000, date: {}}\n", "endpoints.0.date: Extra inputs are not permitted"),
        ("endpoints: [{name: a, address: 10.0.0.1, port: 1}, {name: a, address: 10.0.0.2, port: 1}]", "two have the same name"),
        ("endpoints: []\npool: {price: 3}\n", "pool: there is no data key 'price' of scope 'pool'; known are none"),
    ],
)
def test_wrong_endpoint_files_are_usage_errors(attempt, endpoints, message):
    result = attempt(endpoints=endpoints)

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_file_that_is_not_there_is_named(attempt):
    result = attempt("--endpoints", "nowhere.yaml")

    assert result.exit_code == 5
    assert "error: nowhere.yaml cannot be read: No such file or directory" in result.stderr


def test_a_wrong_configuration_is_diagnosed_as_everywhere(attempt):
    result = attempt(config=CONFIG.replace("queue-scorer, weight", "queue, weight"))

    assert result.exit_code == 3
    assert "E0501" in result.stderr


def test_headers_reach_the_plugins_and_odd_ones_are_refused(attempt):
    odd = attempt("--header", "nonsense")
    fine = attempt("--header", "x-request-id: mine", "--header", "x-prefer-if-cached: 1", "--format", "json")

    assert odd.exit_code == 2
    assert "'nonsense' is not a header; write NAME:VALUE" in odd.stderr
    assert fine.exit_code == 0


@pytest.mark.parametrize(
    ("endpoints", "message"),
    [
        ("endpoints: [{name: !!int x}]", "it is not YAML: invalid literal for int()"),
        ("endpoints: [{? [a] : b}, {[c]: d}]", "endpoints.0.name: Field required"),
    ],
)
def test_invalid_yaml_is_a_usage_error(attempt, endpoints, message):
    result = attempt(endpoints=endpoints)

    assert result.exit_code == 2
    assert message in result.stderr
