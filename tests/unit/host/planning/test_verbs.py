"""The verbs that take a configuration: what they print where, and with which exit code they end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from endpick.cli import schema, validate
from endpick.cli.main import main
from endpick.host import discovery
from unit.host.planning.zoo import candidates

SCHEMAS = Path(__file__).parents[4] / "schemas"

POOL = "dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}\n"
GOOD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: plain-scorer}, {type: file-discovery}]\n" + POOL
DOUBTFUL = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: tokenizer}, {type: file-discovery}]\n" + POOL
WRONG = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: orphan-scorer}, {type: file-discovery}]\n" + POOL
MISSING = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: nowhere-scorer}, {type: file-discovery}]\n" + POOL


@pytest.fixture
def endpick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command line in a directory with the four configurations, with the zoo installed."""
    monkeypatch.chdir(tmp_path)
    for module in (discovery, schema, validate):
        monkeypatch.setattr(module, "discover", candidates)
    for name, text in (("good", GOOD), ("doubtful", DOUBTFUL), ("wrong", WRONG), ("missing", MISSING)):
        Path(f"{name}.yaml").write_text(text)

    def run(*arguments: str, text: str | None = None) -> Result:
        return CliRunner().invoke(main, arguments, input=text)

    return run


def test_the_exit_code_of_validate_says_who_has_to_act(endpick) -> None:
    for arguments, exit_code in [
        (["good.yaml"], 0),
        (["doubtful.yaml"], 0),
        (["doubtful.yaml", "--strict"], 3),
        (["good.yaml", "--strict"], 0),
        (["wrong.yaml"], 3),
        (["missing.yaml"], 4),
        (["missing.yaml", "--strict"], 4),
        (["good.yaml", "missing.yaml"], 4),
        (["wrong.yaml", "missing.yaml"], 3),
        (["absent.yaml"], 3),
        ([], 2),
    ]:
        assert endpick("validate", *arguments).exit_code == exit_code


def test_validate_prints_diagnostics_and_a_summary(endpick) -> None:
    result = endpick("validate", "good.yaml", "doubtful.yaml", "wrong.yaml")

    assert result.stdout == "good.yaml: ok\ndoubtful.yaml: 1 warning\nwrong.yaml: 1 error\n"
    assert "warning[W0602]" in result.stderr
    assert "3 | plugins: [{type: orphan-scorer}" in result.stderr
    assert "\x1b[" not in result.stderr


def test_huge_standard_input_is_refused(endpick) -> None:
    result = endpick("validate", "-", text="# x\n" * 10_000_000)

    assert (result.exit_code, "error[E0104]" in result.stderr) == (3, True)


def test_validate_reads_standard_input(endpick) -> None:
    result = endpick("validate", "-", text=WRONG)

    assert result.exit_code == 3
    assert "--> <stdin>:3:18" in result.stderr


def test_validate_prints_json_that_satisfies_its_schema(endpick) -> None:
    result = endpick("validate", "--format", "json", "wrong.yaml", "missing.yaml")

    document = json.loads(result.stdout)
    jsonschema.validate(document, json.loads((SCHEMAS / "diagnostics.v1.json").read_text()))
    assert [(one["code"], one["span"]["file"]) for one in document["diagnostics"]] == [("E0301", "missing.yaml"), ("E0601", "wrong.yaml")]
    assert result.stderr == ""


def test_validate_prints_github_commands(endpick) -> None:
    result = endpick("validate", "--format", "github", "wrong.yaml")

    assert result.stdout.startswith("::error file=wrong.yaml,line=3,col=18,")


def test_validate_finds_what_only_a_constructor_can_judge(endpick) -> None:
    result = endpick("validate", "-", text=GOOD.replace("plain-scorer", "stubborn-scorer"))

    assert result.exit_code == 3
    assert "error[E0403]" in result.stderr
    assert "not on a Monday" in result.stderr


@pytest.mark.parametrize("static", [[], ["--static"]])
def test_validate_notes_that_discovery_is_left_to_flags(endpick, static: list[str]) -> None:
    text = GOOD.replace(", {type: file-discovery}", "").replace(POOL, "")

    alone = endpick("validate", *static, "-", "--format", "json", text=text)
    (left,) = json.loads(alone.stdout)["diagnostics"]
    assert (alone.exit_code, left["code"], left["severity"]) == (0, "N0801", "note")
    assert "--pool-name, --endpoint-selector or --endpoints" in left["help"]
    for given in (["--endpoints", "pool.yaml"], ["--pool-name", "chat"], ["--endpoint-selector=a=b", "-endpoint-target-ports", "8000"]):
        assert "N0801" not in endpick("validate", *static, *given, "-", text=text).stderr


def test_validate_checks_the_flags_about_kubernetes_and_gates(endpick) -> None:
    both = endpick("validate", "--pool-name=a", "--endpoint-selector=b", "good.yaml")
    gate = endpick("validate", "--feature-gates=flowcontroll", "good.yaml")

    assert (both.exit_code, gate.exit_code) == (2, 2)
    assert "give --pool-name or --endpoint-selector, not both" in both.stderr
    assert "'flowcontroll' is not a feature gate" in gate.stderr


def test_named_discovery_wins_over_the_endpoints_file(endpick) -> None:
    result = endpick("plan", "good.yaml", "--endpoints", "pool.yaml")

    assert result.exit_code == 0
    assert "warning[W0204]: --endpoints has no effect: the configuration names the discovery 'file-discovery'" in result.stderr


def test_static_check_skips_third_party_parameters(endpick) -> None:
    assert endpick("validate", "--static", "wrong.yaml").exit_code == 0
    assert endpick("validate", "--static", "missing.yaml").exit_code == 4


@pytest.mark.parametrize("verb", ["plan", "graph"])
def test_verbs_that_need_a_plan_end_as_validate_does_without_one(endpick, verb: str) -> None:
    result = endpick(verb, "wrong.yaml")

    assert result.exit_code == 3
    assert result.stdout == ""
    assert "error[E0601]" in result.stderr


@pytest.mark.parametrize("verb", ["plan", "graph"])
def test_errors_are_json_when_there_is_no_plan(endpick, verb: str) -> None:
    result = endpick(verb, "wrong.yaml", "--format", "json")

    assert result.exit_code == 3
    assert [one["code"] for one in json.loads(result.stdout)["diagnostics"]] == ["E0601"]


def test_plan_tells_order_weights_origin_and_what_was_filled_in(endpick) -> None:
    result = endpick("plan", "good.yaml")

    assert result.exit_code == 0
    rows = [tuple(re.split(" {2,}", line.strip())) for line in result.stdout.splitlines()]
    for row in (
        ("plain-scorer", "zoo 1.0", "line 3"),
        ("max-score-picker", "zoo 1.0", "added"),
        ("scorer", "plain-scorer", "1 (default)"),
        ("parser", "openai-parser, passthrough-parser"),
        ("metrics-data-source", "-", "core-metrics-extractor"),
        ("added picker 'max-score-picker' to profile 'default': no picker is defined",),
    ):
        assert row in rows


def test_plan_prints_warnings_on_standard_error(endpick) -> None:
    result = endpick("plan", "doubtful.yaml")

    assert result.exit_code == 0
    assert "warning[W0602]" in result.stderr


def test_plan_prints_the_same_json_each_time(endpick) -> None:
    first, second = (endpick("plan", "good.yaml", "--format", "json").stdout for _ in range(2))

    assert first == second
    jsonschema.validate(json.loads(first), json.loads((SCHEMAS / "plan.v1.json").read_text()))


@pytest.mark.parametrize(("output", "begin"), [("mermaid", "flowchart LR\n"), ("json", "{")])
def test_graph_draws_in_three_formats(endpick, output: str, begin: str) -> None:
    result = endpick("graph", "good.yaml", "--format", output)

    assert result.exit_code == 0
    assert result.stdout.startswith(begin)


@pytest.mark.parametrize(
    "arguments",
    [
        ["list"],
        ["list", "--load"],
        ["describe", "queue-scorer"],
        ["describe", "core-metrics-extractor"],
        ["doctor"],
        ["doctor", "--load"],
        ["explain"],
        ["explain", "E0301"],
        ["lock"],
    ],
    ids=" ".join,
)
def test_what_other_verbs_print_satisfies_the_published_schemas(arguments: list[str], tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)

    result = CliRunner().invoke(main, [*arguments, "--format", "json"])

    assert result.exit_code == 0, result.output
    jsonschema.validate(json.loads(result.stdout), json.loads((SCHEMAS / f"{arguments[0]}.v1.json").read_text()))


def test_schema_prints_the_parameters_of_a_type(endpick) -> None:
    document = json.loads(endpick("schema", "queue-scorer").stdout)

    assert document["title"] == "queue-scorer"
    assert document["properties"]["cap"]["description"] == "Queue length that scores zero."


def test_config_schema_can_include_third_party_types(endpick) -> None:
    def types(*options: str) -> list[str]:
        plugin = json.loads(endpick("schema", "config", *options).stdout)["definitions"]["PluginSpec"]
        return plugin["properties"]["type"].get("enum", [])

    assert "queue-scorer" in types("--installed")
    assert types() == []


def test_schema_writes_to_a_file(endpick) -> None:
    result = endpick("schema", "plan", "-o", "plan.json")

    assert result.stdout == ""
    assert Path("plan.json").read_text() == (SCHEMAS / "plan.v1.json").read_text()


def test_schema_of_an_unknown_type_is_refused(endpick) -> None:
    result = endpick("schema", "quue-scorer")

    assert result.exit_code == 4
    assert "did you mean 'queue-scorer'?" in result.stderr


def test_installed_makes_sense_for_the_config_only(endpick) -> None:
    assert endpick("schema", "plan", "--installed").exit_code == 2
