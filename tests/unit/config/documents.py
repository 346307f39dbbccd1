"""Small documents, and what loading makes of them."""

from __future__ import annotations

from endpick.config import EndpointPickerConfig, load_config

HEAD = "apiVersion: endpick/v1alpha1\nkind: EndpointPickerConfig\n"


def load(text: str) -> EndpointPickerConfig:
    loaded = load_config(text=text)
    assert loaded.diagnostics == ()
    assert loaded.config is not None
    return loaded.config


def codes_of(text: str) -> list[str]:
    return [str(diagnostic.code) for diagnostic in load_config(text=text).diagnostics]
