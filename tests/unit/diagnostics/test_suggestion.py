"""A suggestion is close, or there is none."""

from __future__ import annotations

from endpick.diagnostics import did_you_mean, suggest
from endpick.diagnostics.model import ascii_look_alike

TYPES = ("queue-scorer", "max-score-picker", "random-picker", "kv-cache-utilization-scorer", "label-selector-filter")


def test_the_closest_word_is_suggested_if_it_is_close() -> None:
    for word, expected in [
        ("quue-scorer", "queue-scorer"),
        ("queuescorer", "queue-scorer"),
        ("Queue_Scorer", "queue-scorer"),
        ("qu\u0435ue-scorer", "queue-scorer"),
        ("queue\u2010scorer", "queue-scorer"),
        ("queue-scorer\u200b", "queue-scorer"),
        ("\uff51ueue-scorer", "queue-scorer"),
        ("kv-cache-utilisation-scorer", "kv-cache-utilization-scorer"),
        ("queue", "queue-scorer"),
        ("picker", None),
        ("banana", None),
        ("", None),
    ]:
        assert suggest(word, TYPES) == expected


def test_how_the_parts_of_a_word_are_joined_does_not_matter() -> None:
    for word, candidate in [("ttl", "t_t_l"), ("ttl", "t-t-l"), ("a---b", "a_b"), ("a___b", "ab"), ("a---b", "ab")]:
        assert suggest(word, [candidate]) == candidate


def test_a_part_of_a_word_is_enough_when_it_is_long_enough() -> None:
    for word, expected in [("data", "dataLayer"), ("dat", None), ("layer", "dataLayer")]:
        assert suggest(word, ["dataLayer", "flowControl"]) == expected


def test_a_word_is_never_suggested_for_itself() -> None:
    assert suggest("queue-scorer", ("queue-scorer",)) is None


def test_the_order_of_candidates_does_not_matter() -> None:
    assert suggest("ab-scorer", ("aa-scorer", "ac-scorer")) == suggest("ab-scorer", ("ac-scorer", "aa-scorer"))


def test_the_suggestion_reads_as_a_question() -> None:
    assert did_you_mean("treshold", ["threshold"]) == "did you mean 'threshold'?"
    assert did_you_mean("banana", ["threshold"]) is None


def test_look_alikes_are_read_as_ascii() -> None:
    assert ascii_look_alike("\u0430\u0440\u0440\u200dle\u2212\uff11") == "apple-1"
    assert ascii_look_alike("日本") == "日本"
