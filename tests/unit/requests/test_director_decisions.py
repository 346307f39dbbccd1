"""Decisions: destinations, headers, metadata and refusals."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from endpick.api import KV_CACHE_USAGE, WAITING_QUEUE_SIZE, Rejection
from endpick.api.keys import LORA_ADAPTERS, LoraAdapters
from endpick.host.kinds import OnFault
from endpick.requests.model import BodyMode, BodyModes, CloseCause, Refused
from endpick_builtin.producers.prefix_cache import ApproxPrefixCacheProducer
from endpick_builtin.scorers.affinity import LoraAffinityScorer, PrefixCacheScorer
from endpick_builtin.scorers.load import KVCacheUtilizationScorer, QueueScorer
from unit.requests.stage import CHAT, Stage, before_request_of, observer_of, producer_of
from unit.scheduling.workbench import filter_of, instance, picker_of, pool, scorer_of


def adapters(*running):
    return LoraAdapters(frozenset(running), frozenset(), 2)


def llm_d_default_and_lora():
    return [(instance(plugin), 1.0) for plugin in (KVCacheUtilizationScorer, QueueScorer, LoraAffinityScorer)]


@pytest.mark.parametrize(
    ("model", "queue", "usage", "loaded", "destination"),
    [
        ("my-model", [3, 0, 10], [0.2, 0.1, 0.2], [adapters()] * 3, "10.0.0.2:8000"),
        (
            "sql-lora",
            [0, 0, 10],
            [0.2, 0.1, 0.2],
            [adapters("foo", "bar"), adapters("foo", "sql-lora"), adapters("foo", "bar")],
            "10.0.0.2:8000",
        ),
        (
            "sql-lora",
            [10, 10, 10],
            [0.2, 0.4, 0.3],
            [adapters("foo", "bar"), adapters("foo", "sql-lora"), adapters("foo")],
            "10.0.0.2:8000",
        ),
        ("critical", [0, 0, 10], [0.2, 0.2, 0.8], [adapters("foo", "bar"), adapters("foo", "critical"), adapters("foo")], "10.0.0.2:8000"),
    ],
)
def test_destinations_equal_those_of_llm_d(model, queue, usage, loaded, destination):
    table = pool({WAITING_QUEUE_SIZE: [float(n) for n in queue], KV_CACHE_USAGE: usage, LORA_ADAPTERS: loaded})
    stage = Stage(table=table, scorers=llm_d_default_and_lora())
    assert stage.route({**CHAT, "model": model}).destinations == (destination,)
    assert stage.telemetry.decided == [(model, model, "default-flow", 0, len(json.dumps({**CHAT, "model": model})))]
    assert stage.telemetry.scheduled == [(destination, model)]


def test_all_picks_are_destinations_best_first():
    stage = Stage(picker=picker_of(lambda scored: scored.take([2, 0])))
    assert stage.route().destinations == ("10.0.0.3:8000", "10.0.0.1:8000")


def test_default_profile_follows_a_conversation():
    scorers = [(instance(PrefixCacheScorer), 3.0)]
    producer = instance(ApproxPrefixCacheProducer)
    stage = Stage(scorers=scorers, producers=[producer], pre_request=[producer])
    turn = {"model": "m", "messages": [{"role": "user", "content": "x" * 1000}]}
    [first] = stage.route(turn).destinations
    longer = {"model": "m", "messages": [*turn["messages"], {"role": "assistant", "content": "y" * 900}]}
    assert all(stage.route(longer).destinations == (first,) for _ in range(20))


def test_filters_without_survivors_are_429():
    stage = Stage(filters=[filter_of(lambda endpoints: endpoints.take([]))])
    refused = stage.refuse()
    assert (refused.status, refused.code, refused.reason) == (429, "ResourceExhausted", "rejected-saturated")
    assert refused.message.startswith("failed to find target endpoint: failed to run scheduler profile 'default'")
    assert stage.telemetry.scheduled == [(None, "m")]
    assert stage.telemetry.refused == [("m", "ResourceExhausted")]


def test_scheduling_fault_is_500():
    refused = Stage(filters=[filter_of(lambda endpoints: 1 / 0)]).refuse()
    assert (refused.status, refused.code, refused.reason) == (500, "Internal", None)


def test_producer_fault_follows_on_fault():
    def fail(request, endpoints, state):
        raise RuntimeError("tokenizer down")

    stage = Stage(producers=[producer_of(fail, "bad")])
    assert stage.route()
    assert stage.telemetry.faults == [("bad", "DataProducer", "RuntimeError: tokenizer down")]
    assert Stage(producers=[producer_of(fail, "bad", OnFault.REFUSE)]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")


def test_pre_request_plugins_may_add_headers():
    told = []

    def note(name):
        def before(request, result, headers):
            told.append((name, result.destinations))
            headers.set(f"X-{name}", result.primary)

        return before_request_of(before, name)

    routed = Stage(pre_request=[note("a"), note("b")], picker=picker_of(lambda scored: scored.take([1]))).route(x_request_id="r-7")
    assert told == [("a", ("10.0.0.2:8000",)), ("b", ("10.0.0.2:8000",))]
    assert routed.set_headers == {"x-a": "default", "x-b": "default"}


@pytest.mark.parametrize("name", ["Content-Length", "x-gateway-destination-endpoint", "x-llm-d-inference-fairness-id", ":path"])
def test_setting_an_owned_header_is_a_fault(name):
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: headers.set(name, "x"), "bold")])
    assert name.lower() not in stage.route().set_headers
    assert [fault[0] for fault in stage.telemetry.faults] == ["bold"]


@pytest.mark.parametrize(("name", "value"), [("x-number", 1), ("x-bytes", b"1"), (1, "x")])
def test_setting_a_header_that_is_no_text_is_a_fault(name, value):
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: headers.set(name, value), "odd")])
    assert set(stage.route().set_headers) == {"x-request-id"}
    assert [fault[0] for fault in stage.telemetry.faults] == ["odd"]


def test_all_pre_request_plugins_run_after_a_rejection():
    told = []
    stage = Stage(
        pre_request=[
            before_request_of(lambda request, result, headers: Rejection("too late", 503, "late"), "no"),
            before_request_of(lambda request, result, headers: told.append("b"), "b"),
        ]
    )
    assert stage.refuse() == Refused(503, "ServiceUnavailable", "too late", "late")
    assert told == ["b"]
    assert stage.telemetry.decided == []


def test_request_without_body_meets_no_plugin():
    asked = []
    scorer = scorer_of(lambda endpoints: asked.append(1) or np.ones(len(endpoints)))
    stage = Stage(scorers=[(scorer, 1.0)], random=random.Random(3))
    seen = {stage.route(None, path="/v1/models").destinations for _ in range(60)}
    assert seen == {("10.0.0.1:8000",), ("10.0.0.2:8000",), ("10.0.0.3:8000",)}
    assert asked == []
    routed = stage.route(None)
    routed.exchange.finish(CloseCause.END)
    assert not routed.exchange.wants_chunks
    assert stage.telemetry.decided == stage.telemetry.ended == []


def test_unsent_body_is_scheduled_without_a_prompt():
    table = pool({WAITING_QUEUE_SIZE: [5.0, 0.0, 9.0]})
    stage = Stage(table=table, scorers=[(instance(QueueScorer), 1.0)])
    delivery = BodyModes(request_body=BodyMode.NONE)
    assert {stage.route(None, body_modes=delivery).destinations for _ in range(20)} == {("10.0.0.2:8000",)}


@pytest.mark.parametrize("preference", ["if-available", "respond-async, If-Available"])
def test_prefer_if_available_is_412_without_a_cached_prefix(preference):
    producer = instance(ApproxPrefixCacheProducer)
    stage = Stage(scorers=[(instance(PrefixCacheScorer), 1.0)], producers=[producer], pre_request=[producer])
    refused = stage.refuse(prefer=preference)
    assert (refused.status, refused.code) == (412, "PreconditionFailed")
    stage.route()
    assert stage.route(prefer=preference)
    assert Stage().refuse(prefer=preference).status == 412
    assert Stage().route(prefer="respond-async")


def test_request_finishes_on_its_own_pipeline():
    ended = []
    stage = Stage(observers=[])
    before = Stage(observers=[observer_of("old", response_ended=lambda request, end, state: ended.append("old"))])
    stage.director.switch(before.pipeline)
    routed = stage.route()
    stage.director.switch(Stage(observers=[observer_of("new", response_ended=lambda request, end, state: ended.append("new"))]).pipeline)
    routed.exchange.finish(CloseCause.END)
    stage.route().exchange.finish(CloseCause.END)
    assert ended == ["old", "new"]


def test_pre_request_plugins_may_set_metadata():
    def tell(request, result, headers):
        headers.set_metadata("acme.example", "zone", "b")
        headers.set_metadata("acme.example", "cost", 0.5)
        headers.set_metadata("acme.example", "cached", True)

    assert Stage(pre_request=[before_request_of(tell)]).route().dynamic_metadata == {
        "acme.example": {"zone": "b", "cost": 0.5, "cached": True}
    }


@pytest.mark.parametrize(("namespace", "key", "value"), [(1, "x", "y"), ("x", b"y", "z"), ("x", "y", None), ("x", "y", ["z"])])
def test_setting_invalid_metadata_is_a_fault(namespace, key, value):
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: headers.set_metadata(namespace, key, value), "teller")])

    assert stage.route().dynamic_metadata == {}
    assert [(name, problem.partition(":")[0]) for name, _, problem in stage.telemetry.faults] == [("teller", "TypeError")]


def test_addresses_of_routed_requests_are_recorded():
    stage = Stage(table=pool({WAITING_QUEUE_SIZE: [3.0, 0.0, 10.0]}), scorers=[(instance(QueueScorer), 1.0)])

    stage.refuse({"messages": []})
    assert stage.table.sent == set()

    (destination,) = stage.route().destinations
    assert stage.table.sent == {destination}

    (anywhere,) = stage.route(body=None, path="/v1/models").destinations
    assert stage.table.sent == {destination, anywhere}
