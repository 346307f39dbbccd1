"""Blocks of parameters: the typed object, or every mistake at its exact place."""

from __future__ import annotations

import re
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from endpick.api import Parameters
from endpick.api.plugin import ignored
from endpick.config.source import read_source
from endpick.diagnostics import Code, has_errors
from endpick.host.parameters import ParameterSource, check_parameters, deprecated_parameters, ineffective_parameters
from endpick.host.resolution import Reference
from plugin_classes import load_class, scorer_class


class Near(BaseModel):
    kind: Literal["near"]
    metres: float


class Same(BaseModel):
    kind: Literal["same"]
    label: str


class Inner(BaseModel):
    size: int = Field(3, description="How big.")
    names: list[str] = Field(default_factory=list, max_length=2)
    tint: Annotated[str, ignored("tint", "name a colour")] = ""


class Model(Parameters):
    must: str = Field(description="Has no default.")
    queue_cap: Annotated[int, Field(alias="queueCap", gt=0, description="Queue length that scores zero.")] = 128
    mode: Literal["fast", "slow"] = "fast"
    ratio: float = Field(0.5, ge=0, le=1)
    maybe: int | None = None
    either: int | str | list[int] = 1
    inner: Inner = Inner()
    rule: Annotated[Near | Same, Field(discriminator="kind")] | None = None
    table: dict[str, int] = Field(default_factory=dict)
    old: str = Field("", deprecated=True, description="Use mode.")

    @field_validator("must")
    @classmethod
    def _no_shouting(cls, value: str) -> str:
        if value.isupper():
            raise ValueError("HTTP frowns on shouting")
        if value == "crash":
            raise RuntimeError("validator crashed")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Model:
        if self.mode == "slow" and self.ratio == 1:
            raise ValueError("slow and 1 exclude each other")
        return self


LOADED = load_class(scorer_class(parameters=Model)).loaded
PATH = ("plugins", 0, "parameters")


def check(block):
    """The outcome for a document with this block, and the document."""
    text = "plugins:\n  - type: acme.scorer\n" + "".join(f"    {line}\n" for line in block.splitlines())
    source, mistakes = read_source(text.encode(), "c.yaml")
    assert mistakes == ()
    raw = source.data["plugins"][0].get("parameters", {})
    reference = Reference("acme.scorer", "busy", span=source.value_span(("plugins", 0, "type")), path=("plugins", 0, "type"))
    place = ParameterSource(reference, PATH, source)
    return check_parameters(LOADED, raw, place), deprecated_parameters(LOADED, raw, place), text


def under(text, span):
    """What a span covers."""
    assert span.line == span.end_line
    return text.splitlines()[span.line - 1][span.column - 1 : span.end_column - 1]


MISTAKES = [
    ("{must: x, queueCap: many}", "E0401", "many", "parameter 'queueCap' of busy (acme.scorer) must be an integer, not 'many'"),
    ("{must: x, queueCap: 0}", "E0401", "0", "parameter 'queueCap' of busy (acme.scorer) must be greater than 0, not 0"),
    ("{must: x, queue_cap: 5}", "E0402", "queue_cap", "unknown parameter 'queue_cap' for busy (acme.scorer)"),
    ("{must: x, ratio: 2}", "E0401", "2", "must be at most 1, not 2"),
    ("{must: x, mode: fsat}", "E0401", "fsat", "must be 'fast' or 'slow', not 'fsat'"),
    ("{must: x, maybe: y}", "E0401", "y", "must be an integer or null, not 'y'"),
    ("{must: x, either: {}}", "E0401", "{}", "must be an integer, a string or a list, not {}"),
    ("{must: x, either: [z]}", "E0401", "z", "parameter 'either[0]' of busy (acme.scorer) must be an integer, not 'z'"),
    ("{must: x, inner: {sise: 1}}", "E0402", "sise", "unknown parameter 'sise' for"),
    (
        "{must: x, inner: {names: [a, b, c]}}",
        "E0401",
        "[a, b, c]",
        "'inner.names' of busy (acme.scorer) must have at most 2 items, not 3",
    ),
    ("{must: x, inner: {names: [a, 1]}}", "E0401", "1", "parameter 'inner.names[1]' of busy (acme.scorer) must be a string, not 1"),
    (
        "{must: x, rule: {kind: near, metres: far}}",
        "E0401",
        "far",
        "'rule.metres' of busy (acme.scorer) must be a number, not 'far'",
    ),
    ("{must: x, rule: {kind: near, label: l, metres: 1}}", "E0402", "label", "unknown parameter 'label'"),
    ("{must: x, rule: {kind: same}}", "E0406", "rule", "parameter 'rule.label' of busy (acme.scorer) is missing"),
    ("{must: x, table: {a: b}}", "E0401", "b", "parameter 'table.a' of busy (acme.scorer) must be an integer, not 'b'"),
    ("{must: SHOUT}", "E0401", "SHOUT", "is not allowed: HTTP frowns on shouting"),
    ("{must: x, mode: slow, ratio: 1}", "E0401", "parameters", "the parameters of busy (acme.scorer) are not allowed: slow and 1 exclude"),
    ("{queueCap: 3}", "E0406", "parameters", "parameter 'must' of busy (acme.scorer) is missing"),
    ("{must: null}", "E0401", "null", "must be a string, not null"),
]


@pytest.mark.parametrize(("block", "code", "place", "says"), MISTAKES)
def test_mistake_is_reported_at_its_place(block, code, place, says):
    outcome, _, text = check(f"parameters: {block}")
    (diagnostic,) = outcome

    assert diagnostic.code.name == code
    assert under(text, diagnostic.span) == place
    assert says in diagnostic.message
    assert diagnostic.plugin.distribution == "acme"
    assert diagnostic.path[:3] == PATH


def test_missing_parameter_without_block_is_reported_at_the_type():
    (diagnostic,), _, text = check("name: busy")

    assert (diagnostic.code, under(text, diagnostic.span)) == (Code.E0406, "acme.scorer")
    assert diagnostic.notes == ("must: Has no default.",)


def test_every_mistake_is_reported():
    outcome, _, _ = check("parameters: {queueCap: 0, mode: fsat, ratio: 7, inner: {size: big}, rule: {kind: near}, what: 1}")

    assert sorted(diagnostic.code.name for diagnostic in outcome) == ["E0401"] * 4 + ["E0402", "E0406", "E0406"]


def test_model_does_not_repeat_schema_errors():
    outcome, _, _ = check("parameters: {must: SHOUT, queueCap: 0, inner: {size: big}}")

    assert [diagnostic.message.partition(" of ")[0] for diagnostic in outcome] == [
        "parameter 'queueCap'",
        "parameter 'inner.size'",
        "parameter 'must'",
    ]


def test_suggestion_requires_a_close_name():
    (near,), _, _ = check("parameters: {must: x, queCap: 1}")
    (far,), _, _ = check("parameters: {must: x, zebra: 1}")
    (choice,), _, _ = check("parameters: {must: x, mode: fastt}")

    assert near.help == "did you mean 'queueCap'?"
    assert far.help is None
    assert far.notes == ("known are either, inner, maybe, mode, must, old, queueCap, ratio, rule, table",)
    assert choice.help == "did you mean 'fast'?"


def test_given_name_is_not_suggested():
    (diagnostic,), _, _ = check("parameters: {must: x, queueCap: 1, queueCapp: 2}")

    assert diagnostic.help is None


def test_description_is_a_note():
    (diagnostic,), _, _ = check("parameters: {must: x, queueCap: 0}")
    (inner,), _, _ = check("parameters: {must: x, inner: {size: big}}")

    assert diagnostic.notes == ("queueCap: Queue length that scores zero.",)
    assert inner.notes == ("inner.size: How big.",)


def test_merged_value_has_a_label_at_the_merge():
    outcome, _, text = check("parameters:\n  inner: &base {size: big}\n  must: x\n  rule: {kind: near, <<: *base, metres: 1}")

    sizes = [diagnostic for diagnostic in outcome if "size" in diagnostic.message]
    assert [under(text, diagnostic.span) for diagnostic in sizes] == ["big", "size"]
    assert sizes[1].labels[0].span.line == 6


def test_valid_block_becomes_the_model():
    parameters, deprecated, _ = check("parameters: {must: x, queueCap: 3.0, rule: {kind: near, metres: 2}}")

    assert isinstance(parameters, Model)
    assert (parameters.queue_cap, type(parameters.queue_cap)) == (3, int), "1.0 is an integer in JSON Schema"
    assert parameters.rule == Near(kind="near", metres=2.0)
    assert deprecated == ()


def test_deprecated_parameter_is_a_warning():
    parameters, (warning,), text = check("parameters: {must: x, old: y}")

    assert isinstance(parameters, Model)
    assert (warning.code, under(text, warning.span), warning.help) == (Code.W0401, "old", "Use mode.")
    assert not has_errors([warning])


def test_nested_parameter_without_effect_is_found():
    text = "plugins:\n  - type: acme.scorer\n    parameters: {must: x, inner: {size: 1, tint: red}}\n"
    source, _ = read_source(text.encode(), "c.yaml")

    (warning,) = ineffective_parameters(
        LOADED, source.data["plugins"][0]["parameters"], ParameterSource(Reference(LOADED.type), PATH, source)
    )

    assert (warning.code, under(text, warning.span), warning.help) == (Code.W0402, "tint", "name a colour")
    assert "parameter 'inner.tint' of acme.scorer" in warning.message
    assert ineffective_parameters(LOADED, {"must": "x", "inner": {"size": 1}}, ParameterSource(Reference(LOADED.type))) == ()


def test_crashing_validator_is_a_fault_of_the_plugin():
    (diagnostic,), _, text = check("parameters: {must: crash}")

    assert (diagnostic.code, under(text, diagnostic.span)) == (Code.E0403, "parameters")
    assert "cannot judge its parameters: RuntimeError: validator crashed" in diagnostic.message
    assert "fault of acme" in diagnostic.help


def test_schema_without_model_gives_attributes():
    given_schema = {"properties": {"limit": {"type": "integer"}, "nested": {"type": "object"}}}
    loaded = load_class(scorer_class(parameters_schema=given_schema)).loaded

    parameters = check_parameters(loaded, {"limit": 3, "nested": {"a": 1}})

    assert isinstance(parameters, Parameters)
    assert (parameters.limit, parameters.nested) == (3, {"a": 1})


def test_schema_and_model_both_apply():
    loaded = load_class(scorer_class(parameters=Model, parameters_schema={"properties": {"queueCap": {"maximum": 9}, "must": {}}})).loaded

    (diagnostic,) = check_parameters(loaded, {"must": "x", "queueCap": 10})
    assert "must be at most 9, not 10" in diagnostic.message
    assert check_parameters(loaded, {"must": "x", "queueCap": 9}).queue_cap == 9


PREDICATES = [
    ({"const": 3}, 4, "must be 3, not 4"),
    ({"exclusiveMaximum": 3}, 3, "must be less than 3, not 3"),
    ({"multipleOf": 16}, 17, "must be a multiple of 16, not 17"),
    ({"minLength": 2}, "a", "must have at least 2 characters, not 1"),
    ({"maxLength": 2}, "abc", "must have at most 2 characters, not 3"),
    ({"minItems": 1}, [], "must have at least 1 items, not 0"),
    ({"minProperties": 1}, {}, "must have at least 1 entries, not 0"),
    ({"maxProperties": 0}, {"a": 1}, "must have at most 0 entries, not 1"),
    ({"uniqueItems": True}, [1, 1], "must not hold the same item twice, as [1, 1] does"),
    ({"pattern": "^a"}, "b", "must match the pattern ^a, unlike 'b'"),
    ({"type": ["integer", "boolean"]}, "x" * 80, f"must be an integer or true or false, not '{'x' * 58}…"),
    ({"enum": [1, "two", None]}, 3, "must be 1, 'two' or null, not 3"),
    ({"not": {}}, 1, "is not allowed: 1 should not be valid under {}"),
    ({"oneOf": [{"minimum": 1}, {"minimum": 2}]}, 3, "has several of the allowed forms at once"),
    (
        {"anyOf": [{"minimum": 5}, {"multipleOf": 2}]},
        3,
        "has none of the allowed forms: must be at least 5, not 3 or must be a multiple of 2, not 3",
    ),
    ({"propertyNames": {"maxLength": 2}}, {"abc": 1}, "unknown parameter 'abc' for acme.scorer"),
    (
        {"type": "object", "properties": {"propertyNames": {"maxLength": 2}}},
        {"propertyNames": "abc"},
        "'p.propertyNames' of acme",
    ),
    ({"dependentRequired": {"a": ["b"]}}, {"a": 1}, "is not allowed: 'b' is a dependency of 'a'"),
    ({"type": "object", "unevaluatedProperties": False, "allOf": [{"properties": {"a": {}}}]}, {"a": 1, "b": 2}, "unknown parameter 'b'"),
    ({"patternProperties": {"^x": {}}, "additionalProperties": False}, {"xa": 1, "y": 2}, "unknown parameter 'y'"),
]


def test_json_schema_rule_is_worded():
    for rule, value, says in PREDICATES:
        loaded = load_class(scorer_class(parameters_schema={"properties": {"p": rule}})).loaded

        (diagnostic,) = check_parameters(loaded, {"p": value})

        assert says in diagnostic.message


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3)
    | st.sampled_from(["fast", "near", "same"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "metres", "label", "size", "names"]), inner),
    max_leaves=6,
)
blocks = st.dictionaries(st.sampled_from([*Model.model_json_schema()["properties"], "queue_cap", "zebra"]), values, max_size=5)


@given(blocks)
def test_any_block_is_accepted_or_reported_within_it(block):
    outcome = check_parameters(LOADED, block, ParameterSource(Reference(LOADED.type), PATH))

    if isinstance(outcome, Parameters):
        assert Model.model_validate(block) == outcome
        return
    assert outcome
    for diagnostic in outcome:
        inner = diagnostic.path[3:]
        assert diagnostic.path[:3] == PATH
        assert not inner or inner[0] in block or diagnostic.code is Code.E0406
        assert re.match(r"(unknown )?parameter |the parameters of ", diagnostic.message)


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int


class Vague(Parameters):
    box: Annotated[Closed, WithJsonSchema({"type": "object"})]


def test_model_errors_are_worded_like_schema_errors():
    found = check_parameters(load_class(scorer_class(parameters=Vague)).loaded, {"box": {"bogus": 1}})

    assert [(one.code, one.path, one.message) for one in found] == [
        (Code.E0406, ("box",), "parameter 'box.size' of acme.scorer is missing"),
        (Code.E0402, ("box", "bogus"), "unknown parameter 'bogus' for acme.scorer"),
    ]


def test_forbidden_name_is_reported_at_the_name():
    schema = {"properties": {"table": {"type": "object", "propertyNames": {"pattern": "^a"}}}}
    loaded = load_class(scorer_class(parameters_schema=schema)).loaded

    (diagnostic,) = check_parameters(loaded, {"table": {"b": 1, "ab": 2}})

    assert (diagnostic.code, diagnostic.path) == (Code.E0402, ("table", "b"))
