"""Whatever one does to a good configuration: it is accepted, or a diagnostic points at what was done; never a traceback."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from endpick.config import load_config
from endpick.config.shape import fields_of, part_at
from endpick.diagnostics import Code, Diagnostic, Span, render_github, render_json, render_text
from unit.config.block_yaml import Emitter, Path, at, emit, paths

GOOD: dict[str, Any] = {
    "apiVersion": "endpick/v1alpha1",
    "kind": "EndpointPickerConfig",
    "featureGates": ["flowControl", "haPopulateNonLeaderDatastore=false"],
    "plugins": [
        {"type": "queue-scorer", "parameters": {"cap": 5, "nested": {"list": [1, "two"]}}},
        {"type": "label-selector-filter", "name": "canary", "from": "acme", "onFault": "FailClose"},
        {"type": "max-score-picker"},
    ],
    "schedulingProfiles": [
        {"name": "default", "plugins": [{"pluginRef": "canary"}, {"pluginRef": "queue-scorer", "weight": 2.5}]},
        {"name": "other", "plugins": [{"pluginRef": "max-score-picker"}]},
    ],
    "requestHandler": {"parsers": [{"pluginRef": "openai-parser"}]},
    "dataLayer": {
        "injectDefaults": False,
        "discovery": {"endpoints": {"pluginRef": "file"}},
        "sources": [{"pluginRef": "metrics", "collectors": [{"pluginRef": "core"}, {"pluginRef": "gpu"}]}],
        "crossReplica": {"syncInterval": "200ms"},
    },
    "flowControl": {
        "maxBytes": "1Gi",
        "maxRequests": 1000,
        "defaultRequestTTL": "1m30s",
        "enableEviction": True,
        "priorityBands": [{"priority": 1, "maxRequests": "5k"}, {"priority": 2, "orderingPolicyRef": "fcfs"}],
        "saturationDetector": {"pluginRef": "detector"},
    },
    "pluginPolicy": {"allowDistributions": ["acme"], "onUnused": "Ignore"},
}

OTHER_VALUES: tuple[Any, ...] = (None, True, 0, -3, 1.5, "", "text", "FailOpen", [], ["a"], [[]], {}, {"a": 1}, {"type": "b"})


PATHS = tuple(paths(GOOD))
FIELDS = tuple(path for path in PATHS if isinstance(path[-1], str) and part_at(path[:-1]) is not None)


def errors_of(text: str) -> list[Diagnostic]:
    diagnostics = load_config(text=text, name="c.yaml").diagnostics
    assert render_text(diagnostics, {"c.yaml": text}) or not diagnostics
    return [diagnostic for diagnostic in diagnostics if diagnostic.is_error]


def assert_at(errors: list[Diagnostic], emitter: Emitter, path: Path) -> None:
    """Every error lies in the node, or where its parent begins."""
    parent = emitter.extents[path[:-1]]
    allowed = {*emitter.extents.get(path, ()), parent.start, min(parent.start + 1, parent.stop - 1)}
    for error in errors:
        assert error.span is not None
        assert error.span.line in allowed, (path, error, emitter.text)


def test_the_good_document_is_good() -> None:
    assert load_config(text=emit(GOOD).text).diagnostics == ()


@given(st.sampled_from(PATHS))
def test_dropping_a_node(path: Path) -> None:
    document = deepcopy(GOOD)
    del at(document, path[:-1])[path[-1]]
    part = part_at(path[:-1]) if isinstance(path[-1], str) else None
    required = part is not None and fields_of(part)[str(path[-1])].is_required()

    emitter = emit(document)
    errors = errors_of(emitter.text)

    if required:
        assert [error.code for error in errors] == [Code.E0202]
        assert errors[0].path == path
    else:
        assert errors == []
    assert_at(errors, emitter, path)


@given(st.sampled_from(FIELDS), st.text("abcdefghijklmnopqrstuvwxyzABCXYZ", min_size=1, max_size=12))
def test_renaming_a_field(path: Path, name: str) -> None:
    parent = at(GOOD, path[:-1])
    part = part_at(path[:-1])
    assert part is not None
    if name in fields_of(part) or name in ("null", "true", "false", "Null", "True", "False"):
        return
    document = deepcopy(GOOD)
    renamed = {name if key == path[-1] else key: value for key, value in parent.items()}
    at(document, path[:-1]).clear()
    at(document, path[:-1]).update(renamed)

    emitter = emit(document)
    errors = errors_of(emitter.text)

    unknown = [error for error in errors if error.code is Code.E0201]
    assert [error.path for error in unknown] == [(*path[:-1], name)]
    line = emitter.extents[(*path[:-1], name)].start
    column = emitter.lines[line - 1].index(name) + 1
    assert unknown[0].span == Span("c.yaml", line, column, line, column + len(name))
    assert {error.code for error in errors} <= {Code.E0201, Code.E0202}
    assert_at(errors, emitter, (*path[:-1], name))


@given(st.sampled_from(PATHS), st.sampled_from(OTHER_VALUES))
def test_retyping_a_node(path: Path, value: Any) -> None:
    document = deepcopy(GOOD)
    at(document, path[:-1])[path[-1]] = value

    emitter = emit(document)

    assert_at(errors_of(emitter.text), emitter, path)


@given(st.sampled_from(PATHS))
def test_duplicating_a_node(path: Path) -> None:
    emitter = emit(GOOD, repeated=path)

    errors = errors_of(emitter.text)

    if isinstance(path[-1], str):
        assert [error.code for error in errors] == [Code.E0102]
        assert len(errors[0].labels) == 1
    assert_at(errors, emitter, path)


@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(OTHER_VALUES)), max_size=6))
def test_several_mistakes_at_once_never_make_it_fall_over(changes: list[tuple[Path, Any]]) -> None:
    document: Any = deepcopy(GOOD)
    for path, value in changes:
        try:
            at(document, path[:-1])[path[-1]] = deepcopy(value)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the parent away

    assert_sound(emit(document).text.encode())


@given(
    st.integers(0, len(emit(GOOD).text)),
    st.integers(0, 12),
    st.text(st.one_of(st.sampled_from("\t\n\r :-[]{}#&*!|>'\"%@`,?<=~\u2028\x85"), st.characters()), max_size=6),
)
def test_a_slip_of_the_keyboard_never_makes_it_fall_over(start: int, removed: int, typed: str) -> None:
    text = emit(GOOD).text

    assert_sound((text[:start] + typed + text[start + removed :]).encode("utf-8", errors="surrogatepass"))


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass"))))
def test_no_file_whatever_makes_it_fall_over(raw: bytes) -> None:
    assert_sound(raw)


def assert_sound(raw: bytes) -> None:
    loaded = load_config(text=raw, name="c.yaml")
    assert loaded.config is not None or loaded.has_errors
    lines = loaded.source.text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for diagnostic in loaded.diagnostics:
        for span in (diagnostic.span, *(label.span for label in diagnostic.labels)):
            assert span is not None
            assert 1 <= span.line <= span.end_line <= len(lines)
            assert 1 <= span.column <= len(lines[span.line - 1]) + 1
            assert (span.line, span.column) <= (span.end_line, span.end_column)
    sources = {"c.yaml": loaded.source.text}
    assert bool(render_text(loaded.diagnostics, sources)) == bool(loaded.diagnostics)
    assert json.loads(render_json(loaded.diagnostics))["errors"] == sum(d.is_error for d in loaded.diagnostics)
    assert len(render_github(loaded.diagnostics).splitlines()) == len(loaded.diagnostics)
