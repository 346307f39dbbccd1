"""Keys that one instance writes beside another that produces them."""

from __future__ import annotations

from endpick.api import PluginContext
from endpick.config import load_config
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan
from endpick.serve.deployment import build_plan, compile_collection


def planned(*plugins: str, more: str = "") -> Plan:
    entries = "\n".join(f"- {{type: {plugin}}}" for plugin in plugins)
    text = f"apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{entries}\n{more}\n"
    outcome = make_plan(load_config(text=text, name="config.yaml"), discover())
    assert outcome.plan is not None, outcome.diagnostics
    return outcome.plan


def needed(plan: Plan) -> list[frozenset[str]]:
    built = build_plan(plan, lambda _: PluginContext())
    assert isinstance(built, dict)
    return [binding.needed for binding in compile_collection(plan, built).bindings]


def test_readers_get_a_key_from_both_producers() -> None:
    plan = planned("endpoint-load-observer", "queue-scorer", "kv-cache-utilization-scorer")

    givers = {one.producer for one in plan.graph.subscriptions if one.key == "waiting-queue-size"}
    assert givers == {"endpoint-load-observer", "core-metrics-extractor"}
    assert needed(plan) == [frozenset({"waiting-queue-size", "kv-cache-usage"})]
    assert needed(planned("endpoint-load-observer", "lora-affinity-scorer"))[0] >= {"lora-adapters"}


def test_answers_alone_will_do_where_no_metrics_are_collected() -> None:
    plan = planned("endpoint-load-observer", "queue-scorer", more="dataLayer: {injectDefaults: false}\nflowControl: {}")

    assert plan.sources == ()
    assert {one.producer for one in plan.graph.subscriptions if one.consumer == "queue-scorer"} == {"endpoint-load-observer"}
