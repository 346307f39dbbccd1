"""A diagnostic names the path of its mistake, and the alias through which the mistake got there."""

from __future__ import annotations

from endpick.config import load_config
from endpick.diagnostics import Diagnostic

HEAD = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"
GATE = f"{HEAD}featureGates: [flowControl]\n"
PLUGIN = f"{HEAD}plugins: [{{type: a, parameters: "
PARAMETERS = ("plugins", 0, "parameters")
BAND = ("schedulingProfiles", 0, "plugins", 0)


def only(text: str) -> Diagnostic:
    (diagnostic,) = load_config(text=text).diagnostics
    return diagnostic


def test_a_mistake_has_the_path_at_which_it_stands() -> None:
    for text, path in [
        (f"{PLUGIN}{{b: 1, b: 2}}}}]\n", (*PARAMETERS, "b")),
        (f"{PLUGIN}!x {{}}}}]\n", PARAMETERS),
        (f"{PLUGIN}&x {{b: *x}}}}]\n", (*PARAMETERS, "b")),
        (f"{PLUGIN}&x {{<<: *x}}}}]\n", PARAMETERS),
        (f"{PLUGIN}{{[c]: 1}}}}]\n", PARAMETERS),
        (f"{PLUGIN}{{<<: 5}}}}]\n", PARAMETERS),
        (f"{PLUGIN}{{b: .nan}}}}]\n", (*PARAMETERS, "b")),
        (f"{PLUGIN}{{b: 012}}}}]\n", (*PARAMETERS, "b")),
        (f"{PLUGIN}{{b: !!int x}}}}]\n", (*PARAMETERS, "b")),
        (f"{HEAD}bogus: 1\n", ("bogus",)),
        (f"{HEAD}plugins: [{{}}]\n", ("plugins", 0, "type")),
        (f"{HEAD}plugins: [{{type: 5}}]\n", ("plugins", 0, "type")),
        (f"{HEAD}plugins: [{{type: a, onFault: b}}]\n", ("plugins", 0, "onFault")),
        (f"{HEAD}plugins: [{{type: \u0430}}]\n", ("plugins", 0, "type")),
        (f"{HEAD}featureGates: [x=y]\n", ("featureGates", 0)),
        (f"{HEAD}featureGates: [flowControl, x]\n", ("featureGates", 1)),
        (f"{HEAD}parser: {{pluginRef: a}}\n", ("parser",)),
        (f"{HEAD}flowControl: {{maxBytes: 1}}\n", ("flowControl",)),
        (f"{GATE}flowControl: {{maxBytes: x}}\n", ("flowControl", "maxBytes")),
        (f"{GATE}flowControl: {{priorityBands: [{{}}, {{}}]}}\n", ("flowControl", "priorityBands", 1, "priority")),
        (f"{HEAD}schedulingProfiles: [{{name: a, plugins: [{{pluginRef: b, weight: -1}}]}}]\n", (*BAND, "weight")),
        (
            f"{HEAD}dataLayer: {{sources: [{{pluginRef: a, extractors: [], collectors: []}}]}}\n",
            ("dataLayer", "sources", 0, "collectors"),
        ),
        ("apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nmodels: []\n", ("models",)),
        ("apiVersion: x\nkind: EndpointPickerConfig\n", ("apiVersion",)),
        ("apiVersion: inference.networking.x-k8s.io/v1alpha1\nkind: EndpointPickerConfig\n", ("apiVersion",)),
        ("apiVersion: v1\nkind: Pod\n", ("kind",)),
    ]:
        assert only(text).path == path


def test_an_overridden_field_has_its_own_path() -> None:
    text = f"{HEAD}parser: {{pluginRef: a}}\nrequestHandler: {{parsers: [{{pluginRef: b}}]}}\n"

    assert [diagnostic.path for diagnostic in load_config(text=text).diagnostics] == [("parser",), ("parser",)]


def test_mistake_in_an_aliased_value_has_a_label() -> None:
    for value, use, code in [
        ("{bogus: 1}", "dataLayer: *x", "E0201"),
        ("{weight: 1}", "schedulingProfiles: [{name: p, plugins: [*x]}]", "E0202"),
        ("{type: }", "  - *x", "E0202"),
        ("{maxBytes: true}", "flowControl: *x", "E0203"),
        ("{type: b, onFault: c}", "  - *x", "E0205"),
        ("[flowControl=maybe]", "featureGates: *x", "E0205"),
        ("{type: b, from: c}", "  - *x", "E0206"),
        ("[some]", "featureGates: *x", "E0208"),
        ("{maxBytes: 1GB}", "flowControl: *x", "E0210"),
        ("{type: \u0430}", "  - *x", "W0206"),
        ("{pluginRef: b, weight: -1}", "schedulingProfiles: [{name: p, plugins: [*x]}]", "W0207"),
    ]:
        version = "llm-d.ai/v1" if code == "E0206" else "endpick/v1alpha1"
        holder = f"plugins:\n  - {{type: holder, parameters: {{x: &x {value}}}}}\n"
        loaded = load_config(text=f"apiVersion: {version}\nkind: EndpointPickerConfig\n{holder}{use}\n")

        (diagnostic,) = (found for found in loaded.diagnostics if str(found.code) == code)

        label = diagnostic.labels[0]
        assert (label.message, label.span.line, label.span.column) == ("used here", 5, use.index("*x") + 1)
