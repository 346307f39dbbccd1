"""The table of limits: each has a setting, a metric and a line of the log; those that only count are told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from endpick.cli.serve import command
from endpick.extproc.stream import SessionCounters
from endpick.serve.admin_http import AdminCounters
from endpick.serve.limit_log import ADMIN, LIMITS, SESSION, TRANSPORT, LimitLog
from endpick.transport.limits import TransportCounters

ROOT = Path(__file__).parents[3]
COUNTERS = {TRANSPORT: TransportCounters, ADMIN: AdminCounters, SESSION: SessionCounters, "endpick_health_events_total": TransportCounters}
TABLE = (ROOT / "docs/reference/limits.md").read_text()


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: f"{limit.flag}/{limit.event}")
def test_each_limit_is_a_documented_setting_with_a_metric(limit):
    options = {name: option for option in command.params for name in option.opts}
    assert not limit.event or limit.event in COUNTERS[limit.metric]().snapshot()
    (row,) = [line for line in TABLE.splitlines() if line.startswith(f"| `{limit.flag}` |" if limit.flag else "| none |")]
    assert limit.metric in row
    assert limit.event in row
    if limit.flag:
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
