"""Schemas judged without jsonschema: what is called fine must be fine, and what plugins really use must be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, SchemaError

from endpick.host.plain_schema import is_plainly_valid, plainly_satisfies

PUBLISHED = sorted((Path(__file__).parents[3] / "schemas" / "plugins").glob("*.json"))
NAMES = st.sampled_from(["a", "b", "c"])
SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 2.5, float("nan")]) | st.sampled_from(["", "a", "ab", "A1"])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=6)
REFERENCES = st.sampled_from(["#/$defs/a", "#/$defs/b", "#", "#/properties/a", "#/$defs/a/items", "elsewhere.json", ""])
WORDS = st.one_of(SCALARS, st.lists(SCALARS, max_size=2))


def keywords(inner):
    """Any keyword with something that may or may not belong there."""
    table = st.dictionaries(NAMES, inner, max_size=2)
    said = {
        "type": st.sampled_from(["object", "array", "string", "boolean", "null", "number", "integer", "text"]) | WORDS,
        "properties": table | SCALARS,
        "additionalProperties": st.booleans() | inner,
        "required": st.lists(NAMES, max_size=2) | WORDS,
        "items": inner | st.booleans(),
        "anyOf": st.lists(inner, max_size=2),
        "enum": st.lists(SCALARS, max_size=3) | SCALARS,
        "const": VALUES,
        "$ref": REFERENCES,
        "pattern": st.sampled_from(["^a", "(", ""]) | SCALARS,
        "title": WORDS,
        "examples": WORDS,
        "default": VALUES,
        "deprecated": WORDS,
        "oneOf": st.lists(inner, max_size=1),
        "multipleOf": st.just(2),
        "madeUp": SCALARS,
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-2, 2) | SCALARS),
        **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), st.integers(-1, 2) | SCALARS),
    }
    return st.fixed_dictionaries({}, optional=said)


PARTS = st.recursive(keywords(st.just({})), keywords, max_leaves=4)
DEFINITIONS = st.just({}) | st.fixed_dictionaries({"$defs": st.dictionaries(NAMES, PARTS, max_size=2)})
SCHEMAS = st.builds(lambda schema, definitions: {**schema, **definitions}, PARTS, DEFINITIONS)


@settings(max_examples=400, deadline=None)  # one in ten is plain
@given(SCHEMAS, VALUES)
def test_nothing_is_called_fine_that_the_library_does_not_call_fine(schema, value):
    if not is_plainly_valid(schema):
        assert not plainly_satisfies(schema, value)
        return
    try:
        Draft202012Validator.check_schema(schema, format_checker=Draft202012Validator.FORMAT_CHECKER)
    except SchemaError as error:
        raise AssertionError("an invalid schema was called plainly valid") from error
    if plainly_satisfies(schema, value):
        assert Draft202012Validator(schema).is_valid(value)


@pytest.mark.parametrize("path", PUBLISHED, ids=lambda path: path.stem)
def test_the_schemas_of_the_built_in_plugins_are_plain(path):
    assert is_plainly_valid(json.loads(path.read_text()))


NESTED = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/N"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"N": {"type": "null"}},
}


@pytest.mark.parametrize(
    ("schema", "satisfying", "other"),
    [
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 4}, [1, 3], [0, 4, "1", True, None]),
        ({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, [0.5, 1], [0, 1.5, False]),
        ({"type": "string", "minLength": 1, "maxLength": 2, "pattern": "^[ab]"}, ["a", "bc"], ["", "abc", "ca", 1]),
        ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}, [[True]], [[], [1], [True] * 3, {}]),
        ({"anyOf": [{"type": "null"}, {"enum": ["on", "off"]}]}, [None, "on"], ["of", 0, []]),
        ({"const": "fixed"}, ["fixed"], ["other", None]),
        (NESTED, [{"a": None}], [{}, {"a": 1}, {"a": None, "b": 1}, []]),
        ({"type": "object", "additionalProperties": {"type": "string"}}, [{}, {"x": "y"}], [{"x": 1}, {1: 1}]),
    ],
)
def test_each_keyword_asks_what_it_should(schema, satisfying, other):
    assert is_plainly_valid(schema)
    assert [plainly_satisfies(schema, value) for value in satisfying] == [True] * len(satisfying)
    assert [plainly_satisfies(schema, value) for value in other] == [False] * len(other)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"type": "text"},
        {"type": ["string", "null"]},
        {"minLength": -1},
        {"pattern": "("},
        {"required": ["a", "a"]},
        {"$ref": "#/$defs/missing"},
        {"$ref": "https://elsewhere.example/schema.json", "$defs": {}},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"properties": {"a": {"$defs": {}}}},
        {"patternProperties": {}},
        {"$id": "here"},
    ],
)
def test_what_is_wrong_or_unusual_is_left_to_the_library(schema):
    assert not is_plainly_valid(schema)


def test_a_schema_that_refers_to_itself_without_end_is_no_endless_work():
    endless = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}

    assert is_plainly_valid(endless)
    assert not plainly_satisfies(endless, {})
