"""Loading: documents that are too large, too deep, or expand too much."""

from __future__ import annotations

import pytest

from endpick.config import load_config, source
from endpick.config import yaml_nodes as text_module
from endpick.config.source import MAX_NODES
from endpick.config.yaml_nodes import MAX_BYTES
from endpick.diagnostics import Code, Span
from unit.config.documents import HEAD, codes_of


def test_behaviour_36_huge_file_is_refused() -> None:
    (diagnostic,) = load_config(text="#" * (10 * 2**20), name="c.yaml").diagnostics

    assert (diagnostic.code, diagnostic.span) == (Code.E0104, Span.start_of("c.yaml"))
    assert str(MAX_BYTES) in diagnostic.message
    assert diagnostic.help == "is this the right file?"


@pytest.mark.parametrize(("seed", "shape"), [("[1, 2]", "[%s]"), ("{k: [1, 2, 3]}", "{<<: [%s]}")], ids=["aliases", "merges"])
def test_behaviour_36_alias_bomb_is_refused(seed: str, shape: str) -> None:
    levels = "".join(f"    l{level}: &l{level} {shape % ', '.join([f'*l{level - 1}'] * 9)}\n" for level in range(1, 12))
    text = f"{HEAD}plugins:\n- type: a\n  parameters:\n    l0: &l0 {seed}\n{levels}"

    (diagnostic,) = load_config(text=text).diagnostics

    assert diagnostic.code is Code.E0104
    assert str(MAX_NODES) in diagnostic.message


def test_limit_of_values_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    # The document itself, its two fields, the list and its two items.
    text = '{"apiVersion": "endpick/v1alpha1", "kind": "EndpointPickerConfig", "featureGates": ["flowControl", "flowControl"]}'

    monkeypatch.setattr(source, "MAX_NODES", 6)
    assert codes_of(text) == []

    monkeypatch.setattr(source, "MAX_NODES", 5)
    (diagnostic,) = load_config(text=text, name="c.yaml").diagnostics
    start = text.rindex('"flowControl"') + 1
    assert (diagnostic.code, diagnostic.path) == (Code.E0104, ("featureGates", 1))
    assert diagnostic.span == Span("c.yaml", 1, start, 1, start + len('"flowControl"'))


def test_limit_of_bytes_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "MAX_BYTES", len(HEAD))

    assert codes_of(HEAD) == []
    assert codes_of(f"{HEAD}\n") == ["E0104"]


def test_deep_nesting_is_refused() -> None:
    (diagnostic,) = load_config(text=f"{HEAD}plugins: {'[' * 1000}\n").diagnostics

    assert diagnostic.code is Code.E0104
