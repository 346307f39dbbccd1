"""What pickers tell each other, and what they do with messages of any kind."""

from __future__ import annotations

import logging

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.fleet.exchange import (
    EXPIRY_SECONDS,
    FORMAT,
    HEARTBEAT_SECONDS,
    IDLE_SECONDS,
    MAX_MESSAGES,
    Message,
    MessageKind,
    encode_snapshot,
)
from unit.fleet.learners import Counting, Learner


def test_what_one_learns_the_others_know():
    one, two, three = Learner(), Learner(), Learner()
    one.tell(two, three, word="a")
    two.tell(one, three, word="b")
    assert [each.plugin.words for each in (one, two, three)] == [{"a", "b"}] * 3
    assert two.exchange.peers == (one.exchange.origin,)


def test_an_idle_picker_sends_signs_of_life_only():
    one = Learner()
    assert one.tell() is None
    one.clock.now += HEARTBEAT_SECONDS
    beat = one.tell()
    assert beat is not None
    assert len(beat) < 60
    assert one.tell() is None


def test_a_picker_without_news_is_idle():
    one = Learner()
    one.clock.now += IDLE_SECONDS
    one.tell()
    assert not one.exchange.is_idle
    one.clock.now += HEARTBEAT_SECONDS
    assert one.exchange.is_idle
    one.tell(word="a")
    assert not one.exchange.is_idle


def test_a_repeated_message_changes_nothing():
    one, two = Learner(), Learner()
    message = one.tell(two, word="a")
    assert two.exchange.receive(message) is None
    assert two.plugin.loads == {one.exchange.origin: 1}
    assert two.exchange.counts.applied == 1


def test_a_lost_message_drops_the_load_but_not_the_rest():
    one, two = Learner(), Learner()
    one.tell(two, word="a")
    one.tell(word="lost")
    one.tell(two, word="b")
    assert two.plugin.loads == {one.exchange.origin: 1}
    assert two.plugin.words == {"a", "b"}
    assert two.exchange.counts.lost == 1


@pytest.mark.parametrize("leaves", ["silently", "with a word", "cut off"])
def test_a_picker_that_leaves_takes_its_load_along(leaves):
    one, two = Learner(), Learner()
    one.tell(two, word="a")
    if leaves == "silently":
        two.clock.now += EXPIRY_SECONDS + 1
        two.exchange.expire()
    elif leaves == "with a word":
        two.exchange.receive(one.exchange.message(MessageKind.BYE))
    else:
        two.exchange.cut_off()
    assert two.exchange.peers == ()
    assert (two.plugin.loads, two.plugin.words) == ({}, {"a"})


def test_clocks_a_minute_apart_do_not_matter():
    one, two = Learner(), Learner()
    two.clock.now += 60.0
    one.tell(two, word="a")
    two.exchange.expire()
    assert two.exchange.peers == (one.exchange.origin,)


@pytest.mark.parametrize(
    "message",
    [
        msgspec.msgpack.encode((FORMAT + 1, "newer", {"what": "ever"})),
        msgspec.msgpack.encode(Message(FORMAT + 1, "newer")),
        msgspec.msgpack.encode((FORMAT, "newer", "unheard-of")),
    ],
)
def test_another_release_is_named_once(message, caplog):
    one = Learner()
    with caplog.at_level(logging.WARNING):
        one.exchange.receive(message)
        one.exchange.receive(message)
    assert [record.getMessage().split(",")[0] for record in caplog.records] == ["a message of picker newer"]
    assert one.exchange.counts.unreadable == 2
    assert one.exchange.peers == ()


class NewerFormat(Counting):
    """The same plugin in a later release."""

    learnt_format = 2


def test_instances_of_another_format_are_left_alone():
    one, two = Learner(), Learner(plugin=NewerFormat)
    one.tell(two, word="a")
    assert two.plugin.words == set()
    assert two.exchange.counts.applied == 1


def test_a_flood_is_cut_and_named(caplog):
    one, two = Learner(), Learner()
    with caplog.at_level(logging.WARNING):
        for number in range(MAX_MESSAGES + 50):
            one.tell(two, word=str(number))
    assert two.exchange.counts.flooded == 50
    assert len(two.plugin.words) == MAX_MESSAGES
    assert [record.getMessage() for record in caplog.records] == [
        f"picker {one.exchange.origin} sends more than {MAX_MESSAGES} messages a second; the rest is left out"
    ]
    two.clock.now += 1.0
    one.tell(two, word="again")
    assert "again" in two.plugin.words


def test_two_pickers_of_one_name_are_told(caplog):
    one, two = Learner("twin"), Learner("twin")
    with caplog.at_level(logging.WARNING):
        one.tell(two, word="a")
    assert two.plugin.words == set()
    assert "another picker has the name twin" in caplog.text


def test_only_one_picker_answers_a_hello():
    pickers = [Learner(name) for name in "abc"]
    for one in pickers:
        for two in pickers:
            one.tell(two, word="x")
    hello = pickers[0].exchange.message(MessageKind.HELLO)
    asked = [each.exchange.receive(hello) for each in pickers]
    assert asked[0] is None
    answers = [each.exchange.answers(message) for each, message in zip(pickers, asked, strict=True) if message is not None]
    assert answers == [True, False]


def test_a_picker_that_crashed_is_not_waited_for():
    crashed, other = Learner("a"), Learner("b")
    crashed.tell(other, word="x")
    again = Learner("c")
    hello = again.exchange.message(MessageKind.HELLO)
    assert not other.exchange.answers(other.exchange.receive(hello))
    other.clock.now += 2.0
    hello = Learner("d").exchange.message(MessageKind.HELLO)
    message = other.exchange.receive(hello)
    assert message is not None
    assert other.exchange.answers(message)


def snapshot_of(one):
    return encode_snapshot(list(one.exchange.snapshot()))


def test_a_snapshot_teaches_a_new_picker():
    one, two = Learner(), Learner()
    one.tell(word="a")
    assert len(list(two.exchange.restore(snapshot_of(one)))) == 1
    assert two.plugin.words == {"a"}


def test_an_instance_of_a_reload_goes_on_with_what_is_known():
    one = Learner()
    one.tell(word="a")
    assert one.replace().words == {"a"}


@given(st.data())
def test_a_snapshot_cut_short_does_no_harm(data):
    one, two = Learner(), Learner()
    for word in ("a", "b"):
        one.tell(word=word)
    snapshot = snapshot_of(one)
    cut = snapshot[: data.draw(st.integers(0, len(snapshot) - 1))]
    assert list(two.exchange.restore(cut)) == []
    assert two.plugin.words == set()


@given(st.binary(max_size=80))
def test_any_bytes_do_no_harm(message):
    one = Learner()
    one.exchange.receive(message)
    assert list(one.exchange.restore(message)) == []
    assert one.plugin.words == set()


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abcdef"), st.booleans()), max_size=30))
def test_all_know_the_same_once_all_are_heard(events):
    pickers = [Learner(f"p{number}") for number in range(3)]
    sent = [(number, pickers[number].tell(word=word), twice) for number, word, twice in events]
    for _, message, twice in sorted(sent, key=lambda event: event[0]):  # in order for each picker, not between them
        for other in range(3):
            for _ in range(1 + twice):
                pickers[other].exchange.receive(message)
    assert pickers[0].plugin.words == pickers[1].plugin.words == pickers[2].plugin.words == {word for _, word, _ in events}
