"""Plugin classes and data keys, as declarations."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

import endpick.api.discovery
import endpick.api.fleet
import endpick.api.flow_control
import endpick.api.keys
from endpick.api import (
    DataKey,
    Endpoints,
    Filter,
    InferenceRequest,
    Media,
    Modality,
    Parameters,
    PerEndpointScorer,
    Prompt,
    Scorer,
    ScoringState,
    Usage,
)
from endpick.api.endpoints import BoolArray, FloatArray
from endpick.api.plugin import Plugin
from endpick.host.discovery import request_path
from endpick.host.kinds import KINDS, kinds_of


class Both(Filter, Scorer):
    def filter(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> BoolArray: ...

    def score(self, request: InferenceRequest, endpoints: Endpoints, state: ScoringState) -> FloatArray: ...


def test_kinds_follow_from_the_bases():
    assert kinds_of(Both) == (Filter, Scorer)
    assert kinds_of(PerEndpointScorer) == (Scorer,)
    assert kinds_of(Plugin) == ()
    assert kinds_of(dict) == ()


def test_every_kind_has_a_class_and_a_row():
    modules = (endpick.api, endpick.api.discovery, endpick.api.fleet, endpick.api.flow_control)
    bases = [value for module in modules for value in vars(module).values() if isinstance(value, type) and issubclass(value, Plugin)]

    assert {kind for base in bases for kind in kinds_of(base)} == set(KINDS)
    assert {base for base in bases if "kind" in vars(base)} == set(KINDS), "a class that names a kind has a row in the table"


without_docstrings = pytest.mark.skipif(
    request_path() == "compiled", reason="compiled classes have no docstrings; the sources beside them do"
)


@without_docstrings
def test_every_public_name_is_documented():
    undocumented = [
        name
        for name in endpick.api.__all__
        if not isinstance(getattr(endpick.api, name), str) and not (getattr(endpick.api, name).__doc__ or "").strip()
    ]

    assert undocumented == []


@without_docstrings
def test_every_public_method_of_a_public_class_is_documented():
    undocumented = [
        f"{name}.{attribute}"
        for name in endpick.api.__all__
        if isinstance(cls := getattr(endpick.api, name), type) and cls.__module__.startswith("endpick.api")
        for attribute, value in vars(cls).items()
        if callable(value) and not attribute.startswith("_") and not isinstance(value, type) and not value.__doc__
    ]

    assert undocumented == []


def test_endpick_keys_are_documented_and_plainly_named():
    keys = [value for value in vars(endpick.api.keys).values() if isinstance(value, DataKey)]

    assert len(keys) >= 10
    assert all(key.doc.endswith(".") and "/" not in key.name.removeprefix("llm-d.ai/") for key in keys)


def test_key_of_one_producer_is_another_key():
    key = DataKey("match", float, default_producer="approx")

    assert key.from_producer("") is key
    other = key.from_producer("precise")
    assert (other.name, other.producer, other.default_producer) == ("match@precise", "precise", None)
    assert other != key


def test_keys_are_equal_by_name():
    assert DataKey("a/b", float) == DataKey("a/b", str)
    assert len({DataKey("a/b", float), DataKey("a/b", float), DataKey("a/c", float)}) == 2


def test_parameters_are_closed_and_immutable():
    with pytest.raises(ValidationError, match="Extra inputs are not permitted"):
        Parameters.model_validate({"treshold": 1})


def test_prompt_is_rendered_once_and_only_when_asked():
    calls = []
    prompt = Prompt(lambda: calls.append(1) or (b"hello", b"you"))

    assert calls == []
    assert prompt.texts == (b"hello", b"you")
    assert prompt.estimated_tokens == 2 + 1
    assert calls == [1]


def test_media_beyond_the_1024th_are_shown_as_text():
    first = tuple(Media(Modality.IMAGE, f"i{number}") for number in range(1023))
    prompt = Prompt(lambda: (), lambda: ((b"t", *first), (Media(Modality.AUDIO, "a"), b"u", Media(Modality.IMAGE, "z"))))

    assert prompt.pieces == ((b"t", *first), (Media(Modality.AUDIO, "a"), b"u", b"z"))
    assert len(prompt.media) == 1024


def test_usage_tells_unknown_from_zero():
    assert Usage().cached_tokens is None
