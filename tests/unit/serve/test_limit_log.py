"""The table of limits: each has a setting, a metric and a line of the log; those that only count are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from endpick.cli.serve import command
from endpick.extproc.stream import SessionCounters
from endpick.flow_control.states import Outcome
from endpick.serve.admin_http import AdminCounters
from endpick.serve.limit_log import ADMIN, FLOW_CONTROL, LIMITS, SESSION, TRANSPORT, LimitLog
from endpick.transport.limits import TransportCounters

ROOT = Path(__file__).parents[3]
COUNTERS = {TRANSPORT: TransportCounters, ADMIN: AdminCounters, SESSION: SessionCounters, "endpick_health_events_total": TransportCounters}
TABLE = (ROOT / "docs/reference/limits.md").read_text()


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.flag}/{limit.event}")
def test_each_limit_is_a_documented_setting_with_a_metric(limit):
    options = {name: option for option in command.params for name in option.opts}
    known = set(Outcome) if limit.metric == FLOW_CONTROL else COUNTERS[limit.metric]().snapshot() if limit.event else ()
    assert not limit.event or limit.event in known
    (row,) = [line for line in TABLE.splitlines() if line.startswith(f"| `{limit.flag}`" if limit.flag else "| none |")]
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


_CONSTANT = re.compile(r"^(MAX_\w+|MOST_\w+)(?:: \S+)? = [\d(]", re.MULTILINE)
_NOT_OF_INPUT = {"MAX_TOKEN_ID": "what a token id can be"}
_PARAMETER = re.compile(r"alias=\"((?:max|most)\w+|\w*[tT]imeout)\"")
_NOT_LIMITING = {
    *("maxBusyScore", "maxNumOfEndpoints", "maxValue", "maxCeiling", "maxTTFTPenaltyMs"),  # of what is chosen
    *("maxConcurrency", "maxTokenConcurrency", "maxEstimatedOutputTokens", "maxPerReplica"),  # of what endpoints are taken to hold
    *("maxPrefixTokensToMatch", "maxPrefixBlocksToMatch"),  # what lies behind is not looked at
    *("maxDecodeTokenSamplesForPrediction", "requestTimeout"),  # without effect, as in llm-d
}


@pytest.mark.parametrize("file", sorted((ROOT / "builtin_plugins").rglob("*.py")), ids=lambda file: file.stem)
def test_each_limit_of_a_plugin_has_a_row(file):
    source = file.read_text()
    named = {*_CONSTANT.findall(source), *_PARAMETER.findall(source)} - _NOT_OF_INPUT.keys() - _NOT_LIMITING
    assert {name for name in named if f"`{name}`" not in TABLE} == set(), "name it in docs/reference/limits.md"
