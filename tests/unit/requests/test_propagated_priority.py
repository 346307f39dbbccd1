"""The request's priority in its body."""

from __future__ import annotations

import json

import pytest

from endpick.api import ParsedRequest
from endpick.requests.model import Refused
from unit.requests.stage import Stage, parser_of

OBJECTIVES = {"batch": -3, "chat": 7}


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"model": "m", "priority": 9}, {"x_llm_d_inference_objective": "batch"}, {"model": "m", "priority": -3}),
        ({"model": "m"}, {}, {"model": "m", "priority": 0}),
        ({"model": "m", "priority": 0}, {"x_llm_d_inference_objective": "none"}, {"model": "m", "priority": 0}),
        (
            {"model": "m", "nested": {"priority": 1}, "seed": 2**80},
            {"x_llm_d_inference_objective": "chat", "x_llm_d_model_name_rewrite": "n"},
            {"model": "n", "nested": {"priority": 1}, "seed": 2**80, "priority": 7},
        ),
    ],
)
def test_the_resolved_priority_replaces_the_clients(body, headers, expected):
    stage = Stage(objectives=OBJECTIVES, propagates_priority=True)
    sent = stage.route(body | {"prompt": "p"}, "/v1/completions", **headers).body

    expected = expected | {"prompt": "p"}
    if sent is None:
        assert body == expected
    elif 2**80 in expected.values() and "x_llm_d_model_name_rewrite" in headers:
        assert {**json.loads(sent), "seed": 0} == {**expected, "seed": 0}
    else:
        assert json.loads(sent) == expected


def test_large_integers_keep_their_digits():
    stage = Stage(propagates_priority=True)

    assert stage.route(path="/v1/completions", body=b'{"model":"m","prompt":"p","seed":123456789012345678901234}').body == (
        b'{"model":"m","prompt":"p","seed":123456789012345678901234,"priority":0}'
    )


def test_invalid_unicode_gets_the_priority_too():
    stage = Stage(propagates_priority=True)

    assert (
        stage.route(path="/v1/completions", body=b'{"model":"m","prompt":"p","user":"\xff"}').body
        == '{"model":"m","prompt":"p","user":"�","priority":0}'.encode()
    )


def test_without_the_field_and_for_other_bodies_nothing_changes():
    assert Stage(objectives=OBJECTIVES).route(x_llm_d_inference_objective="chat").body is None
    assert Stage(propagates_priority=True).route(b"\x00\x01", path="/anything").body is None


def test_a_parser_that_fails_to_write_it_refuses_the_request():
    stage = Stage(
        parsers=[parser_of("broken", parse=lambda *_: ParsedRequest(model="a"), rewrite_priority=lambda *_: 1 / 0)],
        propagates_priority=True,
    )
    assert stage.refuse() == Refused(500, "Internal", "plugin 'broken' failed")
