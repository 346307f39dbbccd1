"""Each mistake of text and shape is reported at its exact place: «» marks the span, ⟦⟧ the labels."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from endpick.config import load_config
from endpick.diagnostics import Code, Diagnostic, Span, render_text

HEAD = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\n"
SUPERSET = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"
GATE = f"{HEAD}featureGates: [flowControl]\n"

CASES = {
    "a bracket is not closed": ("E0101", f"{HEAD}plugins: ⟦[⟧{{type: a}}\n«p»arser: b\n"),
    "a colon in a plain value": ("E0101", f"{HEAD}plugins: a«:» b\n"),
    "an undefined alias": ("E0101", f"{HEAD}plugins: «*»a\n"),
    "a control character": ("E0101", f"{HEAD}plugins: «\x07»\n"),
    "another YAML version": ("E0101", f"«%YAML 1.1»\n---\n{HEAD}"),
    "a duplicate key at the root": ("E0102", f"{HEAD}⟦plugins⟧: []\n«plugins»: []\n"),
    "a duplicate key in parameters": ("E0102", f"{HEAD}plugins: [{{type: a, parameters: {{⟦b⟧: 1, «b»: 2}}}}]\n"),
    "a tag on a scalar": ("E0103", f"{HEAD}plugins: [{{type: «!env» A}}]\n"),
    "a tag on a mapping": ("E0103", f"{HEAD}plugins: [{{type: a, parameters: «!!python/object:os.system» {{}}}}]\n"),
    "a tag after an anchor": ("E0103", f"{HEAD}plugins: [{{type: a, parameters: &x «!x» {{}}}}]\n"),
    "a tag that does not fit": ("E0103", f"{HEAD}plugins: [{{type: «!!seq» a}}]\n"),
    "an alias into itself": ("E0104", f"{HEAD}plugins: [{{type: a, parameters: &x {{b: «*x»}}}}]\n"),
    "a merge into itself": ("E0104", f"{HEAD}plugins: [{{type: a, parameters: &x {{«<<»: *x}}}}]\n"),
    "a list nested too deep": ("E0104", f"{HEAD}plugins: {'[' * 99}«[»\n"),
    "a merge conflict": (
        "E0106",
        f"{HEAD}plugins:\n«<<<<<<< HEAD»\n  - type: a\n⟦=======⟧\n  - type: b\n⟦>>>>>>> other⟧\n",
    ),
    "a second document": ("E0107", f"{HEAD}«---»\n{HEAD}"),
    "a second document after one that is marked": ("E0107", f"# first\n---\n{HEAD}«---»\na: 1\n"),
    "a broken second document": ("E0107", f"{HEAD}«---»\na: b: c\n"),
    "no text": ("E0108", "«»"),
    "only comments": ("E0108", "«»# nothing\n\n"),
    "a tab before a list item": ("E0109", f"{HEAD}plugins:\n«\t»- type: a\n"),
    "a tab after spaces": ("E0109", f"{HEAD}plugins:\n  - type: a\n  «\t»name: b\n"),
    "a tab that joins a line to the one before": ("E0109", f"{HEAD}plugins: a\n«\t\t»parser: b\n"),
    "a mistake within brackets, where tabs are allowed": ("E0101", f"{HEAD}plugins: [\n\t{{type: «@»a}}]\n"),
    "a mistake within a line that a tab indents": ("E0101", f"⟦a⟧{HEAD[1:]}plugins: 'a\n\tb' «&»c\n"),
    "a quote that is not closed": ("E0101", f"{HEAD}plugins: ⟦'⟧a\n«»"),
    "a mapping that is not closed": ("E0101", f"{HEAD}plugins: ⟦{{⟧a: 1\nparser«:» b\n"),
    "a line that is indented alone": ("E0101", f"⟦a⟧{HEAD[1:]}plugins: []\n «p»arser: b\n"),
    "a line without a colon": ("E0101", f"{HEAD}plugins: []\n⟦p⟧arser\n«h»ooks: []\n"),
    "a list as key": ("E0111", f"{HEAD}? «[a]»\n: b\n"),
    "a number merged": ("E0112", f"{HEAD}plugins: [{{type: a, parameters: {{«<<»: 5}}}}]\n"),
    "an unknown root field": ("E0201", f"{HEAD}«data»:\n  sources: []\n"),
    "an unknown field of a list item": ("E0201", f"{HEAD}plugins:\n  - type: a\n    «treshold»: 5\n"),
    "an unknown field with no value": ("E0201", f"{HEAD}plugins:\n  - type: a\n    «treshold»:\n"),
    "an unknown field in a flow mapping": ("E0201", f"{HEAD}dataLayer: {{discovery: {{endpoints: {{pluginRef: a, «weight»: 1}}}}}}\n"),
    "a misspelt required field": ("E0201", f"{HEAD}plugins:\n  - «typ»: a\n"),
    "a misspelt required field of a section": ("E0201", f"{HEAD}dataLayer: {{discovery: {{endpoints: {{«pluginref»: a}}}}}}\n"),
    "an unknown field behind an anchor": ("E0201", f"{HEAD}plugins:\n  - &base\n    type: a\n    «treshold»: 5\n"),
    "a missing field of a list item": ("E0202", f"{HEAD}plugins:\n  - «name»: a\n"),
    "a missing field of an empty item": ("E0202", f"{HEAD}plugins: [«{{}}»]\n"),
    "a missing field of a section": ("E0202", f"{HEAD}dataLayer:\n  discovery:\n    «endpoints»: {{}}\n"),
    "a field without a value": ("E0202", f"{HEAD}plugins:\n  - «type»:\n"),
    "an empty name": ("E0202", f'{HEAD}plugins:\n  - «type»: ""\n'),
    "no apiVersion": ("E0202", "«kind»: EndpointPickerConfig\n"),
    "no kind": ("E0202", "«apiVersion»: llm-d.ai/v1\n"),
    "text for a list": ("E0203", f"{HEAD}plugins: «queue-scorer»\n"),
    "a mapping for a list": ("E0203", f"{HEAD}plugins:\n  «type: a\n  name: b»\n"),
    "text for a mapping": ("E0203", f"{HEAD}plugins:\n  - «queue-scorer»\n"),
    "a list for parameters": ("E0203", f"{HEAD}plugins:\n  - type: a\n    parameters: «[1]»\n"),
    "a number for text": ("E0203", f"{HEAD}plugins: [{{type: «5»}}]\n"),
    "text for a number": ("E0203", f"{HEAD}schedulingProfiles: [{{name: a, plugins: [{{pluginRef: b, weight: «'1'»}}]}}]\n"),
    "a boolean for a number": ("E0203", f"{HEAD}schedulingProfiles: [{{name: a, plugins: [{{pluginRef: b, weight: «true»}}]}}]\n"),
    "a YAML 1.1 boolean": ("E0203", f"{HEAD}dataLayer:\n  injectDefaults: «on»\n"),
    "a number for a duration": ("E0203", f"{GATE}flowControl: {{defaultRequestTTL: «60»}}\n"),
    "a boolean for a quantity": ("E0203", f"{GATE}flowControl: {{maxBytes: «true»}}\n"),
    "a list for a duration": ("E0203", f"{GATE}flowControl: {{defaultRequestTTL: «[1s]»}}\n"),
    "a fraction for a priority": ("E0203", f"{GATE}flowControl: {{priorityBands: [{{priority: «1.5»}}]}}\n"),
    "a list for the document": ("E0203", "«- a\n- b»\n"),
    "text that does not fit its tag": ("E0203", f"{HEAD}plugins: [{{type: a, parameters: {{b: !!int «twelve»}}}}]\n"),
    "an unknown apiVersion": ("E0204", "apiVersion: «llm-d.ai/v2»\nkind: EndpointPickerConfig\n"),
    "an apiVersion like no other": ("E0204", "apiVersion: «v1»\nkind: EndpointPickerConfig\n"),
    "an unknown choice": ("E0205", f"{SUPERSET}plugins: [{{type: a, onFault: «Ignore»}}]\n"),
    "a negative quantity": ("E0205", f"{GATE}flowControl:\n  maxRequests: «-1»\n"),
    "a negative duration": ("E0205", f"{GATE}flowControl:\n  defaultRequestTTL: «-1s»\n"),
    "a gate that is neither on nor off": ("E0205", f"{HEAD}featureGates: [«flowControl=maybe»]\n"),
    "a field of the superset": (
        "E0206",
        "apiVersion: ⟦llm-d.ai/v1⟧\nkind: EndpointPickerConfig\nplugins:\n  - type: a\n    «from»: b\n",
    ),
    "a section of the superset": (
        "E0206",
        "apiVersion: ⟦llm-d.ai/v1⟧\nkind: EndpointPickerConfig\n«pluginPolicy»:\n  denyTypes: [a]\n",
    ),
    "a field of v1alpha1": ("E0214", "apiVersion: ⟦llm-d.ai/v1⟧\nkind: EndpointPickerConfig\n«parser»: {pluginRef: a}\n"),
    "a weight that is no number": (
        "E0207",
        f"{HEAD}schedulingProfiles: [{{name: a, plugins: [{{pluginRef: b, weight: «.nan»}}]}}]\n",
    ),
    "an infinite parameter": ("E0207", f"{HEAD}plugins: [{{type: a, parameters: {{b: «-.inf»}}}}]\n"),
    "a number beyond a double": ("E0207", f"{HEAD}plugins: [{{type: a, parameters: {{b: «1e400»}}}}]\n"),
    "a number with many digits": ("E0207", f"{HEAD}plugins: [{{type: a, parameters: {{b: «{'9' * 5000}»}}}}]\n"),
    "an unknown gate": ("E0208", f"{HEAD}featureGates:\n  - «flowcontroll»\n"),
    "a gate like no other": ("E0208", f"{HEAD}featureGates: [«x»]\n"),
    "a retired gate": ("E0208", f"{HEAD}featureGates: [«dataLayer»]\n"),
    "another kind": ("E0209", "apiVersion: llm-d.ai/v1\nkind: «InferencePool»\n"),
    "an unreadable duration": ("E0210", f"{GATE}flowControl: {{defaultRequestTTL: «1 minute»}}\n"),
    "an unreadable quantity": ("E0210", f"{GATE}flowControl: {{maxBytes: «1GB»}}\n"),
    "two bands of one priority": (
        "E0211",
        f"{GATE}flowControl:\n  priorityBands:\n    - priority: ⟦1⟧\n    - priority: 2\n    - priority: «1»\n",
    ),
    "two bands without priority": ("E0211", f"{GATE}flowControl:\n  priorityBands: [⟦{{}}⟧, «{{}}»]\n"),
    "two names of one field": (
        "E0212",
        f"{SUPERSET}dataLayer: {{sources: [{{pluginRef: a, ⟦extractors⟧: [], «collectors»: []}}]}}\n",
    ),
    "an ambiguous number": ("E0213", f"{HEAD}plugins: [{{type: a, parameters: {{b: «012»}}}}]\n"),
    "an ambiguous weight": (
        "E0213",
        f"{HEAD}schedulingProfiles: [{{name: a, plugins: [{{pluginRef: b, weight: «-010»}}]}}]\n",
    ),
    "a deprecated apiVersion": (
        "W0202",
        "apiVersion: «inference.networking.x-k8s.io/v1alpha1»\nkind: EndpointPickerConfig\n",
    ),
    "a deprecated field": ("W0203", f"{SUPERSET}«saturationDetector»: {{pluginRef: a}}\n"),
    "a section without its gate but with a detector": (
        "W0204",
        f"{HEAD}«flowControl»:\n  maxBytes: 1Gi\n  saturationDetector: {{pluginRef: a}}\n",
    ),
    "a section without its gate": ("W0204", f"{HEAD}«flowControl»:\n  maxBytes: 1Gi\n"),
    "a look-alike name": ("W0206", f"{HEAD}plugins: [{{type: «qu\u0435ue-scorer»}}]\n"),
    "a variable that nothing filled in": ("W0208", f"{HEAD}plugins: [{{type: a, parameters: {{path: «'${{POOL}}'»}}}}]\n"),
    "a negative weight": (
        "W0207",
        f"{HEAD}schedulingProfiles: [{{name: a, plugins: [{{pluginRef: b, weight: «-1»}}]}}]\n",
    ),
}


def test_the_table_has_every_code_of_text_and_shape() -> None:
    need_a_file = {Code.E0105, Code.E0110}
    need_two_warnings = {Code.W0205}
    covered = {Code[code] for code, _ in CASES.values()}

    assert {code for code in Code if code.family in (1, 2)} == covered | need_a_file | need_two_warnings


def test_every_span_is_exact() -> None:
    found, expected = {}, {}
    for name, (code, snippet) in CASES.items():
        text, span, labels = unmark(snippet)
        diagnostic = only(load_config(text=text, name="c.yaml").diagnostics)
        windows = only(load_config(text=b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode(), name="c.yaml").diagnostics)
        found[name] = (diagnostic.code, diagnostic.span, tuple(label.span for label in diagnostic.labels), windows.code, windows.span)
        expected[name] = (Code[code], span, labels, Code[code], span)  # line ends and a byte order mark move nothing

    assert found == expected


def test_every_mistake_is_worded_as_agreed() -> None:
    """Set ENDPICK_UPDATE_GOLDEN=1 to write the golden file anew, then read the difference."""
    golden = Path(__file__).parent / "golden" / "every-mistake.txt"

    text = "".join(f"== {name}\n{rendered(unmark(snippet)[0])}\n" for name, (_, snippet) in CASES.items())

    if os.environ.get("ENDPICK_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def rendered(text: str) -> str:
    loaded = load_config(text=text, name="c.yaml")
    return render_text(loaded.diagnostics, {"c.yaml": loaded.source.text})


def test_columns_count_code_points_not_bytes() -> None:
    text, span, _ = unmark(f"{HEAD}plugins: [{{type: a, name: '日本 é', «treshold»: 1}}]\n")

    assert only(load_config(text=text, name="c.yaml").diagnostics).span == span


def test_a_byte_that_is_not_utf8_is_shown_at_its_place() -> None:
    raw = f"{HEAD}plugins: é".encode() + b"\xe9\n"

    diagnostic = only(load_config(text=raw, name="c.yaml").diagnostics)

    assert diagnostic.code is Code.E0105
    assert diagnostic.span == Span("c.yaml", 3, 11, 3, 12)
    assert diagnostic.message == "the byte 0xe9 is not UTF-8 text"
    assert diagnostic.help == "save the file as UTF-8"


@pytest.mark.parametrize("bom", [b"\xff\xfe", b"\xfe\xff"])
def test_utf16_is_named(bom: bytes) -> None:
    raw = bom + HEAD.encode("utf-16-le" if bom == b"\xff\xfe" else "utf-16-be")

    diagnostic = only(load_config(text=raw, name="c.yaml").diagnostics)

    assert diagnostic.code is Code.E0105
    assert diagnostic.span == Span.start_of("c.yaml")
    assert diagnostic.message == "the file is UTF-16 text, not UTF-8"
    assert diagnostic.help == "save the file as UTF-8"


def test_a_file_that_does_not_exist_is_a_diagnostic(tmp_path) -> None:
    path = tmp_path / "absent.yaml"

    loaded = load_config(path)

    diagnostic = only(loaded.diagnostics)
    assert diagnostic.code is Code.E0110
    assert diagnostic.span == Span.start_of(str(path))
    assert diagnostic.message == f"'{path}' cannot be read: No such file or directory"
    assert diagnostic.help == "check the path and its permissions"
    assert loaded.config is None
    assert (loaded.path, loaded.source.file) == (str(path), str(path))


def test_a_path_that_no_file_can_have_is_a_diagnostic() -> None:
    diagnostic = only(load_config("a\0b").diagnostics)

    assert (diagnostic.code, diagnostic.message) == (Code.E0110, "'a\0b' cannot be read: embedded null byte")


@pytest.mark.parametrize(
    ("snippet", "wording"),
    [
        (
            f"{SUPERSET}«parser»: {{pluginRef: a}}\nrequestHandler: {{⟦parsers⟧: [{{pluginRef: b}}]}}\n",
            ("'parser' has no effect beside requestHandler.parsers", "remove 'parser'"),
        ),
        (
            f"{SUPERSET}«saturationDetector»: {{pluginRef: a}}\nflowControl: {{⟦saturationDetector⟧: {{pluginRef: b}}}}\n",
            ("'saturationDetector' has no effect beside flowControl.saturationDetector", "remove 'saturationDetector'"),
        ),
    ],
)
def test_an_overridden_field_is_shown_beside_what_overrides_it(snippet: str, wording: tuple[str, str]) -> None:
    text, span, labels = unmark(snippet)

    deprecated, overridden = load_config(text=text, name="c.yaml").diagnostics

    assert (deprecated.code, deprecated.span) == (Code.W0203, span)
    assert (overridden.code, overridden.span) == (Code.W0205, span)
    assert tuple(label.span for label in overridden.labels) == labels
    assert (overridden.message, overridden.help) == wording


def test_behaviour_32_merged_mistake_is_shown_at_both_places() -> None:
    text, span, labels = unmark(
        f"{HEAD}schedulingProfiles:\n"
        "  - name: one\n    plugins:\n      - &heavy {pluginRef: a, weight: «-2»}\n"
        "  - name: two\n    plugins:\n      - {⟦<<⟧: *heavy, pluginRef: b}\n"
    )

    first, second = load_config(text=text, name="c.yaml").diagnostics

    assert (first.span, first.labels) == (span, ())
    assert second.span == span
    assert "'b'" in second.message
    assert tuple(label.span for label in second.labels) == labels


def test_aliased_mistake_is_shown_at_both_places() -> None:
    text, span, labels = unmark(
        f"{HEAD}schedulingProfiles:\n  - &base {{name: one, plugins: [{{pluginRef: a, weight: «'x'»}}]}}\n  - ⟦*base⟧\n"
    )

    first, second = load_config(text=text, name="c.yaml").diagnostics

    assert (first.span, second.span) == (span, span)
    assert tuple(label.span for label in second.labels) == labels


def only(diagnostics: tuple[Diagnostic, ...]) -> Diagnostic:
    assert len(diagnostics) == 1, diagnostics
    return diagnostics[0]


def unmark(snippet: str) -> tuple[str, Span, tuple[Span, ...]]:
    """The text without marks, the span between «», and those between ⟦⟧ in order."""
    text = ""
    opened: list[tuple[int, int]] = []
    spans: list[Span] = []
    labels: list[Span] = []
    for piece in re.split("([«»⟦⟧])", snippet):
        if piece in ("«", "⟦"):
            opened.append(position(text))
        elif piece in ("»", "⟧"):
            (spans if piece == "»" else labels).append(Span("c.yaml", *opened.pop(), *position(text)))
        else:
            text += piece
    (span,) = spans
    return text, span, tuple(labels)


def position(text: str) -> tuple[int, int]:
    lines = text.split("\n")
    return len(lines), len(lines[-1]) + 1
