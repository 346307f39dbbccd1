"""`endpick replay`: recorded requests are decided again, and what that predicts has the direction of a simulated A/B.

Set ENDPICK_UPDATE_GOLDEN=1 to write the golden file anew, then read the difference.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

import jsonschema
import orjson
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from endpick.cli.main import main
from endpick.diagnostics import ExitCode
from endpick.requests.document import DecisionOutput
from endpick_lab.compare import Scenario, plan_of, simulate
from endpick_lab.decisions import DecisionsError, read_decisions
from endpick_lab.redecide import Redecider
from endpick_lab.trace import TraceRequest

GOLDEN = Path(__file__).parent / "golden" / "replay.txt"
SCHEMA = Path(__file__).parents[3] / "schemas" / "replay.v1.json"
LOAD = """
duration: 40s
traffic:
  - {rate: 4, tenants: 12, prefixTokens: 2000, questionTokens: 300, outputTokens: 40}
  - {rate: 1, turns: 3, thinkTime: 5s, questionTokens: 400, outputTokens: 60}
"""
CONFIG = """
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: running-requests-size-scorer}, {type: prefix-cache-scorer}]
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: queue-scorer, weight: 1}
      - {pluginRef: running-requests-size-scorer, weight: 1}
      - {pluginRef: prefix-cache-scorer, weight: WEIGHT}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A workload, two configurations that weigh the prefix differently, and the decisions and figures of each in a simulation."""
    folder = tmp_path_factory.mktemp("replay")
    (folder / "load.yaml").write_text(LOAD)
    for name, weight in (("light", "0.2"), ("heavy", "5")):
        (folder / f"{name}.yaml").write_text(CONFIG.replace("WEIGHT", weight))
        scenario = Scenario(folder / "load.yaml", servers=4, kv_blocks=400)
        run = simulate(str(folder / f"{name}.yaml"), scenario, record=folder / f"{name}.jsonl")
        (folder / f"{name}.json").write_text(json.dumps(run.figures))
    return folder


@pytest.fixture(autouse=True)
def _in_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)


def replay(*arguments: str):
    return CliRunner().invoke(main, ["replay", *arguments])


def report_of(config: str, decisions: str):
    ran = replay(config, "--decisions", decisions, "--format", "json")
    assert ran.exit_code == 0, ran.output
    return json.loads(ran.stdout)


def test_text_is_as_in_the_golden_file():
    ran = replay("heavy.yaml", "--decisions", "light.jsonl")
    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        GOLDEN.write_text(ran.stdout)
    assert ran.stdout == GOLDEN.read_text()
    assert ran.stderr == ""


def test_json_is_as_its_schema_says():
    report = report_of("heavy.yaml", "light.jsonl")
    jsonschema.validate(report, json.loads(SCHEMA.read_text()))
    assert sum(one["requests"] for one in report["reasons"]) == report["moved"] <= report["requests"]
    assert {one["reason"] for one in report["examples"]} <= {one["reason"] for one in report["reasons"]}


@pytest.mark.parametrize("name", ["light", "heavy"])
def test_the_recorded_configuration_moves_nothing(name):
    report = report_of(f"{name}.yaml", f"{name}.jsonl")
    assert {one["reason"] for one in report["reasons"]} <= {"max-score-picker chose another with the same total"}
    assert report["moved"] < 0.05 * report["requests"]


def test_plugins_learn_from_what_was_recorded(folder):
    scenario = Scenario(folder / "load.yaml", servers=4, kv_blocks=400)
    simulate("default", scenario, record=folder / "default.jsonl")
    report = report_of("default", "default.jsonl")
    assert report["moved"] < 0.05 * report["requests"]
    assert report_of("default", "light.jsonl")["moved"] > 0.1 * report["requests"]


@pytest.mark.parametrize(("recorded", "other", "sign"), [("light", "heavy", 1), ("heavy", "light", -1)])
def test_predicted_direction_is_that_of_a_simulated_a_b(recorded, other, sign):
    report = report_of(f"{other}.yaml", f"{recorded}.jsonl")
    cached = next(one for one in report["changes"] if one["measure"] == "cached tokens")
    assert min(sign * cached["low"], sign * cached["high"]) > 0
    before, after = (json.loads(Path(f"{name}.json").read_text()) for name in (recorded, other))
    assert sign * (after["hit_rate"] - before["hit_rate"]) > 0.02
    busy = next(one for one in report["changes"] if one["measure"] == "running requests")
    assert sign * busy["change"] > 0
    assert sign * (after["imbalance"] - before["imbalance"]) > 0


def shared(first: TraceRequest, second: TraceRequest) -> int:
    """Whole blocks only: only these are cached."""
    whole = [one.blocks[: one.prompt_tokens // one.block_tokens] for one in (first, second)]
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*whole, strict=False)))


def test_records_are_the_trace_that_they_were_recorded_from(folder):
    asked, _ = Scenario(folder / "load.yaml", servers=4).load()
    read, _ = Scenario(folder / "light.jsonl", servers=4).load()
    assert [(one.prompt_tokens, one.output_tokens, one.block_tokens, one.stream) for one in read] == [
        (one.prompt_tokens, one.output_tokens, one.block_tokens, one.stream) for one in asked
    ]
    assert max(abs((two.at - read[0].at) - (one.at - asked[0].at)) for one, two in zip(asked, read, strict=True)) < 0.002
    pairs = [(number, number - back) for number in range(len(asked)) for back in (1, 2, 7) if number >= back]
    assert [shared(read[one], read[two]) for one, two in pairs] == [shared(asked[one], asked[two]) for one, two in pairs]


def test_a_filter_that_left_the_recorded_pick_out_is_named(folder):
    without = CONFIG.replace("plugins: [", "plugins: [{type: by-label-selector, parameters: {matchLabels: {zone: a}}}, ", 1)
    without = without.replace("    plugins:\n", "    plugins:\n      - {pluginRef: by-label-selector}\n")
    (folder / "zone.yaml").write_text(without.replace("WEIGHT", "1"))
    with (folder / "zones.jsonl").open("wb") as file:
        for line in (folder / "light.jsonl").read_bytes().splitlines()[:40]:
            record = orjson.loads(line)
            for endpoint in record["endpoints"][:2]:
                endpoint["labels"] = {"zone": "a"}
            file.write(orjson.dumps(record) + b"\n")
    report = report_of("zone.yaml", "zones.jsonl")
    assert report["moved"]
    assert "filter by-label-selector dropped it" in {one["reason"] for one in report["reasons"]}


def test_adapters_and_objectives_are_kept(folder):
    record = orjson.loads((folder / "light.jsonl").read_bytes().splitlines()[0])
    record["model"], record["request"]["objective"] = "french", "chat"
    record["endpoints"][0]["values"]["lora-adapters"] = {"running": ["french"], "waiting": [], "maxAdapters": 4}
    (folder / "adapter.jsonl").write_bytes(orjson.dumps(record) + b"\n")
    (one,) = read_decisions(folder / "adapter.jsonl").trace()
    assert (one.adapter, one.headers["x-llm-d-inference-objective"]) == ("french", "chat")
    (decided,) = list(redecided(folder / "adapter.jsonl"))
    assert decided.was is not None


@cache
def light_plan():
    return plan_of("light.yaml")


def redecided(path: Path):
    redecider = Redecider(light_plan(), 1)
    with redecider.host:
        yield from redecider.decide(read_decisions(path))


def changed(**fields: object) -> bytes:
    return orjson.dumps(orjson.loads(Path("light.jsonl").read_bytes().splitlines()[0]) | fields) + b"\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (lambda: b"", "it has no records"),
        (lambda: changed(version=1), "a record of version 1 was found; this endpick reads version 2"),
        (lambda: changed(request=None), "none of the 1 records says what its request was"),
        (lambda: changed(time="yesterday"), "time: input should be a valid datetime"),
        (lambda: changed(request={"promptTokens": 3}), "request.blockTokens: field required"),
        (lambda: changed(request=orjson.loads(changed())["request"] | {"blocks": "AAA"}), "request.blocks: it is not base64"),
        (lambda: changed(runs=7), "runs: input should be a valid"),
        (lambda: b"nonsense\n", "the record: invalid JSON"),
    ],
)
def test_what_is_wrong_with_records_is_told_with_its_place(folder, line, message):
    (folder / "wrong.jsonl").write_bytes(line())
    ran = replay("light.yaml", "--decisions", "wrong.jsonl")
    assert ran.exit_code == ExitCode.FAILED
    assert "error[E0810]: the recorded decisions cannot be used: " + message in ran.stderr
    assert "  --> wrong.jsonl:1:1\n" in ran.stderr
    assert "help: record them with" in ran.stderr


def test_simulate_refuses_wrong_records_as_well(folder):
    (folder / "old.jsonl").write_bytes(changed(version=1))
    ran = CliRunner().invoke(main, ["simulate", "light.yaml", "--trace", "old.jsonl"])
    assert (ran.exit_code, "E0810" in ran.stderr) == (ExitCode.FAILED, True)


def test_a_torn_last_line_and_refusals_are_left_out(folder):
    (folder / "torn.jsonl").write_bytes(changed() + changed(request=None, why="error") + changed()[:200])
    ran = replay("light.yaml", "--decisions", "torn.jsonl")
    assert ran.exit_code == 0
    assert "of 1 picks move" in ran.stdout
    assert "warning[W0801]: 1 requests that were refused before scheduling" in ran.stderr
    assert "warning[W0801]: the last record is incomplete and left out\n  --> torn.jsonl:3:1\n" in ran.stderr


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(st.data())
def test_bytes_that_changed_are_read_or_refused(folder, data):
    text = bytearray(changed())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 20))] = data.draw(
            st.sampled_from([b"", b"0", b'"', b"{}", b"[]", b"null", b"-1", b"\xff"])
        )
    (folder / "bytes.jsonl").write_bytes(bytes(text))
    with suppress(DecisionsError):
        assert all(one.id is not None for one in redecided(folder / "bytes.jsonl"))


def test_a_record_says_nothing_about_the_text(folder):
    for line in (folder / "light.jsonl").read_bytes().splitlines():
        record = DecisionOutput.model_validate_json(line)
        assert record.request is not None
        assert set(record.request.model_dump()) == {
            "prompt_tokens", "block_tokens", "blocks", "streaming", "max_output_tokens", "objective"
        }  # fmt: skip
