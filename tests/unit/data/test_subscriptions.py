"""The subscription graph: what is refused, in which words, and what order comes out."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api import (
    Admitter,
    CandidateFilter,
    DataCollector,
    DataKey,
    DataProducer,
    Picker,
    PreRequest,
    ResponseObserver,
    Scope,
    Scorer,
    Subscriptions,
)
from endpick.diagnostics import Code, Span
from endpick.host.kinds import Kind
from endpick.host.planning.subscriptions import Need, Participant, missing_keys, resolve_subscriptions

TOKENS = DataKey("acme/tokens", int, Scope.REQUEST)
MATCH = DataKey("acme/match", float, Scope.CANDIDATE)
LOAD = DataKey("acme/load", float)


def span(line: int) -> Span:
    return Span("config.yaml", line, 9, line, 12)


def participant(name, kind=Scorer, *, consumes=(), optional=(), produces=(), line=1, kinds=None) -> Participant:
    declared = Subscriptions(tuple(consumes), tuple(optional), tuple(produces))
    return Participant(name, f"acme.{name}", kinds or (kind,), declared, span(line))


def producer(name, *, consumes=(), produces=(), line=1) -> Participant:
    return participant(name, DataProducer, consumes=consumes, produces=produces, line=line)


def codes(resolution) -> list[Code]:
    return [diagnostic.code for diagnostic in resolution.diagnostics]


def test_producers_come_after_those_they_read_from() -> None:
    tokens = producer("z-tokens", produces=[TOKENS])
    match = producer("a-match", consumes=[TOKENS], produces=[MATCH])
    scorer = participant("scorer", consumes=[MATCH])

    graph = resolve_subscriptions([scorer, match, tokens]).graph

    assert graph is not None
    assert graph.order == ("z-tokens", "a-match")
    assert [(one.consumer, one.key, one.producer) for one in graph.subscriptions] == [
        ("a-match", "acme/tokens", "z-tokens"),
        ("scorer", "acme/match", "a-match"),
    ]
    assert graph.producers_for(["scorer"]) == ("z-tokens", "a-match")
    assert graph.keys_for(["scorer"]) == ("acme/match", "acme/tokens")
    assert graph.producers_for([]) == ()


def test_missing_producer_names_consumer_key_and_remedy() -> None:
    scorer = participant("scorer", consumes=[LOAD], line=7)

    (diagnostic,) = resolve_subscriptions([scorer], lambda key: f"install something for {key.name}").diagnostics

    assert diagnostic.code is Code.E0601
    assert "'acme/load'" in diagnostic.message
    assert "'scorer'" in diagnostic.message
    assert diagnostic.span == span(7)
    assert diagnostic.help == "install something for acme/load"


def test_an_optional_key_may_go_without_producer() -> None:
    graph = resolve_subscriptions([participant("scorer", optional=[LOAD])]).graph

    assert graph is not None
    assert graph.unmet == (Need("scorer", "acme/load"),)
    assert graph.subscriptions == ()


def test_optional_key_orders_its_reader_after_the_producer() -> None:
    tokens = producer("z-tokens", produces=[TOKENS])
    match = Participant("a-match", "acme.match", (DataProducer,), Subscriptions((), (TOKENS,), (MATCH,)))

    graph = resolve_subscriptions([match, tokens]).graph

    assert graph is not None
    assert graph.order == ("z-tokens", "a-match")
    assert [one.required for one in graph.subscriptions] == [False]


def test_behaviour_39_types_of_all_shared_keys_are_compared() -> None:
    first, second = DataKey("acme/a", float, Scope.REQUEST), DataKey("acme/b", int, Scope.REQUEST)
    other_second = DataKey("acme/b", str, Scope.REQUEST)

    (diagnostic,) = resolve_subscriptions(
        [producer("maker", produces=[first, second], line=3), participant("reader", consumes=[first, other_second], line=8)]
    ).diagnostics

    assert diagnostic.code is Code.E0602
    assert "'acme/b' as str" in diagnostic.message
    assert "'maker' writes int" in diagnostic.message
    assert diagnostic.span == span(8)
    assert [label.span for label in diagnostic.labels] == [span(3)]


def test_producer_and_consumer_must_agree_on_the_scope() -> None:
    pool = DataKey("acme/load", float, Scope.POOL)

    resolution = resolve_subscriptions([participant("c", DataCollector, produces=[pool]), participant("reader", consumes=[LOAD])])

    assert codes(resolution) == [Code.E0608]
    assert "scope endpoint" in resolution.diagnostics[0].message
    assert "scope pool" in resolution.diagnostics[0].message


@pytest.mark.parametrize(
    ("writer", "reader", "in_time"),
    [
        (DataProducer, Scorer, True),
        (DataProducer, Admitter, True),
        (DataProducer, DataProducer, True),
        (DataProducer, CandidateFilter, False),
        (PreRequest, Scorer, False),
        (PreRequest, ResponseObserver, True),
        (ResponseObserver, Picker, False),
    ],
)
def test_data_of_a_request_is_written_before_it_is_read(writer: Kind, reader: Kind, *, in_time: bool) -> None:
    resolution = resolve_subscriptions([participant("writer", writer, produces=[TOKENS]), participant("reader", reader, consumes=[TOKENS])])

    assert codes(resolution) == ([] if in_time else [Code.E0604])


def test_writer_of_a_column_may_run_after_its_reader() -> None:
    resolution = resolve_subscriptions(
        [participant("inflight", PreRequest, produces=[LOAD]), participant("candidates", CandidateFilter, consumes=[LOAD])]
    )

    assert resolution.graph is not None


def test_instance_of_several_kinds_reads_late_and_writes_early() -> None:
    both = participant("both", kinds=(DataProducer, PreRequest), produces=[TOKENS])
    late = participant("late", kinds=(CandidateFilter, PreRequest), consumes=[TOKENS])

    assert resolve_subscriptions([both, late]).graph is not None


def test_two_producers_of_one_key_are_refused_with_both_places() -> None:
    (diagnostic,) = resolve_subscriptions(
        [producer("b", produces=[MATCH], line=4), producer("a", produces=[MATCH], line=2), participant("s", consumes=[MATCH])]
    ).diagnostics

    assert diagnostic.code is Code.E0605
    assert diagnostic.span == span(4)
    assert [label.span for label in diagnostic.labels] == [span(2)]
    assert "'s' reads it" in diagnostic.message


def test_a_consumer_may_choose_among_several_producers() -> None:
    graph = resolve_subscriptions(
        [producer("a", produces=[MATCH]), producer("b", produces=[MATCH]), participant("s", consumes=[MATCH.from_producer("b")])]
    ).graph

    assert graph is not None
    assert [(one.consumer, one.producer) for one in graph.subscriptions] == [("s", "b")]
    assert graph.unread == ("a",)


def test_chosen_producer_must_produce_the_key() -> None:
    resolution = resolve_subscriptions([producer("a", produces=[MATCH]), participant("s", consumes=[MATCH.from_producer("b")])])

    assert codes(resolution) == [Code.E0601]
    assert "acme/match@b" in resolution.diagnostics[0].message


def test_two_writers_of_a_column_clash() -> None:
    resolution = resolve_subscriptions([participant("a", DataCollector, produces=[LOAD]), participant("b", DataCollector, produces=[LOAD])])

    assert codes(resolution) == [Code.E0605]


def test_behaviour_40_cycle_is_printed_with_all_places() -> None:
    x, y, z = (DataKey(f"acme/{name}", int, Scope.REQUEST) for name in "xyz")
    members = [
        producer("c", consumes=[x], produces=[z], line=6),
        producer("a", consumes=[y], produces=[x], line=2),
        producer("b", consumes=[z], produces=[y], line=4),
    ]

    (diagnostic,) = resolve_subscriptions(members).diagnostics

    assert diagnostic.code is Code.E0603
    assert "a → b → c → a" in diagnostic.message
    assert diagnostic.span == span(2)
    assert [label.span for label in diagnostic.labels] == [span(4), span(6)]
    assert diagnostic.notes == (
        "'a' needs 'acme/y' from 'b'",
        "'b' needs 'acme/z' from 'c'",
        "'c' needs 'acme/x' from 'a'",
    )


def test_a_circle_is_shown_at_a_member_that_the_document_defines() -> None:
    added = replace(producer("a", consumes=[MATCH], produces=[TOKENS]), span=None)
    defined = producer("b", consumes=[TOKENS], produces=[MATCH], line=4)

    (diagnostic,) = resolve_subscriptions([added, defined]).diagnostics

    assert diagnostic.span == span(4)
    assert diagnostic.labels == ()
    assert "a → b → a" in diagnostic.message


def test_clash_is_shown_at_the_defined_producer() -> None:
    added = replace(producer("b", produces=[MATCH]), span=None)

    (diagnostic,) = resolve_subscriptions([added, producer("a", produces=[MATCH], line=2), participant("s", consumes=[MATCH])]).diagnostics

    assert diagnostic.span == span(2)


def test_who_waits_for_itself_is_told_so() -> None:
    (diagnostic,) = resolve_subscriptions([producer("narcissus", consumes=[TOKENS], produces=[TOKENS], line=3)]).diagnostics

    assert diagnostic.code is Code.E0603
    assert "narcissus → narcissus" in diagnostic.message
    assert diagnostic.help == "remove the key from `consumes`: an instance may always read what it produces"


def test_a_producer_that_no_instance_reads_is_named() -> None:
    graph = resolve_subscriptions([producer("lonely", produces=[TOKENS])]).graph

    assert graph is not None
    assert graph.unread == ("lonely",)


def test_missing_keys_tells_keys_apart_by_name_only() -> None:
    again = DataKey("acme/load", float, doc="the same key, defined by another distribution")

    assert missing_keys([participant("reader", consumes=[LOAD]), participant("c", DataCollector, produces=[again])]) == ()


@pytest.mark.parametrize("name", ["GPU temperature", "", "a/b/c", "acme/", "/x", "a--b", "a__b", "ü", "_a", "a_", "a b"])
def test_a_key_must_have_a_name_that_can_be_written_down(name: str) -> None:
    resolution = resolve_subscriptions([producer("p", produces=[DataKey(name, int, Scope.REQUEST)], line=5)])

    assert codes(resolution) == [Code.E0609]
    assert resolution.diagnostics[0].span == span(5)


@pytest.mark.parametrize("name", ["load", "gpu-temperature", "acme.example/gpu-temperature", "a/b", "x2", "GPUUtilization", "gpu_load"])
def test_usual_key_names_are_fine(name: str) -> None:
    assert resolve_subscriptions([producer("p", produces=[DataKey(name, int, Scope.REQUEST)])]).graph is not None


KEYS = [DataKey(f"acme/k{number}", int, Scope.REQUEST) for number in range(5)]


@st.composite
def configurations(draw: st.DrawFn) -> list[Participant]:
    """Producers that each own some keys and read some others, and a scorer."""
    owners = draw(st.lists(st.integers(0, 3), min_size=len(KEYS), max_size=len(KEYS)))
    made = [
        producer(
            f"p{number}",
            consumes=draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=2)),
            produces=[key for key, owner in zip(KEYS, owners, strict=True) if owner == number],
            line=number + 1,
        )
        for number in range(4)
    ]
    return [*made, participant("scorer", consumes=draw(st.lists(st.sampled_from(KEYS), unique=True)), line=9)]


@given(configurations(), st.randoms(use_true_random=False))
def test_the_same_instances_in_any_order_give_the_same_answer(instances: list[Participant], random) -> None:
    shuffled = list(instances)
    random.shuffle(shuffled)

    assert resolve_subscriptions(shuffled) == resolve_subscriptions(instances)


@given(configurations())
def test_order_exists_exactly_without_a_cycle(instances: list[Participant]) -> None:
    owner = {key.name: one.name for one in instances for key in one.subscriptions.produces}
    reads = {one.name: {owner[key.name] for key in one.subscriptions.consumes} for one in instances}
    closure = dict(reads)
    for _ in instances:
        closure = {name: near.union(*(closure[other] for other in near)) for name, near in closure.items()}

    resolution = resolve_subscriptions(instances)

    assert (resolution.graph is not None) == all(name not in far for name, far in closure.items())
    if resolution.graph is not None:
        place = {name: position for position, name in enumerate(resolution.graph.order)}
        assert all(place[far] < place[near] for near in place for far in reads[near])
