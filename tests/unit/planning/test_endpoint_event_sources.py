"""What may be bound to `endpoint-notification-source`, with the plugins that are installed."""

from __future__ import annotations

from endpick.config import load_config
from endpick.planning.planner import make_plan
from endpick.plugins.discovery import discover

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: endpoint-notification-source
- type: topology-extractor
- type: active-request-scorer
- type: inflight-load-producer
dataLayer:
  sources:
  - pluginRef: endpoint-notification-source
    extractors: [{pluginRef: topology-extractor}, {pluginRef: NAMED}]
"""


def planned(named: str):
    return make_plan(load_config(text=CONFIG.replace("NAMED", named), name="config.yaml"), discover())


def test_an_instance_that_hears_of_endpoints_anyway_may_be_named_and_is_told_so():
    outcome = planned("inflight-load-producer")
    assert outcome.plan is not None
    assert [(one.code.name, one.message) for one in outcome.diagnostics if one.span.line == 11] == [
        ("W0502", "'inflight-load-producer' is no data collector: 'endpoint-notification-source' has nothing to tell it")
    ]
    (source,) = (source for source in outcome.plan.sources if source.instance == "endpoint-notification-source")
    assert source.collectors == ("topology-extractor",)


def test_a_collector_of_pages_cannot_read_events():
    text = CONFIG.replace("NAMED", "metrics").replace(
        "- type: topology", "- {type: core-metrics-extractor, name: metrics}\n- type: topology"
    )
    outcome = make_plan(load_config(text=text, name="config.yaml"), discover())
    assert outcome.plan is None
    assert "E0606" in {one.code.name for one in outcome.diagnostics}
