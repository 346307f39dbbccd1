"""Whatever one does to a good configuration of real plugins: it is planned, or errors point at what was done; never a traceback."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from endpick.config import load_config
from endpick.diagnostics import Diagnostic, render_text
from endpick.host.discovery import discover
from endpick.host.planning.planner import make_plan
from unit.config.block_yaml import Path, at, emit, paths

pytestmark = pytest.mark.long

GOOD: dict[str, Any] = {
    "apiVersion": "endpick/v1alpha1",
    "kind": "EndpointPickerConfig",
    "featureGates": ["haPopulateNonLeaderDatastore=false"],
    "plugins": [
        {"type": "file-discovery", "name": "pool", "parameters": {"path": "endpoints.yaml", "watchFile": True}},
        {"type": "label-selector-filter", "name": "canary", "onFault": "FailClose", "parameters": {"matchLabels": {"track": "canary"}}},
        {"type": "queue-scorer"},
        {"type": "approx-prefix-cache-producer", "name": "index", "parameters": {"autoTune": False, "lruCapacityPerServer": 100}},
        {"type": "prefix-cache-scorer", "name": "prefix", "parameters": {"prefixMatchInfoProducerName": "index", "matchLengthWeight": 0.5}},
        {"type": "max-score-picker", "parameters": {"maxNumOfEndpoints": 1}},
        {"type": "single-profile-handler"},
        {"type": "metrics-data-source", "name": "pages", "parameters": {"path": "/metrics"}},
        {"type": "core-metrics-extractor", "name": "core"},
        {"type": "openai-parser"},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "canary"},
                {"pluginRef": "queue-scorer", "weight": 2.5},
                {"pluginRef": "prefix", "weight": 3},
                {"pluginRef": "max-score-picker"},
            ],
        }
    ],
    "requestHandler": {"parsers": [{"pluginRef": "openai-parser"}]},
    "dataLayer": {
        "discovery": {"endpoints": {"pluginRef": "pool"}},
        "sources": [{"pluginRef": "pages", "collectors": [{"pluginRef": "core"}]}],
    },
    "pluginPolicy": {"allowDistributions": ["endpick"]},
}
PATHS = tuple(paths(GOOD))
FIELDS = tuple(path for path in PATHS if isinstance(path[-1], str))
INSTALLED = discover()
OTHER_VALUES: tuple[Any, ...] = (
    *(None, True, 0, -3, 1.5, "", "text", [], ["a"], [[]], {}, {"a": 1}),
    *({"type": "queue-scorer"}, {"pluginRef": "prefix"}, "random-picker", "default", "core"),
)


def errors_of(text: str) -> list[Diagnostic]:
    outcome = make_plan(load_config(text=text, name="c.yaml"), INSTALLED)
    errors = [one for one in outcome.diagnostics if one.is_error]
    assert (outcome.plan is None) == bool(errors)
    assert "error" in render_text(errors, {"c.yaml": text}) or not errors
    return errors


def check(document: dict[str, Any], path: Path, *, was: Path | None = None, repeated: Path | None = None) -> None:
    """Every error, or one of its labels, lies in the node, where its parent begins, beside it in its entry, or at a reference to it."""
    emitter = emit(document, repeated)
    parent = emitter.extents[path[:-1]]
    allowed = {*emitter.extents.get(path, ()), parent.start, min(parent.start + 1, parent.stop - 1)}
    if is_entry(at(document, path[:-1])):
        allowed |= {*parent}
    concerned = names_defined(GOOD, was or path) | names_defined(document, path)
    for place, node in nodes(document):
        if is_entry(node) and str(node.get("pluginRef")) in concerned:
            allowed |= {*emitter.extents[place]}
    for error in errors_of(emitter.text):
        assert error.span is not None
        lines = {error.span.line, *(label.span.line for label in error.labels)}
        assert lines & allowed, (path, error, emitter.text)


def is_entry(node: Any) -> bool:
    """What defines an instance, or refers to one: its fields judge each other, a type its parameters and a reference its weight."""
    return isinstance(node, dict) and ("pluginRef" in node or "type" in node)


def nodes(document: Any) -> list[tuple[Path, Any]]:
    return [(path, at(document, path)) for path in paths(document)]


def names_defined(document: dict[str, Any], path: Path) -> set[str]:
    """The instances that the node is a part of, or consists of, and those that name one of them in their parameters."""
    plugins = document.get("plugins")
    entries = [(index, one) for index, one in enumerate(plugins if isinstance(plugins, list) else ()) if isinstance(one, dict)]
    own = [one for index, one in entries if path == ("plugins",) or path[:2] == ("plugins", index)]
    names = {str(one[key]) for one in own for key in ("name", "type") if key in one}
    naming = [one for _, one in entries if isinstance(one.get("parameters"), dict) and names & {*map(str, one["parameters"].values())}]
    return names | {str(one.get("name")) for one in naming}


def test_the_good_document_is_good() -> None:
    assert make_plan(load_config(text=emit(GOOD).text, name="c.yaml"), INSTALLED).diagnostics == ()


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(PATHS))
def test_dropping_a_node(path: Path) -> None:
    document = deepcopy(GOOD)
    del at(document, path[:-1])[path[-1]]

    check(document, path)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(FIELDS), st.sampled_from(("{}x", "{}_", "name", "parameters", "pluginRef")))
def test_renaming_a_field(path: Path, pattern: str) -> None:
    parent, name = at(GOOD, path[:-1]), pattern.format(path[-1])
    document = deepcopy(GOOD)
    changed = at(document, path[:-1])
    changed.clear()
    changed.update({name if key == path[-1] else key: deepcopy(value) for key, value in parent.items() if key == path[-1] or key != name})

    check(document, (*path[:-1], name), was=path)


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(PATHS), st.sampled_from(OTHER_VALUES))
def test_retyping_a_node(path: Path, value: Any) -> None:
    document = deepcopy(GOOD)
    at(document, path[:-1])[path[-1]] = deepcopy(value)

    check(document, path)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(PATHS))
def test_duplicating_a_node(path: Path) -> None:
    check(GOOD, path, repeated=path)
