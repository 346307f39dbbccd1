"""What the director decides: where a request goes, with which headers and body, and which requests are refused how."""

from __future__ import annotations

import json
import random
from uuid import UUID

import numpy as np
import pytest

from endpick.api import (
    KV_CACHE_USAGE,
    LORA_ADAPTERS,
    WAITING_QUEUE_SIZE,
    LoraAdapters,
    ParsedRequest,
    Rejection,
)
from endpick.datalayer.table import EndpointTable
from endpick.plugins.instance import OnFault
from endpick.requests.decision import CloseCause, Refused
from endpick.requests.director import DirectorSettings
from endpick.requests.incoming import BodyMode, Delivery
from endpick_builtin.parsers.openai import OpenAIParser
from endpick_builtin.parsers.passthrough import PassthroughParser
from endpick_builtin.producers.approx_prefix_cache import ApproxPrefixCacheProducer
from endpick_builtin.scorers.kv_cache_utilization import KVCacheUtilizationScorer
from endpick_builtin.scorers.lora_affinity import LoraAffinityScorer
from endpick_builtin.scorers.prefix_cache import PrefixCacheScorer
from endpick_builtin.scorers.queue import QueueScorer
from unit.requests.stage import CHAT, Stage, admitter_of, before_request_of, detector_of, observer_of, parser_of, producer_of, screener_of
from unit.scheduling.workbench import filter_of, instance, picker_of, pool, scorer_of

NO_CANDIDATES = Refused(
    503, "ServiceUnavailable", "failed to find endpoint candidates for serving the request", reason="rejected-no-endpoints"
)
SATURATED = Refused(429, "ResourceExhausted", "system saturated, sheddable request dropped", reason="rejected-saturated")
SHEDDABLE = DirectorSettings(objectives={"batch": -1, "urgent": 5})


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
def test_requests_go_where_llm_d_sends_them(model, queue, usage, loaded, destination):
    table = pool({WAITING_QUEUE_SIZE: [float(n) for n in queue], KV_CACHE_USAGE: usage, LORA_ADAPTERS: loaded})
    stage = Stage(table=table, scorers=llm_d_default_and_lora())
    assert stage.route({**CHAT, "model": model}).destinations == (destination,)
    assert stage.instruments.decided == [(model, model, "default-flow", 0, len(json.dumps({**CHAT, "model": model})))]
    assert stage.instruments.scheduled == [(destination, model)]


def test_all_picks_are_destinations_best_first():
    stage = Stage(picker=picker_of(lambda scored: scored.take([2, 0])))
    assert stage.route().destinations == ("10.0.0.3:8000", "10.0.0.1:8000")


def test_the_default_profile_follows_a_conversation():
    scorers = [(instance(PrefixCacheScorer), 3.0)]
    producer = instance(ApproxPrefixCacheProducer)
    stage = Stage(scorers=scorers, producers=[producer], pre_request=[producer])
    turn = {"model": "m", "messages": [{"role": "user", "content": "x" * 1000}]}
    [first] = stage.route(turn).destinations
    longer = {"model": "m", "messages": [*turn["messages"], {"role": "assistant", "content": "y" * 900}]}
    assert all(stage.route(longer).destinations == (first,) for _ in range(20))


def test_an_unchanged_body_is_not_sent_again_and_a_decision_is_no_coroutine():
    assert Stage().route().body is None


@pytest.mark.parametrize("header", ["x_llm_d_model_name_rewrite", "x_gateway_model_name_rewrite"])
def test_the_model_is_rewritten_in_place(header):
    seen = []
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: seen.append(request))])
    body = b'{ "model" : "a", "messages": [{"role":"user","content":"hi"}], "n": 12345678901234567890 }'
    routed = stage.route(body, **{header: "b"})
    assert routed.body == body.replace(b'"a"', b'"b"')
    assert [(request.incoming_model, request.model) for request in seen] == [("a", "b")]
    assert stage.instruments.decided[0][:2] == ("a", "b")


def test_a_rewrite_names_the_model_of_a_body_that_names_none():
    routed = Stage().route({"prompt": "x"}, path="/v1/completions", x_llm_d_model_name_rewrite="b")
    assert json.loads(routed.body) == {"model": "b", "prompt": "x"}


def test_a_body_nobody_reads_is_passed_on_with_any_model_or_none():
    stage = Stage(parsers=[instance(PassthroughParser)])
    assert stage.route(b"passthrough-parser").body is None
    assert stage.route(b"passthrough-parser", x_llm_d_model_name_rewrite="b").body is None
    assert [decided[:2] for decided in stage.instruments.decided] == [("", ""), ("", "b")]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"prompt": "hello world"}, "model not found in request body"),
        ({"model": "", "prompt": "hello world"}, "model not found in request body"),
        ({"model": "m"}, "invalid completions request: must have prompt field"),
    ],
)
def test_a_request_that_says_too_little_is_400(body, message):
    stage = Stage()
    assert stage.refuse(body, path="/v1/completions") == Refused(400, "BadRequest", message)
    assert [code for _, code in stage.instruments.refused] == ["BadRequest"]


def test_a_body_that_is_no_json_is_400():
    refused = Stage().refuse(b"no healthy upstream")
    assert (refused.status, refused.code) == (400, "BadRequest")
    assert refused.message.startswith("error unmarshaling request bodyMap: ")


@pytest.mark.parametrize(
    ("path", "headers", "parser"),
    [
        ("/v1/chat/completions", {}, "chat"),
        ("/v1/chat/completions?beta=true", {}, "chat"),
        ("/deep/v1/completions", {}, "completions"),
        ("", {"x_original_path": "/v1/chat/completions"}, "chat"),
        ("", {"x_forwarded_path": "/v1/chat/completions"}, "chat"),
        ("", {}, "completions"),
        ("/nothing/known", {}, "fallback"),
        ("/v1/badchat/completions", {}, "completions"),
        ("/v1/xcompletions", {}, "fallback"),
    ],
)
def test_the_longest_claimed_suffix_finds_the_parser(path, headers, parser):
    asked = []

    def parsing(name):
        def parse(path, headers, body):
            asked.append(name)
            return ParsedRequest(model="m")

        return parse

    claims = {"completions": ("/completions",), "chat": ("/chat/completions",), "fallback": (), "too-late": ("/chat/completions", "/late")}
    stage = Stage(parsers=[parser_of(name, suffixes, parse=parsing(name)) for name, suffixes in claims.items()])
    stage.route(b"{}", path=path, **headers)
    assert asked == [parser]


def test_a_path_nobody_reads_is_400():
    refused = Stage(parsers=[instance(OpenAIParser)]).refuse(CHAT, path="/v1/rerank")
    assert refused == Refused(400, "BadRequest", "no parser is configured for path '/v1/rerank'")


@pytest.mark.parametrize("parse", [lambda path, headers, body: 1 / 0, lambda path, headers, body: None], ids=["raises", "nothing"])
def test_a_parser_that_fails_is_500_without_details(parse):
    stage = Stage(parsers=[parser_of("broken", parse=parse)])
    assert stage.refuse() == Refused(500, "Internal", "plugin 'broken' failed")
    assert [(name, point) for name, point, _ in stage.instruments.faults] == [("broken", "RequestParsing")]


@pytest.mark.parametrize(
    ("subset", "allowed"),
    [
        (None, {"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"}),
        (("10.0.0.1:8000",), {"10.0.0.1:8000"}),
        (("10.0.0.1:8000", "10.0.0.3:8000"), {"10.0.0.1:8000", "10.0.0.3:8000"}),
        (("10.0.0.2",), {"10.0.0.2:8000"}),
    ],
)
def test_a_subset_hint_limits_the_candidates_with_and_without_a_body(subset, allowed):
    stage = Stage()
    assert {stage.route(subset=subset).destinations[0] for _ in range(60)} == allowed
    assert {stage.route(None, subset=subset).destinations[0] for _ in range(60)} == allowed


@pytest.mark.parametrize("subset", [(), ("192.168.1.99:8000",), ("10.0.0.1:9999",)])
def test_a_subset_hint_that_allows_nobody_is_503(subset):
    assert Stage().refuse(subset=subset) == NO_CANDIDATES
    assert Stage().refuse(None, subset=subset) == NO_CANDIDATES


def test_an_empty_pool_is_503():
    table = EndpointTable(clock=lambda: 0.0)
    assert Stage(table=table).refuse() == NO_CANDIDATES
    assert Stage(table=table).refuse(None) == NO_CANDIDATES


@pytest.mark.parametrize("header", ["x_llm_d_inference_objective", "x_gateway_inference_objective"])
def test_a_sheddable_request_is_dropped_while_the_pool_is_full(header):
    stage = Stage(detector=detector_of(1.0), settings=SHEDDABLE)
    assert stage.refuse(**{header: "batch"}) == SATURATED
    assert stage.route(**{header: "urgent"})
    assert stage.route(**{header: "unheard of"})
    assert stage.route()
    assert [decided[3] for decided in stage.instruments.decided] == [5, 0, 0]


def test_a_sheddable_request_passes_while_there_is_room_and_is_dropped_when_there_is_nobody():
    assert Stage(detector=detector_of(0.99), settings=SHEDDABLE).route(x_llm_d_inference_objective="batch")
    stage = Stage(detector=detector_of(0.0), settings=SHEDDABLE)
    assert stage.refuse(x_llm_d_inference_objective="batch", subset=()) == SATURATED
    assert stage.refuse(subset=()) == NO_CANDIDATES


def test_without_a_detector_nothing_is_shed():
    assert Stage(settings=SHEDDABLE).route(x_llm_d_inference_objective="batch")


def test_screeners_all_see_the_same_candidates_and_what_all_keep_remains():
    seen = []

    def keep(*positions):
        def screen(endpoints):
            seen.append(len(endpoints))
            return endpoints.take(positions)

        return screen

    stage = Stage(screeners=[screener_of(keep(0, 1), "a"), screener_of(keep(2, 1), "b")])
    assert stage.route().destinations == ("10.0.0.2:8000",)
    assert seen == [3, 3]


def test_screeners_that_agree_on_nobody_are_503():
    stage = Stage(
        screeners=[screener_of(lambda endpoints: endpoints.take([0]), "a"), screener_of(lambda endpoints: endpoints.take([1]), "b")]
    )
    assert stage.refuse() == NO_CANDIDATES


@pytest.mark.parametrize("bad", [lambda endpoints: 1 / 0, lambda endpoints: "x", lambda endpoints: np.ones(99, dtype=bool)])
def test_a_screener_that_fails_refuses_or_is_skipped_as_its_policy_says(bad):
    keeps_first = screener_of(lambda endpoints: endpoints.take([0]), "good")
    assert Stage(screeners=[screener_of(bad, "bad"), keeps_first]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")
    assert Stage(screeners=[screener_of(bad, "bad", OnFault.SKIP), keeps_first]).route().destinations == ("10.0.0.1:8000",)


def test_the_first_admitter_that_rejects_decides_with_its_own_words():
    asked = []
    admitters = [
        admitter_of(lambda request: asked.append("a"), "a"),
        admitter_of(lambda request: asked.append("b") or Rejection("not today", 403, "closed"), "b"),
        admitter_of(lambda request: asked.append("c"), "c"),
    ]
    assert Stage(admitters=admitters).refuse() == Refused(403, "Forbidden", "not today", "closed")
    assert asked == ["a", "b"]


@pytest.mark.parametrize("bad", [lambda request: 1 / 0, lambda request: False])
def test_an_admitter_that_fails_refuses_or_is_skipped_as_its_policy_says(bad):
    assert Stage(admitters=[admitter_of(bad, "bad")]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")
    assert Stage(admitters=[admitter_of(bad, "bad", OnFault.SKIP)]).route()


@pytest.mark.parametrize("bad", [lambda endpoints: 1 / 0, lambda endpoints: None, lambda endpoints: "full"])
def test_a_detector_that_fails_sheds_nobody_unless_its_policy_says_so(bad):
    assert Stage(detector=detector_of(bad), settings=SHEDDABLE).route(x_llm_d_inference_objective="batch")
    refusing = Stage(detector=detector_of(bad, OnFault.REFUSE), settings=SHEDDABLE)
    assert refusing.refuse(x_llm_d_inference_objective="batch").status == 500


def test_candidates_that_no_filter_keeps_are_429_with_the_reason():
    stage = Stage(filters=[filter_of(lambda endpoints: endpoints.take([]))])
    refused = stage.refuse()
    assert (refused.status, refused.code, refused.reason) == (429, "ResourceExhausted", "rejected-saturated")
    assert refused.message.startswith("failed to find target endpoint: failed to run scheduler profile 'default'")
    assert stage.instruments.scheduled == [(None, "m")]
    assert stage.instruments.refused == [("m", "ResourceExhausted")]


def test_a_scheduling_fault_is_500():
    refused = Stage(filters=[filter_of(lambda endpoints: 1 / 0)]).refuse()
    assert (refused.status, refused.code, refused.reason) == (500, "Internal", None)


def test_a_producer_that_fails_costs_its_data_only_or_the_request_as_its_policy_says():
    def fail(request, endpoints, state):
        raise RuntimeError("tokenizer down")

    stage = Stage(producers=[producer_of(fail, "bad")])
    assert stage.route()
    assert stage.instruments.faults == [("bad", "DataProducer", "RuntimeError: tokenizer down")]
    assert Stage(producers=[producer_of(fail, "bad", OnFault.REFUSE)]).refuse() == Refused(500, "Internal", "plugin 'bad' failed")


def test_everybody_is_told_before_the_request_leaves_and_may_add_headers():
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
def test_headers_that_are_not_a_plugins_to_set_are_its_fault(name):
    stage = Stage(pre_request=[before_request_of(lambda request, result, headers: headers.set(name, "x"), "bold")])
    assert name.lower() not in stage.route().set_headers
    assert [fault[0] for fault in stage.instruments.faults] == ["bold"]


def test_a_rejection_at_the_last_moment_reaches_the_client_and_everybody_was_told():
    told = []
    stage = Stage(
        pre_request=[
            before_request_of(lambda request, result, headers: Rejection("too late", 503, "late"), "no"),
            before_request_of(lambda request, result, headers: told.append("b"), "b"),
        ]
    )
    assert stage.refuse() == Refused(503, "ServiceUnavailable", "too late", "late")
    assert told == ["b"]
    assert stage.instruments.decided == []


def test_a_request_without_id_gets_one_and_one_with_keeps_it():
    stage = Stage()
    generated = {stage.route(body).set_headers["x-request-id"] for body in (CHAT, CHAT, None)}
    assert len(generated) == 3
    assert all(UUID(one) for one in generated)
    assert "x-request-id" not in stage.route(x_request_id="mine").set_headers
    assert "x-request-id" not in stage.route(None, x_request_id="mine").set_headers


@pytest.mark.parametrize(
    ("headers", "fairness_id"),
    [
        ({}, "default-flow"),
        ({"x_gateway_inference_fairness_id": "old"}, "old"),
        ({"x_llm_d_inference_fairness_id": "new", "x_gateway_inference_fairness_id": "old"}, "new"),
        ({"x_llm_d_inference_fairness_id": ""}, "default-flow"),
    ],
)
def test_the_fairness_id_is_known_under_both_names(headers, fairness_id):
    stage = Stage()
    stage.route(**headers)
    assert stage.instruments.decided[0][2] == fairness_id


def test_plugins_see_no_pseudo_headers():
    seen = []
    Stage(pre_request=[before_request_of(lambda request, result, headers: seen.append(dict(request.headers)))]).route(x_mine="1")
    assert seen == [{"x-mine": "1"}]


def test_a_request_without_body_goes_anywhere_and_meets_no_plugin():
    asked = []
    scorer = scorer_of(lambda endpoints: asked.append(1) or np.ones(len(endpoints)))
    stage = Stage(scorers=[(scorer, 1.0)], settings=DirectorSettings(random=random.Random(3)))
    seen = {stage.route(None, path="/v1/models").destinations for _ in range(60)}
    assert seen == {("10.0.0.1:8000",), ("10.0.0.2:8000",), ("10.0.0.3:8000",)}
    assert asked == []
    routed = stage.route(None)
    routed.exchange.finish(CloseCause.END)
    assert not routed.exchange.wants_chunks
    assert stage.instruments.decided == stage.instruments.ended == []


def test_a_body_that_the_gateway_keeps_is_scheduled_without_a_prompt():
    table = pool({WAITING_QUEUE_SIZE: [5.0, 0.0, 9.0]})
    stage = Stage(table=table, scorers=[(instance(QueueScorer), 1.0)])
    delivery = Delivery(request_body=BodyMode.NONE)
    assert {stage.route(None, delivery=delivery).destinations for _ in range(20)} == {("10.0.0.2:8000",)}


@pytest.mark.parametrize("preference", ["if-available", "respond-async, If-Available"])
def test_a_client_that_wants_its_prompt_cached_gets_412_when_it_is_not(preference):
    producer = instance(ApproxPrefixCacheProducer)
    stage = Stage(scorers=[(instance(PrefixCacheScorer), 1.0)], producers=[producer], pre_request=[producer])
    refused = stage.refuse(prefer=preference)
    assert (refused.status, refused.code) == (412, "PreconditionFailed")
    stage.route()
    assert stage.route(prefer=preference)
    assert Stage().refuse(prefer=preference).status == 412
    assert Stage().route(prefer="respond-async")


def test_a_request_finishes_on_the_pipeline_it_began_with():
    ended = []
    stage = Stage(observers=[])
    before = Stage(observers=[observer_of("old", response_ended=lambda request, end, state: ended.append("old"))])
    stage.pipeline = before.pipeline
    routed = stage.route()
    stage.pipeline = Stage(observers=[observer_of("new", response_ended=lambda request, end, state: ended.append("new"))]).pipeline
    routed.exchange.finish(CloseCause.END)
    stage.route().exchange.finish(CloseCause.END)
    assert ended == ["old", "new"]
