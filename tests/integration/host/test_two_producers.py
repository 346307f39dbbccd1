"""Keys with several producers."""

from __future__ import annotations

import pytest

from endpick.api import DataKey, DataProducer, PluginContext, Scope, Scorer
from endpick.api.data import Subscriptions
from endpick.config import load_config
from endpick.diagnostics import Code
from endpick.engine.building import build_plan, compile_collection
from endpick.host.discovery import discover
from endpick.host.planning.plan import Plan
from endpick.host.planning.planner import make_plan
from endpick.host.planning.subscriptions import Participant, resolve_subscriptions


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


APPROX = "approx-prefix-cache-producer"
SCORER = "prefix-cache-scorer"
NAMED = "prefix-cache-scorer, name: second, parameters: {prefixMatchInfoProducerName: cpu}"


@pytest.mark.parametrize(
    ("producers", "read"),
    [
        ((f"{APPROX}, name: gpu", f"{APPROX}, name: cpu"), APPROX),
        ((APPROX, f"{APPROX}, name: cpu"), APPROX),
        ((f"{APPROX}, name: cpu", "precise-prefix-cache-producer", APPROX), APPROX),
        ((f"{APPROX}, name: cpu",), "cpu"),
    ],
)
def test_a_reader_that_names_no_producer_reads_the_default(producers: tuple[str, ...], read: str) -> None:
    entries = "\n".join(f"- {{type: {plugin}}}" for plugin in (*producers, SCORER, NAMED))
    text = f"apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins:\n{entries}\n"
    outcome = make_plan(load_config(text=text, name="config.yaml"), discover())
    assert outcome.plan is not None, outcome.diagnostics

    matches = {one.consumer: one.producer for one in outcome.plan.graph.subscriptions if one.key.startswith("prefix-match-blocks")}
    notes = [one.span.line for one in outcome.diagnostics if one.code is Code.N0602 and one.span]
    order = outcome.plan.graph.order
    assert (matches[SCORER], matches["second"]) == (read, "cpu")
    assert notes == ([] if len(producers) == 1 else [4 + len(producers)])
    assert max(order.index(name) for name in order if "prefix-cache-producer" in name or name in ("cpu", "gpu")) == order.index(read)


def test_the_value_of_the_chosen_producer_counts() -> None:
    """Producers run in the graph's order, and the last value of a key counts."""
    key = DataKey("acme/match", float, Scope.CANDIDATE, default_producer="main")
    producers = [Participant(name, "any", (DataProducer,), Subscriptions(produces=(key,))) for name in ("zeta", "main", "alpha")]
    reader = Participant("reader", "any", (Scorer,), Subscriptions(consumes=(key,)))

    resolution = resolve_subscriptions([*producers, reader])

    assert resolution.graph is not None
    assert resolution.graph.order == ("alpha", "zeta", "main")
    assert [one.producer for one in resolution.graph.subscriptions] == ["main"]
    (note,) = resolution.notes
    assert (note.code, note.notes) == (Code.N0602, ("others are alpha, zeta",))
