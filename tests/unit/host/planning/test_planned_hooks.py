"""Hook objects in a document: loaded before any plugin, heard when all else is well."""

from __future__ import annotations

from unit.host.planning.planned import plan
from unit.host.planning.zoo import Auditor


def test_hook_finding_is_a_diagnostic_at_its_place() -> None:
    result = plan("plugins: [{type: plain-scorer}]\nhooks: [{name: auditor}]")

    assert result.found == [("E0511", "plain-scorer")]
    assert result.one("E0511").message == "our policy wants a filter first"
    assert result.outcome.plan is None


def test_hooks_do_not_validate_a_wrong_document() -> None:
    result = plan("plugins: [{type: orphan-scorer}]\nhooks: [{name: auditor}]")

    assert result.found == [("E0601", "orphan-scorer")]


def test_a_hook_object_learns_of_every_type_that_the_plan_uses() -> None:
    Auditor.told.clear()

    plan("plugins: [{type: match-scorer}]\nhooks: [{name: auditor}]")

    assert {"match-scorer", "matcher", "tokenizer", "max-score-picker"} <= set(Auditor.told)
    assert "queue-scorer" not in Auditor.told
    assert len(Auditor.told) == len(set(Auditor.told))


def test_a_hook_object_may_bring_a_plugin_type() -> None:
    result = plan("plugins: [{type: offered-scorer}]\nhooks: [{name: offerer}]")

    assert result.plan.by_name["offered-scorer"].loaded.candidate.distribution == "zoo"
    assert result.plan.hooks.names == ("offerer (zoo 1.0)",)


def test_without_its_hook_object_the_type_is_unknown() -> None:
    assert [code for code, _ in plan("plugins: [{type: offered-scorer}]").found] == ["E0301"]


def test_broken_hook_objects_are_reported_at_their_names() -> None:
    result = plan("hooks: [{name: auditer}, {name: broken}, {name: offerer, from: nobody}]")

    assert result.found == [("E0705", "auditer"), ("E0705", "broken"), ("E0705", "offerer")]
    assert result.outcome.diagnostics[0].help == "did you mean 'auditor'?"
