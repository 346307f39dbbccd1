"""Weighted rewrites: which rule counts, and which of its targets a draw chooses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from endpick.api.discovery import ModelRewrite, ModelTarget
from endpick.data.model_rules import ModelRules, choose_model, compile_rewrites

A, B, C = ModelTarget("a", 1), ModelTarget("b", 2), ModelTarget("c", 1)


@pytest.mark.parametrize(
    ("targets", "draw", "chosen"),
    [
        ((A, B, C), 0.0, "a"),
        ((A, B, C), 0.2499, "a"),
        ((A, B, C), 0.25, "b"),
        ((A, B, C), 0.7499, "b"),
        ((A, B, C), 0.75, "c"),
        ((A, B, C), 0.9999, "c"),
        ((ModelTarget("x"), ModelTarget("y")), 0.49, "x"),
        ((ModelTarget("x"), ModelTarget("y")), 0.5, "y"),
        ((ModelTarget("never"), B), 0.0, "b"),
    ],
)
def test_weights_divide_the_draws(targets, draw, chosen):
    assert choose_model(compile_rewrites([ModelRewrite(("m",), targets)]), "m", draw) == chosen


def test_rule_naming_the_model_comes_before_generic_rules():
    rules = [
        ModelRewrite((), (A,)),
        ModelRewrite((), (B,)),
        ModelRewrite(("m", "n"), (B,)),
        ModelRewrite(("m",), (C,)),
        ModelRewrite(("o",), ()),
    ]
    table = compile_rewrites(rules)
    assert [choose_model(table, model, 0.0) for model in ("m", "n", "o", "")] == ["b", "b", "a", "a"]
    assert choose_model(compile_rewrites(rules[2:]), "o", 0.0) == ""
    assert choose_model({}, "m", 0.0) == ""


def test_configured_rules_come_before_discovered_ones():
    rules = ModelRules()
    rules.discovered([ModelRewrite(("m",), (A,)), ModelRewrite(("n",), (A,)), ModelRewrite((), (A,))])
    rules.configure([ModelRewrite(("m",), (B,)), ModelRewrite((), (C,))])
    assert [choose_model(rules.rewrites, model, 0.0) for model in ("m", "n", "o")] == ["b", "a", "c"]

    rules.discovered([ModelRewrite(("m",), (C,))])
    assert [choose_model(rules.rewrites, model, 0.0) for model in ("m", "n", "o")] == ["b", "c", "c"]
    rules.configure([])
    assert [choose_model(rules.rewrites, model, 0.0) for model in ("m", "n", "o")] == ["c", "", ""]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.floats(0, 1, exclude_max=True))
def test_weighted_targets_are_always_chosen(weights, draw):
    targets = tuple(ModelTarget(str(position), weight) for position, weight in enumerate(weights))
    chosen = choose_model({"m": targets}, "m", draw)
    assert any(weights[int(chosen)] for _ in [0]) or not any(weights)
