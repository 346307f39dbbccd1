"""The engine model: when tokens appear, what is cached, who waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from endpick_lab.engine import Engine, Event, Finished, GenerationRequest, Token, TokenUsage
from endpick_lab.settings import EngineSettings, Timing

TIMING = Timing(prefill_seconds_per_token=0.5, decode_seconds=1.0, decode_slowdown_per_sequence=0.25, adapter_load_seconds=8.0)
SETTINGS = EngineSettings(max_num_seqs=2, max_num_batched_tokens=8, kv_blocks=16, block_size=4, max_model_len=64, timing=TIMING)


def run(engine: Engine) -> list[Event]:
    events: list[Event] = []
    while (time := engine.next_event_time()) is not None:
        events += engine.advance(time)
    return events


def token_times(events: list[Event], request_id: str) -> list[float]:
    return [event.time for event in events if isinstance(event, Token) and event.request_id == request_id]


def usages(events: list[Event]) -> dict[str, TokenUsage]:
    return {event.request_id: event.usage for event in events if isinstance(event, Finished)}


def test_first_token_after_prefill_and_then_one_per_decode_step():
    engine = Engine(SETTINGS)
    engine.submit(GenerationRequest("a", prompt_tokens=4, output_tokens=3), now=10.0)
    assert engine.next_event_time() == 10.0
    events = run(engine)
    assert events == [
        Token(13.0, "a", 0),
        Token(14.0, "a", 1),
        Token(15.0, "a", 2),
        Finished(15.0, "a", TokenUsage(prompt_tokens=4, completion_tokens=3, cached_tokens=0)),
    ]
    assert engine.next_event_time() is None


def test_long_prompt_is_prefilled_in_chunks():
    engine = Engine(SETTINGS)
    engine.submit(GenerationRequest("short", 1, 8), now=0.0)
    engine.submit(GenerationRequest("long", 15, 1), now=0.5)
    events = run(engine)
    # short prefills 1 token until 1.5; then steps of 1.25 + 7 x 0.5 for 7 of 15, 7 of 15 and the last token.
    assert token_times(events, "short")[:4] == [1.5, 6.25, 11.0, 12.75]
    assert token_times(events, "long") == [12.75]


def test_a_larger_batch_makes_each_step_longer():
    alone, pair = Engine(SETTINGS), Engine(SETTINGS)
    alone.submit(GenerationRequest("a", 1, 2), now=0.0)
    for name in "ab":
        pair.submit(GenerationRequest(name, 1, 2), now=0.0)
    assert token_times(run(alone), "a") == [1.5, 2.5]
    assert token_times(run(pair), "a") == [2.25, 3.5]


def test_requests_beyond_the_batch_wait_their_turn():
    engine = Engine(SETTINGS)
    for name in "abc":
        engine.submit(GenerationRequest(name, 1, 2), now=0.0)
    engine.advance(0.0)
    metrics = engine.metrics(0.0)
    assert (metrics.running, metrics.waiting) == (2, 1)
    times = {name: token_times(run_events, name)[0] for run_events in [run(engine)] for name in "abc"}
    assert times == {"a": 2.25, "b": 2.25, "c": 5.0}


def test_a_request_that_arrives_during_a_step_joins_the_next_one():
    engine = Engine(SETTINGS)
    engine.submit(GenerationRequest("a", 1, 2), now=0.0)
    engine.advance(0.0)
    engine.submit(GenerationRequest("b", 1, 1), now=1.0)
    assert token_times(run(engine), "b") == [3.25]


def test_a_prompt_seen_before_costs_only_what_is_not_cached():
    engine = Engine(SETTINGS)
    hashes = (1, 2)
    engine.submit(GenerationRequest("first", 8, 1, hashes), now=0.0)
    first = run(engine)
    engine.submit(GenerationRequest("second", 9, 1, (*hashes, 3)), now=10.0)
    second = run(engine)
    assert token_times(first, "first") == [5.0]
    assert token_times(second, "second") == [11.5]
    assert usages(second)["second"].cached_tokens == 8
    metrics = engine.metrics(20.0)
    assert (metrics.prefix_cache_queried_tokens, metrics.prefix_cache_hit_tokens) == (17, 8)


def test_last_prompt_token_is_always_computed():
    engine = Engine(SETTINGS)
    for name, now in (("first", 0.0), ("again", 10.0)):
        engine.submit(GenerationRequest(name, 8, 1, (1, 2)), now=now)
        events = run(engine)
    assert usages(events)["again"].cached_tokens == 4


def test_blocks_of_an_answer_are_reused_by_the_next_turn():
    engine = Engine(SETTINGS)
    engine.submit(GenerationRequest("turn 1", 4, 5, block_hashes=(1, 2)), now=0.0)
    run(engine)
    engine.submit(GenerationRequest("turn 2", 12, 1, block_hashes=(1, 2, 3)), now=20.0)
    assert usages(run(engine))["turn 2"].cached_tokens == 8


def test_youngest_request_is_preempted_and_finishes():
    settings = replace(SETTINGS, kv_blocks=4, max_model_len=16)
    engine = Engine(settings)
    engine.submit(GenerationRequest("old", 4, 9), now=0.0)
    engine.submit(GenerationRequest("young", 4, 9), now=0.0)
    events = run(engine)
    assert engine.metrics(100.0).preemptions > 0
    assert [event.request_id for event in events if isinstance(event, Finished)] == ["old", "young"]
    assert [event.index for event in events if isinstance(event, Token) and event.request_id == "young"] == list(range(9))
    assert engine.metrics(100.0).kv_cache_usage == 0.0


def test_request_without_blocks_is_not_overtaken():
    settings = replace(SETTINGS, kv_blocks=4, max_model_len=16, max_num_batched_tokens=64)
    engine = Engine(settings)
    engine.submit(GenerationRequest("holder", 8, 2), now=0.0)
    engine.submit(GenerationRequest("big", 12, 1), now=0.5)
    engine.submit(GenerationRequest("small", 1, 1), now=0.5)
    events = run(engine)
    order = [event.request_id for event in events if isinstance(event, Token) and event.index == 0]
    assert order == ["holder", "big", "small"]


def test_an_adapter_without_a_slot_waits_while_others_pass_it():
    settings = replace(SETTINGS, max_num_seqs=4, max_loras=1)
    engine = Engine(settings)
    engine.submit(GenerationRequest("red 1", 1, 4, adapter="red"), now=0.0)
    engine.submit(GenerationRequest("blue", 1, 1, adapter="blue"), now=0.0)
    engine.submit(GenerationRequest("red 2", 1, 1, adapter="red"), now=0.0)
    engine.submit(GenerationRequest("base", 1, 1), now=0.0)
    engine.advance(0.0)
    metrics = engine.metrics(0.0)
    assert (metrics.running_adapters, metrics.waiting_adapters) == (("red",), ("blue",))
    events = run(engine)
    order = [event.request_id for event in events if isinstance(event, Token) and event.index == 0]
    assert order == ["red 1", "red 2", "base", "blue"]


def test_resident_adapter_needs_no_loading_time():
    engine = Engine(replace(SETTINGS, max_loras=2))
    for name, now in (("cold", 0.0), ("warm", 20.0)):
        engine.submit(GenerationRequest(name, 1, 1, adapter="red"), now=now)
    events = run(engine)
    assert token_times(events, "cold") == [9.5]
    assert token_times(events, "warm") == [21.5]


def test_abort_frees_blocks_and_slot_whether_running_or_waiting():
    engine = Engine(replace(SETTINGS, max_num_seqs=1))
    engine.submit(GenerationRequest("running", 8, 4), now=0.0)
    engine.submit(GenerationRequest("waiting", 8, 4), now=0.0)
    engine.submit(GenerationRequest("last", 1, 1), now=0.0)
    engine.advance(1.0)
    assert engine.abort("waiting", 1.0)
    assert engine.abort("running", 1.0)
    assert not engine.abort("running", 1.0)
    assert engine.metrics(1.0).kv_cache_usage == 0.0
    events = run(engine)
    assert {event.request_id for event in events} == {"last"}
    assert (engine.metrics(50.0).finished, engine.metrics(50.0).aborted) == (1, 2)


def test_a_full_cache_of_idle_blocks_counts_as_free():
    engine = Engine(replace(SETTINGS, kv_blocks=4, max_model_len=16))
    engine.submit(GenerationRequest("a", 15, 1, (1, 2, 3)), now=0.0)
    engine.advance(0.0)
    assert engine.metrics(0.0).kv_cache_usage == 0.5  # the first chunk holds 8 of 15 tokens
    run(engine)
    assert engine.metrics(50.0).kv_cache_usage == 0.0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (GenerationRequest("taken", 1, 1), "already in use"),
        (GenerationRequest("long", 60, 5), "max_model_len=64"),
        (GenerationRequest("lora", 1, 1, adapter="red"), "max_loras is 0"),
    ],
)
def test_a_request_that_cannot_run_is_refused(request_: GenerationRequest, message: str):
    engine = Engine(SETTINGS)
    engine.submit(GenerationRequest("taken", 1, 1), now=0.0)
    with pytest.raises(ValueError, match=message):
        engine.submit(request_, now=0.0)


def test_time_cannot_go_back():
    engine = Engine(SETTINGS)
    engine.advance(5.0)
    with pytest.raises(ValueError, match=r"time went back from 5\.0 to 4\.0"):
        engine.submit(GenerationRequest("a", 1, 1), now=4.0)


def test_settings_that_could_never_finish_a_request_are_refused():
    with pytest.raises(ValueError, match="raise kv_blocks or lower max_model_len"):
        EngineSettings(kv_blocks=3, block_size=4, max_model_len=13)
    with pytest.raises(ValueError, match="decode_seconds"):
        Timing(decode_seconds=0.0)
    with pytest.raises(ValueError, match="jitter"):
        Timing(jitter=1.0)
