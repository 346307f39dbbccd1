"""What `endpick why` makes of real decisions, and that its flips hold when they are applied."""

from __future__ import annotations

import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, MetricsPage, Scorer
from endpick.api.keys import ENDPOINT_HEALTH, HealthState
from endpick.engine.reasons import Reason, reason_of
from endpick.requests.document import DecisionOutput
from endpick.requests.record import document_of
from endpick.testing.host import Explanation, host_of

PREFIX = "A system prompt that fills several blocks of the prefix cache. " * 40
CONFIG = """\
apiVersion: llm-d.ai/v1
kind: EndpointPickerConfig
plugins:
- {{type: label-selector-filter, name: big, parameters: {{matchLabels: {{size: big}}}}}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
{defined}schedulingProfiles:
- name: default
  plugins:
  {filter}
  - {{pluginRef: queue-scorer, weight: {queue}}}
  - {{pluginRef: kv-cache-utilization-scorer, weight: {cache}}}
  - {{pluginRef: prefix-cache-scorer, weight: {prefix}}}
  {named}
"""
NAMES = {"queue-scorer": "queue", "kv-cache-utilization-scorer": "cache", "prefix-cache-scorer": "prefix"}


class Broken(Scorer):
    """Fails."""

    def score(self, request, endpoints, state):
        raise LookupError("no model")


def config(*, only_big: bool = False, broken: bool = False, **weights: float) -> str:
    return CONFIG.format(
        **{"queue": 1, "cache": 1, "prefix": 3} | weights,
        filter="- {pluginRef: big}" if only_big else "",
        defined="- {type: acme.broken}\n" if broken else "",
        named="- {pluginRef: acme.broken, weight: 9}" if broken else "",
    )


def decided(text: str, situation: str) -> tuple[Explanation, Reason]:
    """One decision in a situation of two endpoints."""
    with host_of(text, {"acme.broken": Broken}) as host:
        queues, usages = {"load": ([0, 9], [0.9, 0.2]), "equal": ([4, 4], [0.5, 0.5])}.get(situation, ([9, 0], [0.6, 0.2]))
        labels = [{"size": "big"}, {"size": "small"}]
        if situation == "prefix":
            host.put({WAITING_QUEUE_SIZE: [0, 9], KV_CACHE_USAGE: [0.1, 0.9]}, labels)
            host.ask(PREFIX)
            host.table.write(WAITING_QUEUE_SIZE, host.table.find("default/e0"), 9.0)
            host.table.write(WAITING_QUEUE_SIZE, host.table.find("default/e1"), 0.0)
        else:
            host.put({WAITING_QUEUE_SIZE: queues, KV_CACHE_USAGE: usages}, labels)
        explanation = host.ask(PREFIX)
        decision = DecisionOutput.model_validate(document_of(explanation.record))
        return explanation, reason_of(decision, decision.runs[0])


@pytest.mark.parametrize(
    ("text", "situation", "decisive", "sentence"),
    [
        (config(), "prefix", "prefix-cache-scorer", "prefix-cache-scorer decided: it gave "),
        (config(), "load", "queue-scorer", "queue-scorer decided: it gave "),
        (config(only_big=True), "other", "big", "filter big left "),
        (config(broken=True), "load", "queue-scorer", "queue-scorer decided: it gave "),
        (config(), "equal", "", "max-score-picker chose "),
    ],
)
def test_why_names_what_decided(text, situation, decisive, sentence):
    explanation, reason = decided(text, situation)
    assert (reason.decisive, reason.sentence.startswith(sentence)) == (decisive, True), reason
    broken = "acme.broken" in text
    assert [fault.instance for fault in explanation.faults] == ["acme.broken"] * broken
    assert reason.sentence.endswith("; acme.broken failed and counted for nothing") == broken
    if situation == "equal":
        assert reason.sentence.endswith("by chance among 2 endpoints with equal totals")


@pytest.mark.parametrize("situation", ["prefix", "load"])
def test_each_stated_flip_flips_the_pick_when_applied(situation):
    explanation, reason = decided(config(), situation)
    flips = [flip for flip in reason.flips if flip.to is not None]
    assert flips
    for flip in flips:
        changed, _ = decided(config(**{NAMES[flip.scorer]: flip.to}), situation)
        assert changed.runs[0].picked == (flip.winner,) != explanation.runs[0].picked


def test_an_ejection_that_leaves_one_is_named(host):
    picker = host(config())
    picker.put({WAITING_QUEUE_SIZE: [0, 9], KV_CACHE_USAGE: [0.1, 0.9]})
    monitor = picker.instances["endpoint-health"].plugin
    sleeping = picker.table.find("default/e0")
    monitor.collect(MetricsPage(b'vllm:engine_sleep_state{sleep_state="awake"} 0\n'), picker.table.writer(None, sleeping))
    decision = DecisionOutput.model_validate(document_of(picker.ask().record))
    assert reason_of(decision, decision.runs[0]).sentence == "endpoint-health left default/e1 only; it removed default/e0 before scheduling"
    assert decision.endpoints[0].values[ENDPOINT_HEALTH.name]["state"] == HealthState.EJECTED
