"""The types a plan may draw on: imported once, after policy and lock allowed it."""

from __future__ import annotations

import pytest

from endpick.config import load_config
from endpick.host import loader as module
from endpick.host.discovery import Candidate
from endpick.host.environment import Lock
from endpick.host.loader import PluginCatalog, load
from endpick.host.planning.planner import make_plan
from endpick.host.resolution import Policy, Reference
from unit.host.planning.zoo import candidates

BROKEN = Candidate("broken", 1, "zoo", "1.0", "unit.host.planning.zoo:Nowhere", "/site/zoo-1.0.dist-info")


def test_what_is_wrong_with_a_plugin_is_said_once() -> None:
    installed = PluginCatalog([BROKEN])

    first, second = (installed.get(Reference("broken", name)) for name in ("a", "b"))

    assert [one.code.name for one in first.diagnostics] == ["E0319"]
    assert second.diagnostics == ()
    assert second.loaded is None


def test_what_is_wrong_with_a_reference_is_said_each_time() -> None:
    installed = PluginCatalog(candidates(), Policy(deny_types=("queue-scorer",)))

    for plugin_type, code in (("nowhere", "E0301"), ("queue-scorer", "E0307")):
        for _ in range(2):
            assert [one.code.name for one in installed.get(Reference(plugin_type)).diagnostics] == [code]


def test_looking_at_a_plugin_does_not_hide_what_is_wrong_with_it() -> None:
    installed = PluginCatalog([BROKEN])

    assert installed.peek("broken") is None
    assert [one.code.name for one in installed.get(Reference("broken")).diagnostics] == ["E0319"]


def test_a_type_is_imported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = []
    monkeypatch.setattr(module, "load", lambda candidate, *rest: imported.append(candidate.type) or load(candidate, *rest))
    installed = PluginCatalog(candidates())

    loadings = [installed.get(Reference("queue-scorer", name)) for name in ("a", "b", "c")]

    assert imported == ["queue-scorer"]
    assert len({id(loading.loaded) for loading in loadings}) == 1


def test_requirements_of_a_distribution_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(module, "unmet_of", lambda distribution: asked.append(distribution) or ())
    installed = PluginCatalog(candidates())

    for plugin_type in ("queue-scorer", "plain-scorer", "even-filter"):
        installed.get(Reference(plugin_type))

    assert asked == ["zoo"]


def test_type_that_differs_from_the_lock_is_not_imported() -> None:
    text = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: plain-scorer}]\n"

    outcome = make_plan(load_config(text=text), candidates(), lock=Lock())

    assert outcome.plan is None
    assert {one.code.name for one in outcome.diagnostics} == {"E0308"}
    assert outcome.diagnostics[0].span is not None
