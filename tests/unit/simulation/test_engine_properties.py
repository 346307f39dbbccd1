"""What holds for every load on every engine, however small its batch, its cache or its adapter slots."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from endpick_lab.engine import Engine, Event, Finished, GenerationRequest, Token
from endpick_lab.settings import EngineSettings, Timing


@dataclass(frozen=True)
class Arrival:
    """A request, when it comes, and when its client gives up, if ever."""

    request: GenerationRequest
    time: float
    patience: float | None


@st.composite
def engine_settings(draw: st.DrawFn) -> EngineSettings:
    block_size = draw(st.sampled_from([1, 2, 4]))
    max_model_len = draw(st.integers(8, 40))
    smallest = -(-max_model_len // block_size)
    return EngineSettings(
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.integers(1, 24)),
        kv_blocks=smallest + draw(st.integers(0, 20)),
        block_size=block_size,
        max_model_len=max_model_len,
        max_loras=draw(st.integers(0, 2)),
        timing=Timing(0.25, 1.0, 0.125, 0.5, jitter=draw(st.sampled_from([0.0, 0.5]))),
    )


@st.composite
def loads(draw: st.DrawFn, engine: EngineSettings, *, patient: bool = False) -> list[Arrival]:
    adapters = st.none() if not engine.max_loras else st.sampled_from([None, "red", "green", "blue"])
    arrivals = []
    time = 0.0
    for number in range(draw(st.integers(1, 12))):
        time += draw(st.sampled_from([0.0, 0.5, 3.0]))
        prompt = draw(st.integers(1, engine.max_model_len - 1))
        output = draw(st.integers(1, engine.max_model_len - prompt))
        family = draw(st.integers(0, 2))
        known = (prompt + draw(st.sampled_from([0, output]))) // engine.block_size
        hashes = tuple(family * 1000 + position for position in range(known))
        patience = None if patient else draw(st.sampled_from([None, None, 0.0, 2.0, 9.0]))
        request = GenerationRequest(f"r{number}", prompt, output, hashes, draw(adapters))
        arrivals.append(Arrival(request, time, patience))
    return arrivals


def play(engine: Engine, arrivals: Sequence[Arrival]) -> tuple[list[Event], set[str]]:
    """Submit and give up at the given times, and run to the end; events, and the ids aborted while alive."""
    calls = [(arrival.time, 0, arrival.request) for arrival in arrivals]
    calls += [(a.time + a.patience, 1, a.request) for a in arrivals if a.patience is not None]
    events: list[Event] = []
    aborted: set[str] = set()
    for time, is_abort, request in sorted(calls, key=lambda call: (call[0], call[1])):
        events += advance_in_steps(engine, time)
        if not is_abort:
            engine.submit(request, time)
        elif engine.abort(request.id, time):
            aborted.add(request.id)
    while (due := engine.next_event_time()) is not None:
        events += advance_in_steps(engine, due)
    return events, aborted


def advance_in_steps(engine: Engine, until: float) -> list[Event]:
    events: list[Event] = []
    while (due := engine.next_event_time()) is not None and due <= until:
        events += engine.advance(due)
        metrics = engine.metrics(due)
        assert 0.0 <= metrics.kv_cache_usage <= 1.0
        assert metrics.running <= engine.settings.max_num_seqs
        assert len(metrics.running_adapters) <= engine.settings.max_loras
    return events + engine.advance(until)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_every_request_ends_once_and_frees_its_blocks(data: st.DataObject):
    engine = Engine(data.draw(engine_settings()))
    arrivals = data.draw(loads(engine.settings))
    events, aborted = play(engine, arrivals)
    finished = Counter(event.request_id for event in events if isinstance(event, Finished))
    assert set(finished.values()) <= {1}
    assert finished.keys() | aborted == {arrival.request.id for arrival in arrivals}
    assert not finished.keys() & aborted
    end = engine.metrics(1e9)
    assert (end.running, end.waiting, end.kv_cache_usage, end.running_adapters) == (0, 0, 0.0, ())
    assert (end.finished, end.aborted) == (len(finished), len(aborted))


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_tokens_come_in_order_and_usage_adds_up(data: st.DataObject):
    engine = Engine(data.draw(engine_settings()))
    arrivals = data.draw(loads(engine.settings))
    events, aborted = play(engine, arrivals)
    assert [event.time for event in events] == sorted(event.time for event in events)
    for arrival in arrivals:
        request = arrival.request
        tokens = [e for e in events if isinstance(e, Token) and e.request_id == request.id]
        assert [token.index for token in tokens] == list(range(len(tokens)))
        assert all(token.time > arrival.time for token in tokens)
        if request.id in aborted:
            assert len(tokens) < request.output_tokens
            continue
        (usage,) = [e.usage for e in events if isinstance(e, Finished) and e.request_id == request.id]
        assert (usage.prompt_tokens, usage.completion_tokens) == (request.prompt_tokens, len(tokens))
        assert len(tokens) == request.output_tokens
        assert 0 <= usage.cached_tokens < usage.prompt_tokens
        assert usage.cached_tokens % engine.settings.block_size == 0


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_without_adapters_first_tokens_come_in_order_of_arrival(data: st.DataObject):
    engine = Engine(replace(data.draw(engine_settings()), max_loras=0))
    arrivals = data.draw(loads(engine.settings, patient=True))
    events, _ = play(engine, arrivals)
    order = [event.request_id for event in events if isinstance(event, Token) and event.index == 0]
    assert order == [arrival.request.id for arrival in arrivals]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_events_do_not_depend_on_the_number_of_advances(data: st.DataObject):
    shape = data.draw(engine_settings())
    arrivals = data.draw(loads(shape, patient=True))
    often, once = Engine(shape, Random(7)), Engine(shape, Random(7))
    events: list[Event] = []
    for index, arrival in enumerate(arrivals):
        often.submit(arrival.request, arrival.time)
        once.submit(arrival.request, arrival.time)
        if index + 1 < len(arrivals) and arrivals[index + 1].time > arrival.time:
            events += advance_in_steps(often, arrival.time + data.draw(st.sampled_from([0.0, 0.25, 0.49])))
    events += advance_in_steps(often, 1e9)
    assert once.advance(1e9) == events


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_steps_at_once_give_the_same_times(data: st.DataObject):
    shape = data.draw(engine_settings())
    shape = replace(shape, timing=replace(shape.timing, jitter=0.0))
    drawn = [one.request for one in data.draw(loads(shape, patient=True))]
    known = [replace(one, block_hashes=one.block_hashes[: one.prompt_tokens // shape.block_size]) for one in drawn]
    arrivals = [Arrival(one, 0.5 * number, None) for number, one in enumerate(known)]
    one_by_one, _ = play(Engine(shape), arrivals)
    at_once, _ = play(Engine(shape, every_token=False), arrivals)
    notable = [event for event in one_by_one if isinstance(event, Finished) or event.index == 0]
    assert [replace(event, time=round(event.time, 6)) for event in at_once] == [
        replace(event, time=round(event.time, 6)) for event in notable
    ]
