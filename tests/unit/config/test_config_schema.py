"""The editor schema says the same about a document as loading it does."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
from jsonschema import Draft7Validator

from endpick.config import load_config
from endpick.config.schema import editor_schema, to_draft07

TEST_DATA = Path(os.environ.get("ENDPICK_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
UPSTREAM_CONFIGS = sorted((TEST_DATA / "epp-configs").glob("*.yaml"))

TYPES: dict[str, Any] = {
    "queue-scorer": {
        "title": "QueueParameters",
        "description": "Parameters of queue-scorer.",
        "type": "object",
        "properties": {"cap": {"$ref": "#/$defs/Cap", "description": "The cap."}},
        "additionalProperties": False,
        "$defs": {"Cap": {"type": "integer", "minimum": 1}},
    },
    "label-filter": {
        "type": "object",
        "properties": {"label": {"type": "string"}, "title": {"type": "string"}},
        "required": ["label"],
        "additionalProperties": False,
    },
}

SUPERSET = {"apiVersion": "endpick/v1alpha1", "kind": "EndpointPickerConfig"}
LLM_D = {"apiVersion": "llm-d.ai/v1", "kind": "EndpointPickerConfig"}


def problems(document: Any, types: dict[str, Any] = TYPES) -> list[str]:
    schema = editor_schema(types)
    Draft7Validator.check_schema(schema)
    return sorted(error.json_path for error in Draft7Validator(schema).iter_errors(document))


@pytest.mark.skipif(not UPSTREAM_CONFIGS, reason="set ENDPICK_TEST_DATA to a directory with epp-configs/")
@pytest.mark.parametrize("path", UPSTREAM_CONFIGS, ids=lambda path: path.stem)
def test_a_configuration_of_llm_d_has_no_problem(path: Path) -> None:
    assert problems(load_config(path).source.data, {}) == []


def test_parameters_are_judged_by_the_schema_of_their_type_alone() -> None:
    for section, expected in [
        ({"plugins": [{"type": "queue-scorer", "parameters": {"cap": 5}}]}, []),
        ({"plugins": [{"type": "queue-scorer", "parameters": {"cap": 0}}]}, ["$.plugins[0].parameters.cap"]),
        ({"plugins": [{"type": "queue-scorer", "parameters": {"cup": 5}}]}, ["$.plugins[0].parameters"]),
        ({"plugins": [{"type": "queue-scorer", "parameters": None}]}, []),
        ({"plugins": [{"type": "queue-scorrer"}]}, ["$.plugins[0].type"]),
        ({"plugins": [{"type": "label-filter"}]}, ["$.plugins[0]"]),
        ({"plugins": [{"type": "label-filter", "parameters": None}]}, ["$.plugins[0].parameters"]),
        ({"plugins": [{"type": "label-filter", "parameters": {}}]}, ["$.plugins[0].parameters"]),
        ({"plugins": [{"type": "label-filter", "parameters": {"label": "a", "title": "b"}}]}, []),
        ({"plugins": [{"name": "a"}]}, ["$.plugins[0]"]),
    ]:
        assert problems({**LLM_D, **section}) == expected


def test_fields_of_the_superset_need_its_api_version() -> None:
    for section, path in [
        ({"models": [{"name": "a", "targets": [{"model": "b"}]}]}, "$.models"),
        ({"pluginPolicy": {}}, "$.pluginPolicy"),
        ({"plugins": [{"type": "queue-scorer", "from": "a"}]}, "$.plugins[0].from"),
        ({"plugins": [{"type": "queue-scorer", "onFault": "FailOpen"}]}, "$.plugins[0].onFault"),
        ({"plugins": [{"type": "queue-scorer", "maxAge": "2s"}]}, "$.plugins[0].maxAge"),
        ({"dataLayer": {"sources": [{"pluginRef": "a", "collectors": []}]}}, "$.dataLayer.sources[0].collectors"),
    ]:
        assert problems({**SUPERSET, **section}) == []
        assert problems({**LLM_D, **section}) == [path]


def test_editor_names_the_api_version_of_a_field() -> None:
    current, former = (rule["then"]["properties"] for rule in cast("list[Any]", editor_schema({})["allOf"]))
    forbidden = former

    assert sorted(former) == ["dataLayer", "models", "objectives", "pluginPolicy", "plugins"], (
        "parts without such a field are not mentioned"
    )
    assert sorted(set(current) - set(former)) == ["parser", "saturationDetector"]
    assert former["dataLayer"]["properties"]["crossReplica"]["errorMessage"] == "'crossReplica' needs apiVersion llm-d.ai/v1"
    assert current["dataLayer"]["properties"]["peerDiscovery"]["errorMessage"] == "'peerDiscovery' is now dataLayer.discovery.peers"
    assert forbidden["models"] == {"type": "null", "errorMessage": "'models' needs apiVersion endpick/v1alpha1"}
    assert forbidden["plugins"]["items"]["properties"]["from"]["errorMessage"] == "'from' needs apiVersion endpick/v1alpha1"


def test_the_schema_and_loading_give_the_same_verdict() -> None:
    for section in [
        {"bogus": 1},
        {"plugins": None},
        {"plugins": {}},
        {"plugins": [None]},
        {"plugins": [{"type": ""}]},
        {"plugins": [{"type": "queue-scorer", "name": ""}]},
        {"plugins": [{"type": "queue-scorer", "onFault": "Ignore"}]},
        {"plugins": [{"type": "queue-scorer", "onFault": None}]},
        {"pluginPolicy": {"onUnused": None}},
        {"schedulingProfiles": [{"name": "a", "plugins": [{"pluginRef": "b", "weight": -1}]}]},
        {"schedulingProfiles": [{"name": "a", "plugins": [{"pluginRef": "b", "weight": "1"}]}]},
        {"schedulingProfiles": [{"plugins": []}]},
        {"featureGates": ["flowControl=true", " haPopulateNonLeaderDatastore = F "]},
        {"featureGates": ["flowControl=maybe"]},
        {"featureGates": ["dataLayer"]},
        {"flowControl": {"maxBytes": "1Gi", "maxRequests": 5, "defaultRequestTTL": "1m30s"}},
        {"flowControl": {"maxBytes": "1GB"}},
        {"flowControl": {"maxRequests": -5}},
        {"flowControl": {"maxRequests": True}},
        {"flowControl": {"defaultRequestTTL": "-1s"}},
        {"flowControl": {"defaultRequestTTL": 60}},
        {"flowControl": {"priorityBands": [{"priority": 1.0}]}},
        {"flowControl": {"priorityBands": [{"priority": 1.5}]}},
        {"dataLayer": {"injectDefaults": "on"}},
        {"pluginPolicy": {"onUnused": "ignore"}},
        {"models": [{}]},
    ]:
        document = {**SUPERSET, **section}

        loaded = load_config(text=json.dumps(document))

        assert bool(problems(document)) is loaded.has_errors


def test_editor_schema_describes_fields_and_types() -> None:
    schema = editor_schema(TYPES)
    definitions: Any = schema["definitions"]
    properties: Any = schema["properties"]
    plugin = definitions["PluginSpec"]

    assert schema["title"] == "endpick configuration"
    assert editor_schema({}, title="other")["title"] == "other"
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert plugin["properties"]["type"]["enum"] == ["label-filter", "queue-scorer"]
    assert plugin["defaultSnippets"] == [
        {"label": "label-filter", "description": "", "body": {"type": "label-filter"}},
        {"label": "queue-scorer", "description": "Parameters of queue-scorer.", "body": {"type": "queue-scorer"}},
    ]
    assert properties["parser"]["deprecationMessage"] == "use requestHandler.parsers"
    for name, definition in definitions.items():
        if not name.startswith("parameters-of-"):
            assert all("markdownDescription" in field for field in definition["properties"].values()), name


def test_the_schema_is_the_same_every_time() -> None:
    assert json.dumps(editor_schema(TYPES)) == json.dumps(editor_schema(dict(reversed(TYPES.items()))))


def test_modern_keywords_become_those_of_draft_07() -> None:
    converted = to_draft07(
        {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "$id": "https://example.com/x",
            "title": "T",
            "properties": {"title": {"type": "string", "default": {"$ref": "#/$defs/kept"}}},
            "prefixItems": [{"type": "string"}],
            "items": {"$ref": "#"},
            "dependentRequired": {"a": ["b"]},
            "anyOf": [{"$ref": "#/$defs/A", "description": "why"}],
            "$defs": {"A": {"const": 1}},
        },
        "#/definitions/x",
    )

    assert converted == {
        "properties": {"title": {"type": "string", "default": {"$ref": "#/$defs/kept"}}},
        "items": [{"type": "string"}],
        "additionalItems": {"$ref": "#/definitions/x"},
        "dependencies": {"a": ["b"]},
        "anyOf": [
            {
                "description": "why",
                "markdownDescription": "why",
                "allOf": [{"$ref": "#/definitions/x/definitions/A"}],
            }
        ],
        "definitions": {"A": {"const": 1}},
    }


def test_what_stands_beside_a_reference_stays_beside_it() -> None:
    converted = to_draft07({"$ref": "#/$defs/A", "allOf": [{"minimum": 1}], "$defs": {"A": {"type": "integer"}}})

    assert converted == {"allOf": [{"$ref": "#/definitions/A"}, {"minimum": 1}], "definitions": {"A": {"type": "integer"}}}


def test_items_after_a_tuple_are_open_by_default() -> None:
    assert to_draft07({"prefixItems": [{"const": 1}]}) == {"items": [{"const": 1}], "additionalItems": True}
    assert to_draft07({"prefixItems": [{"const": 1}], "items": False}) == {"items": [{"const": 1}], "additionalItems": False}
