"""The table of limits: each has a setting, a metric and a line of the log; those that only count are told."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from endpick.cli.serve import command
from endpick.extproc.stream import SessionCounters
from endpick.flow_control.states import Outcome
from endpick.serve.admin_limits import AdminCounters
from endpick.serve.bodies.outcomes import Outcome as BodyOutcome
from endpick.serve.limit_log import ADMIN, FLOW_CONTROL, LARGE_BODIES, LIMITS, SESSION, TRANSPORT, LimitLog
from endpick.transport.limits import TransportCounters
from unit.builtin.all_limits import all_limits

ROOT = Path(__file__).parents[3]
COUNTERS = {TRANSPORT: TransportCounters, ADMIN: AdminCounters, SESSION: SessionCounters, "endpick_health_events_total": TransportCounters}
_OUTCOMES = {FLOW_CONTROL: set(Outcome), LARGE_BODIES: set(BodyOutcome)}
TABLE = (ROOT / "docs/reference/limits.md").read_text()


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.flag}/{limit.event}")
def test_each_limit_is_a_documented_setting_with_a_metric(limit):
    options = {name: option for option in command.params for name in option.opts}
    known = _OUTCOMES.get(limit.metric) or (COUNTERS[limit.metric]().snapshot() if limit.event else ())
    assert not limit.event or limit.event in known
    (row,) = [line for line in TABLE.splitlines() if line.startswith(f"| `{limit.flag}`")]
    assert limit.metric in row
    assert limit.event in row
    assert not limit.here or limit.told in row
    if limit.metric == FLOW_CONTROL:
        assert f"| `{limit.flag.removeprefix('flowControl.')}` |" in (ROOT / "docs/reference/configuration.md").read_text()
    elif limit.flag:
        default = re.search(r"\| `" + limit.flag + r"` \| [^|]*\| ([^|]*)\|", (ROOT / "docs/reference/cli.md").read_text())
        assert default is not None
        assert row.split("|")[2].strip() == (default[1].strip() or "none"), "the default, as the command line shows it"
        assert options[limit.flag].help


@pytest.mark.parametrize("limit", [limit for limit in LIMITS if limit.here], ids=lambda limit: f"{limit.flag}/{limit.event}")
def test_a_limit_that_acts_is_told_once_in_a_while_with_what_to_change(limit, caplog):
    count, now = [0], [0.0]
    log = LimitLog({limit.metric: lambda: {limit.event: count[0]}}, lambda: now[0])
    log.look()
    assert caplog.records == []
    for _ in range(3):
        count[0] += 2
        log.look()
    now[0] = 31.0
    log.look()
    assert [(record.getMessage(), record.times) for record in caplog.records] == [(limit.told, 2), (limit.told, 4)]
    assert limit.flag in limit.told or limit.flag == "--max-memory"


_LIMITING = re.compile("max|most|limit|timeout|budget|queue|reserved|share|memory|faults|cool", re.IGNORECASE)
_NO_LIMITS = {
    "--discovery-timeout": "ends the start",
    "--drain-timeout": "how long, not how much",
    "--finish-timeout": "how long, not how much",
    "--metrics-idle-timeout": "closes what nobody uses",
    "--grpc-max-connection-age": "asks a gateway to come again",
    "--grpc-max-connection-age-grace": "of the same",
    "--grpc-max-send-msg-size": "has no effect",
    "--max-request-body-size": "another name",
}


def test_each_option_that_limits_has_a_row():
    limiting = {option.opts[0] for option in command.params if _LIMITING.search(option.opts[0])}
    assert limiting - {limit.flag for limit in LIMITS} <= _NO_LIMITS.keys(), "add it to LIMITS, or say here why it limits nothing"


_CONSTANT = re.compile(r"^(_?(?:MAX|MOST)(?:_\w+)?)(?:: \S+)? = [\d(]", re.MULTILINE)
_NOT_OF_INPUT = {
    "MAX_TOKEN_ID": "what a token id can be",
    "_MOST": "what is believed of a film",
    "_MOST_MS": "what is believed of a prediction",
    "_MOST_MILLISECONDS": "what an order can be computed with",
    "_MOST_HALF_LIVES": "what floats can hold",
    "_MOST_DIGITS": "longer numbers are read another way",
    "_MOST_JUMPS": "a name of DNS with more has a circle, and makes no sense",
    "_MOST_SHOWN": "series on the metrics page",
    "_MOST_NAMES": "of LoRA adapters that are looked at",
    "_MOST_PEM_BYTES": "a longer file is no certificate, and the old one stays in use",
    "_MOST_TOKEN_BYTES": "no server takes a header of so many",
}
_PARAMETER = re.compile(r"^(max|most)[A-Z]|[tT]imeout$")
_NOT_LIMITING = {
    *("maxBusyScore", "maxNumOfEndpoints", "maxValue", "maxCeiling", "maxTTFTPenaltyMs"),  # of what is chosen
    *("maxConcurrency", "maxTokenConcurrency", "maxEstimatedOutputTokens", "maxPerReplica"),  # of what endpoints are taken to hold
    *("maxPrefixTokensToMatch", "maxPrefixBlocksToMatch"),  # what lies behind is not looked at
    *("maxFrames", "maxVideoTokens"),  # what the model makes of a film
    *("maxDecodeTokenSamplesForPrediction", "requestTimeout"),  # without effect, as in llm-d
}
_IN_PART = TABLE.partition("## What is looked at in part")[2]
_OF_PLUGINS = [line for line in TABLE.partition("## Of plugins")[2].removesuffix(_IN_PART).splitlines() if line.startswith("| ")]
_ROWS = [tuple(cell.strip() for cell in line.strip("|").split(" | ")) for line in _OF_PLUGINS[1:]]
_COUNTED_ELSEWHERE = {
    "`maxContainers`",
    "`maxValues`",
    "`maxPrompts`",
    "`maxGrpcConnections`",
    "1 MiB (`MOST_BYTES`), 50 levels, no aliases",
}


@pytest.mark.parametrize("limit", all_limits(), ids=lambda limit: limit.name)
def test_each_limit_that_a_plugin_counts_has_a_row_with_its_label_and_its_line(limit):
    assert limit.name in limit.told, "the line names what to change, or what is fixed"
    assert (f"`{limit.name}`", f'`limit="{limit.name}"`', limit.told) in {(row[1], row[3], row[4]) for row in _ROWS}


def test_each_row_of_plugins_is_of_a_limit_that_is_counted():
    assert {len(row) for row in _ROWS} == {5}
    assert all(all(row) for row in _ROWS)
    counted = {(f"`{limit.name}`", limit.told) for limit in all_limits()}
    assert {row[1] for row in _ROWS if (row[1], row[4]) not in counted} == _COUNTED_ELSEWHERE


@pytest.mark.parametrize("file", sorted((ROOT / "builtin_plugins").rglob("*.py")), ids=lambda file: file.stem)
def test_each_constant_that_limits_has_a_row(file):
    named = set(_CONSTANT.findall(file.read_text())) - _NOT_OF_INPUT.keys()
    assert {name for name in named if f"`{name}`" not in _IN_PART and not any(f"`{name}`" in row[1] + row[2] for row in _ROWS)} == set(), (
        "name it in docs/reference/limits.md"
    )


@pytest.mark.parametrize("file", sorted((ROOT / "schemas/plugins").glob("*.json")), ids=lambda file: file.stem)
def test_each_parameter_that_limits_has_a_row(file):
    named = {name for name in _properties(json.loads(file.read_text())) if _PARAMETER.search(name)} - _NOT_LIMITING
    assert {name for name in named if f"`{name}`" not in {row[1] for row in _ROWS}} == set(), "name it in docs/reference/limits.md"


def _properties(schema: object) -> Iterator[str]:
    """Names of parameters, wherever they stand."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for inner in schema.values():
            yield from _properties(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _properties(inner)
