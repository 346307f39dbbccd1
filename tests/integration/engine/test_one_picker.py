"""The same configuration decides alike in `serve`, `try`, `simulate`, `replay` and the kit's host: there is one picker."""

from __future__ import annotations

import asyncio

import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.testing.host import Host, arrange, read_fixture
from integration.engine.drivers import Answer, Case, hosted, replayed, served, simulated, tried

DRIVERS = {
    "serve": lambda case, folder: asyncio.run(served(case, folder)),
    "try": tried,
    "host": hosted,
    "simulate": simulated,
    "replay": replayed,
}
PROFILE = "schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]\n"
OBJECTIVES = "objectives: [{name: low, priority: -1}]\n"
LOW = {"x-llm-d-inference-objective": "low"}
GATED = (
    "featureGates: [flowControl]\nplugins:\n- {type: queue-scorer}\n- {type: utilization-detector}\n"
    + PROFILE
    + "flowControl: {saturationDetector: {pluginRef: utilization-detector}, defaultRequestTTL: 1s}\n"
    + OBJECTIVES
)
SHEDDING = (
    "plugins:\n- {type: queue-scorer}\n- {type: utilization-detector}\n"
    + PROFILE
    + "saturationDetector: {pluginRef: utilization-detector}\n"
    + OBJECTIVES
)
ADMITTING = "plugins:\n- {type: queue-scorer}\n- {type: probabilistic-admitter}\n" + PROFILE + OBJECTIVES
PINNING = "plugins:\n- {type: queue-scorer}\n- {type: endpoint-pin-screener}\n" + PROFILE
QUEUES = "plugins:\n- {type: queue-scorer}\n" + PROFILE
ZONED = (
    "plugins:\n- {type: queue-scorer}\n- {type: by-label, name: zone, parameters: {label: zone, validValues: [c]}}\n"
    "schedulingProfiles: [{name: default, plugins: [{pluginRef: zone}, {pluginRef: queue-scorer}]}]\n"
)
REWRITING = QUEUES + "models: [{name: public, targets: [{model: m}]}]\n"
SATURATED, OPEN = (9, 8, 9), (3, 0, 2)
CASES = {
    "the least queue": Case(QUEUES, OPEN, "e1"),
    "flow control, open": Case(GATED, OPEN, "e1", LOW),
    "flow control, saturated": Case(GATED, SATURATED, "request timed out in queue", LOW),
    "shedding, open": Case(SHEDDING, OPEN, "e1", LOW),
    "shedding, saturated": Case(SHEDDING, SATURATED, "system saturated, sheddable request dropped", LOW),
    "saturated, but not sheddable": Case(SHEDDING, SATURATED, "e1"),
    "an admitter refuses": Case(ADMITTING, SATURATED, "system saturated, sheddable request dropped", LOW),
    "a candidate filter": Case(PINNING, OPEN, "e2", {"x-llm-d-pin-host-port": "127.0.0.4:PORT"}),
    "health": Case(QUEUES, OPEN, "e2", failing="e1"),
    "a rewritten model": Case(REWRITING, OPEN, "e1", model="public"),
    "a reload": Case(QUEUES, OPEN, "e2", reloaded=ZONED),
}
SKIPPED = {
    ("try", "health"): "one decision has no earlier answers",
    ("replay", "a candidate filter"): "records keep no headers",
}


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("name", CASES)
def test_every_picker_decides_alike(tmp_path, driver, name):
    if (driver, name) in SKIPPED:
        pytest.skip(SKIPPED[driver, name])
    case = CASES[name]

    assert DRIVERS[driver](case, tmp_path) == Answer(case.expected, case.target_model)


CLUSTER = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {type: kubernetes-discovery, parameters: {poolName: pool, poolNamespace: default}}
- {type: queue-scorer}
schedulingProfiles: [{name: default, plugins: [{pluginRef: queue-scorer}]}]
dataLayer: {discovery: {endpoints: {pluginRef: kubernetes-discovery}}}
"""


@pytest.mark.parametrize("driver", ["try", "replay", "host", "simulate"])
def test_tools_need_no_cluster(tmp_path, monkeypatch, driver):
    monkeypatch.setattr(Case, "text", lambda *_args, **_keywords: CLUSTER)

    assert DRIVERS[driver](Case("", OPEN, "e1"), tmp_path) == Answer("e1", "m")


def test_a_wait_without_a_time_limit_is_shown(tmp_path):
    case = Case(GATED.replace("defaultRequestTTL: 1s", "defaultRequestTTL: 0s"), SATURATED, "")
    with Host(case.plan()) as host:
        arrange(host, read_fixture(case.pool(8000)))
        explanation = host.send(case.body)

    assert (explanation.waits, explanation.destinations, explanation.status) == (True, (), None)
    (tmp_path / "config.yaml").write_text(case.text())
    (tmp_path / "pool.json").write_bytes(case.pool(8000))
    (tmp_path / "request.json").write_bytes(case.body)
    files = ["--request", str(tmp_path / "request.json"), "--endpoints", str(tmp_path / "pool.json")]
    shown = CliRunner().invoke(main, ["try", str(tmp_path / "config.yaml"), *files])

    assert shown.stdout.startswith("the request waits in flow control, and nothing ends its wait")
