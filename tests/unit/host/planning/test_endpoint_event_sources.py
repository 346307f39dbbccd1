"""What may be bound to `endpoint-notification-source`, with the plugins that are installed."""

from __future__ import annotations

import pytest

from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan

CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- type: endpoint-notification-source
- type: topology-extractor
- type: active-request-scorer
- type: inflight-load-producer
- type: precise-prefix-cache-scorer
- type: precise-prefix-cache-producer
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: topology-extractor}, {pluginRef: NAMED}]
"""


def planned(named: str):
    return make_plan(load_config(text=CONFIG.replace("NAMED", named), name="config.yaml"), discover())


@pytest.mark.parametrize("named", ["inflight-load-producer", "precise-prefix-cache-scorer", "precise-prefix-cache-producer"])
def test_instance_with_endpoint_state_may_be_named(named):
    outcome = planned(named)
    assert outcome.plan is not None
    assert [one for one in outcome.diagnostics if one.span.line == 13 or (named in one.message and one.code.name == "W0301")] == []
    (source,) = (source for source in outcome.plan.sources if source.instance == "endpoint-notification-source")
    assert source.collectors == ("topology-extractor",)


def test_instance_without_endpoint_state_gets_a_warning():
    outcome = planned("active-request-scorer")
    assert outcome.plan is not None
    assert [(one.code.name, one.message) for one in outcome.diagnostics if one.span.line == 13] == [
        ("W0502", "'active-request-scorer' is no data collector: 'endpoint-notification-source' has nothing to tell it")
    ]


def test_a_collector_of_pages_cannot_read_events():
    text = CONFIG.replace("NAMED", "metrics").replace(
        "- type: topology", "- {type: core-metrics-extractor, name: metrics}\n- type: topology"
    )
    outcome = make_plan(load_config(text=text, name="config.yaml"), discover())
    assert outcome.plan is None
    assert "E0606" in {one.code.name for one in outcome.diagnostics}
