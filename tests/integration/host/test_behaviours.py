"""What an operator sees of configuration mistakes, through the command line and with real distributions."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from click.testing import CliRunner

from endpick.cli.validate import validate as validate_command

FLOW = '''
"""Plugins that only declare data."""

import numpy as np
from endpick.api import DataCollector, DataKey, DataProducer, Parameters, PollingSource, Scope, Scorer

A = DataKey("acme.example/a", float, Scope.CANDIDATE)
B = DataKey("acme.example/b", float, Scope.CANDIDATE)
B_AS_TEXT = DataKey("acme.example/b", str, Scope.CANDIDATE)
HEAT = DataKey("acme.example/heat", float, default_producer="acme.heat-collector")
COLD = DataKey("acme.example/cold", float)


class Page:
    """What the heat source delivers."""


class Base:
    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))

    def produce(self, request, endpoints, state):
        pass

    def collect(self, payload, writer):
        pass

    async def poll(self, endpoint):
        return Page()


class Both(Base, Scorer):
    consumes = (A, B_AS_TEXT)


class Maker(Base, DataProducer):
    produces = (A, B)


class AFromB(Base, DataProducer):
    consumes = (B,)
    produces = (A,)


class BFromA(Base, DataProducer):
    consumes = (A,)
    produces = (B,)


class Warm(Base, Scorer):
    consumes = (HEAT,)


class Chilly(Base, Scorer):
    consumes = (COLD,)


class HeatSource(Base, PollingSource[Parameters, Page]):
    pass


class HeatCollector(Base, DataCollector[Parameters, Page]):
    produces = (HEAT,)
    default_source = "acme.heat-source"


class ColdCollector(Base, DataCollector[Parameters, Page]):
    produces = (COLD,)
'''

FLOW_TYPES = {
    "acme.both": "acme_flow:Both",
    "acme.maker": "acme_flow:Maker",
    "acme.a-from-b": "acme_flow:AFromB",
    "acme.b-from-a": "acme_flow:BFromA",
    "acme.warm": "acme_flow:Warm",
    "acme.chilly": "acme_flow:Chilly",
    "acme.heat-source": "acme_flow:HeatSource",
    "acme.heat-collector": "acme_flow:HeatCollector",
    "acme.cold-collector": "acme_flow:ColdCollector",
}


@dataclass(frozen=True)
class Verdict:
    """What `endpick validate` said about one text."""

    exit_code: int
    text: str
    diagnostics: list[dict]

    @property
    def found(self) -> list[tuple[str, str]]:
        """Each diagnostic as its code and the text that its span covers."""
        return [(one["code"], self.quote(one["span"])) for one in self.diagnostics]

    @property
    def only(self) -> dict:
        (diagnostic,) = self.diagnostics
        return diagnostic

    def quote(self, span: dict) -> str:
        lines = self.text.splitlines()[span["line"] - 1 : span["endLine"]]
        lines[-1] = lines[-1][: span["endColumn"] - 1]
        lines[0] = lines[0][span["column"] - 1 :]
        return "\n".join(lines)


@pytest.fixture
def validate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Verdict]:
    """`validate(body)`: the verdict on a document of which only the interesting part is given; line 3 is the first of the body."""

    def run(body: str, *, head: str = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n") -> Verdict:
        text = head + dedent(body).lstrip()
        monkeypatch.chdir(tmp_path)
        Path("config.yaml").write_text(text)
        result = CliRunner().invoke(validate_command, ["config.yaml", "--format", "json"])
        assert isinstance(result.exception, SystemExit)
        return Verdict(result.exit_code, text, json.loads(result.stdout)["diagnostics"])

    return run


@pytest.fixture
def flow(make_distribution, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A third-party distribution on the path."""
    directory = make_distribution("acme-flow", FLOW_TYPES, modules={"acme_flow": FLOW})
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, "acme_flow", raising=False)
    yield directory
    sys.modules.pop("acme_flow", None)


def test_behaviour_28_syntax_error_has_a_caret(run_cli) -> None:
    result = run_cli("validate", "-", text="apiVersion: endpick/v1alpha1\nplugins: [\n  - type: queue-scorer\n")

    assert result.exit_code == 3
    assert re.search(r"error\[E0101\].*\n *--> <stdin>:\d+:\d+\n", result.stderr)
    assert re.search(r"^ *\| +\^", result.stderr, re.MULTILINE)


def test_behaviour_28_a_merge_conflict_gets_its_own_hint(run_cli) -> None:
    text = "apiVersion: endpick/v1alpha1\n<<<<<<< HEAD\nkind: EndpointPickerConfig\n=======\nkind: Other\n>>>>>>> theirs\n"

    result = run_cli("validate", "-", text=text)

    assert result.exit_code == 3
    assert "error[E0106]" in result.stderr
    assert "<stdin>:2:1" in result.stderr


def test_behaviour_29_duplicate_key_is_shown_at_both_places(validate) -> None:
    verdict = validate("""
        plugins: [{type: queue-scorer}]
        plugins: [{type: random-picker}]
        """)

    duplicate = next(one for one in verdict.diagnostics if one["code"] == "E0102")
    assert (duplicate["span"]["line"], duplicate["span"]["column"]) == (4, 1)
    assert [(label["span"]["line"], label["span"]["column"]) for label in duplicate["labels"]] == [(3, 1)]
    assert verdict.exit_code == 3


def test_behaviour_30_unknown_parameter_gets_a_suggestion(validate) -> None:
    near = validate("plugins: [{type: load-aware-scorer, parameters: {treshold: 3}}]")
    far = validate("plugins: [{type: load-aware-scorer, parameters: {colour: 3}}]")

    assert near.found == [("E0402", "treshold")]
    assert near.only["help"] == "did you mean 'threshold'?"
    assert far.found == [("E0402", "colour")]
    assert "did you mean" not in (far.only["help"] or "")


def test_behaviour_31_missing_parameter_is_marked(validate) -> None:
    verdict = validate("""
        plugins:
          - type: file-discovery
            parameters: {watchFile: true}
        dataLayer: {discovery: {endpoints: {pluginRef: file-discovery}}}
        """)

    assert verdict.found == [("E0406", "parameters")]
    assert "'path'" in verdict.only["message"]
    assert "file-discovery" in verdict.only["message"]


def test_behaviour_32_merged_value_is_marked_where_written(validate) -> None:
    verdict = validate("""
        plugins:
          - type: load-aware-scorer
            parameters: &shared {threshold: high}
          - type: load-aware-scorer
            name: second
            parameters:
              <<: *shared
        """)

    assert verdict.found == [("E0401", "high"), ("E0401", "high")]
    assert verdict.diagnostics[1]["span"]["line"] == 5
    assert [label["span"]["line"] for label in verdict.diagnostics[1]["labels"]] == [9]


def test_behaviour_33_seven_mistakes_in_document_order(validate) -> None:
    verdict = validate("""
        plugins:
          - type: load-aware-scorer
            parameters: {treshold: 3}
          - type: quue-scorer
          - type: file-discovery
          - type: max-score-picker
            nmae: picker
        schedulingProfiles:
          - name: default
            plugins:
              - pluginRef: load-aware-scorrer
              - pluginRef: load-aware-scorer
              - pluginRef: max-score-picker
                weight: 3
        featureGates: [flowControll]
        dataLayer:
          discovery: {endpoints: {pluginRef: file-discovery}}
        """)

    assert verdict.found == [
        ("E0402", "treshold"),
        ("E0301", "quue-scorer"),
        ("E0406", "file-discovery"),
        ("E0201", "nmae"),
        ("E0501", "load-aware-scorrer"),
        ("E0504", "3"),
        ("E0208", "flowControll"),
    ]
    assert verdict.exit_code == 3


def test_behaviour_36_an_alias_bomb_and_a_huge_file_are_refused(validate) -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
        f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
    )
    huge = "# " + "x" * 10_000_000 + "\n"

    for text in (bomb, huge):
        verdict = validate(text)
        assert [one["code"] for one in verdict.diagnostics] == ["E0104"]
        assert verdict.exit_code == 3


def test_behaviour_37_misspelt_reference_gets_a_suggestion(run_cli) -> None:
    text = dedent("""\
        apiVersion: endpick/v1alpha1
        kind: EndpointPickerConfig
        plugins: [{type: queue-scorer}, {type: random-picker}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: quue-scorer}, {pluginRef: random-picker, weight: 2}]}]
        """)

    result = run_cli("validate", "-", text=text)

    assert result.exit_code == 3
    assert "help: did you mean 'queue-scorer'?" in result.stderr
    assert "note: defined are queue-scorer, random-picker" in result.stderr
    assert "error[E0504]: 'random-picker' is a picker, and only scorers have a weight" in result.stderr


@pytest.mark.usefixtures("flow")
def test_behaviour_38_missing_data_names_possible_producers(validate) -> None:
    verdict = validate(
        """
        plugins: [{type: acme.chilly, name: cool}]
        schedulingProfiles: [{name: default, plugins: [{pluginRef: cool}]}]
        """,
    )

    assert verdict.found == [("E0601", "cool")]
    assert verdict.only["span"]["line"] == 4
    assert "'acme.example/cold', which 'cool' needs" in verdict.only["message"]
    assert "acme.cold-collector" in verdict.only["help"]
    assert verdict.exit_code == 3


@pytest.mark.usefixtures("flow")
def test_behaviour_39_type_mismatch_is_found(validate) -> None:
    verdict = validate("plugins: [{type: acme.maker}, {type: acme.both}]")

    assert verdict.found == [("E0602", "acme.both")]
    assert "'acme.example/b' as str" in verdict.only["message"]


@pytest.mark.usefixtures("flow")
def test_behaviour_40_cycle_is_shown_deterministically(validate) -> None:
    body = "plugins:\n  - {type: acme.b-from-a}\n  - {type: acme.a-from-b}\n"

    first, second = validate(body), validate(body)

    assert first.found == [("E0603", "acme.a-from-b")]
    assert "acme.a-from-b → acme.b-from-a → acme.a-from-b" in first.only["message"]
    assert [first.quote(label["span"]) for label in first.only["labels"]] == ["acme.b-from-a"]
    assert second.diagnostics == first.diagnostics


@pytest.mark.usefixtures("flow")
def test_behaviour_41_wrong_payload_names_both_types(validate) -> None:
    verdict = validate(
        """
        plugins: [{type: metrics-data-source}, {type: acme.heat-collector}, {type: acme.warm}]
        dataLayer:
          sources:
            - pluginRef: metrics-data-source
              extractors:
                - pluginRef: acme.heat-collector
        """,
        head="apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n",
    )

    assert verdict.found == [("E0606", "acme.heat-collector")]
    assert verdict.only["span"]["line"] == 8
    assert "acme_flow.Page" in verdict.only["message"]
    assert "MetricsPage" in verdict.only["message"]


def test_behaviour_42_default_producer_is_announced(run_cli, flow: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: acme.warm}]\n")

    result = run_cli("plan", "config.yaml", path=[flow])

    assert result.exit_code == 0, result.stderr
    assert "added producer 'acme.heat-collector': 'acme.warm' needs 'acme.example/heat' and nothing else produces it" in result.stdout
    assert "added data source 'acme.heat-source': no source feeds collector 'acme.heat-collector'" in result.stdout
    assert re.search(r"acme\.heat-collector +acme-flow 1\.0 +added", result.stdout)
