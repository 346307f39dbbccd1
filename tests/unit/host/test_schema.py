"""Parameter schemas: generated or given, closed, checked, never fetched."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from endpick.api import Duration, Parameters
from endpick.diagnostics import Code
from endpick.host.parameters import parameters_schema
from plugin_classes import load_class, scorer_class


def schemas(**facts):
    loading = load_class(scorer_class(**facts))
    assert loading.loaded is not None, loading.diagnostics
    return loading.loaded.schemas


def fault(**facts):
    (diagnostic,) = load_class(scorer_class(**facts)).diagnostics
    return diagnostic


class Inner(BaseModel):
    size: int = 1


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    size: int = 1


class Model(Parameters):
    inner: Inner = Inner()
    open: Open = Open()
    table: dict[str, int] = Field(default_factory=dict)
    queue_cap: int = Field(128, alias="queueCap", gt=0, description="Scores zero.")


def test_model_gives_a_closed_schema():
    (schema,) = schemas(parameters=Model)

    assert schema["additionalProperties"] is False
    assert schema["properties"]["queueCap"] == {
        "default": 128,
        "description": "Scores zero.",
        "exclusiveMinimum": 0,
        "title": "Queuecap",
        "type": "integer",
    }


def test_nested_models_are_closed_by_default():
    (schema,) = schemas(parameters=Model)

    assert schema["$defs"]["Inner"]["additionalProperties"] is False
    assert schema["$defs"]["Open"]["additionalProperties"] is True
    assert schema["properties"]["table"]["additionalProperties"] == {"type": "integer"}


def test_no_parameters_are_a_closed_schema_too():
    (schema,) = schemas()

    assert schema["properties"] == {}
    assert schema["additionalProperties"] is False


def test_a_given_schema_is_closed_at_its_top():
    given = {"properties": {"limit": {"type": "integer"}}}

    assert schemas(parameters_schema=given) == ({**given, "additionalProperties": False},)
    assert "additionalProperties" not in given, "the author's object stays as it is"


def test_a_given_schema_that_is_open_or_composed_is_left_alone():
    for given in [
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "unevaluatedProperties": False},
        {"properties": {"a": {}}, "allOf": [{"properties": {"b": {}}}]},
        {"type": "object"},
    ]:
        assert schemas(parameters_schema=given) == (given,)


def test_schema_beside_a_model_is_checked_and_shown():
    loaded = load_class(scorer_class(parameters=Model, parameters_schema={"properties": {"queueCap": {"maximum": 9}}})).loaded

    assert len(loaded.schemas) == 2
    assert parameters_schema(loaded)["properties"] == {"queueCap": {"maximum": 9}}


def test_an_invalid_schema_is_the_plugins_fault():
    for given, says in [
        ({"type": "objekt"}, "is invalid at $.type"),
        ({"properties": {"a": {"pattern": "("}}}, "is invalid at $.properties.a.pattern"),
        ({"$schema": "https://example.org/my-own-dialect"}, "is written in an unknown dialect, 'https://example.org/my-own-dialect'"),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "refers to '#/$defs/a', which it does not contain"),
        ({"properties": {"a": {"$ref": "#anchor"}}}, "refers to '#anchor', which it does not contain"),
        ([1, 2], "is not an object"),
        ({"default": object()}, "cannot be generated: TypeError"),
    ]:
        diagnostic = fault(parameters_schema=given)

        assert diagnostic.code is Code.E0405
        assert says in diagnostic.message
        assert "the configuration is not to blame" in diagnostic.help


def test_a_reference_to_another_document_is_refused():
    for given, target in [
        ({"properties": {"a": {"$ref": "https://example.org/a.json"}}}, "https://example.org/a.json"),
        ({"properties": {"a": {"$ref": "other.json#/a"}}}, "other.json#/a"),
        ({"$ref": "file:///etc/passwd"}, "file:///etc/passwd"),
        ({"items": {"anyOf": [{"$dynamicRef": "https://example.org/b"}]}}, "https://example.org/b"),
    ]:
        diagnostic = fault(parameters_schema=given)

        assert diagnostic.code is Code.E0404
        assert f"refers to another document, '{target}'" in diagnostic.message


def test_references_within_the_schema_are_fine():
    for given in [
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "integer"}}},
        {"properties": {"a": {"$ref": "#a"}}, "$defs": {"a": {"$anchor": "a"}}},
        {"properties": {"a": {"$ref": "https://acme.example/a"}}, "$defs": {"a": {"$id": "https://acme.example/a", "type": "integer"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {}}},
        {"properties": {"$ref": {"type": "string"}}, "examples": [{"$ref": "https://example.org/not-a-reference"}]},
    ]:
        assert len(schemas(parameters_schema=given)) == 1


def test_a_model_that_has_no_json_schema_is_the_plugins_fault():
    class Odd(Parameters):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        anything: Any = None
        handle: type(iter([]))

    diagnostic = fault(parameters=Odd)

    assert diagnostic.code is Code.E0405
    assert "cannot be generated: PydanticInvalidForJsonSchema" in diagnostic.message


class Timed(Parameters):
    every: Duration = 0.05


def test_default_of_a_duration_is_what_an_operator_would_write():
    (schema,) = schemas(parameters=Timed)

    assert schema["properties"]["every"]["default"] == "50ms"
