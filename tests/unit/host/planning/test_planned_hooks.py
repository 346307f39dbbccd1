"""Hook objects of a plan: loaded before any plugin, heard when all else is well."""

from __future__ import annotations

from unit.host.planning.planned import plan

PLUGINS = "plugins: [{type: plain-scorer}]"
DENIED = f"{PLUGINS}\npluginPolicy: {{denyTypes: [aud*]}}"


def test_installed_hook_objects_are_loaded() -> None:
    assert plan(DENIED.replace("aud*", "nothing"), hook_objects=["auditor"]).outcome.diagnostics[0].code.name == "E0511"
    assert plan(DENIED, hook_objects=["auditor"]).plan.hooks.names == ()


def test_hook_finding_is_a_diagnostic_at_its_place() -> None:
    result = plan(PLUGINS, hook_objects=["auditor"])

    assert result.found == [("E0511", "plain-scorer")]
    assert result.one("E0511").message == "our policy wants a filter first"
    assert result.outcome.plan is None


def test_hooks_do_not_validate_a_wrong_document() -> None:
    result = plan("plugins: [{type: orphan-scorer}]", hook_objects=["auditor"])

    assert result.found == [("E0601", "orphan-scorer")]


def test_broken_hook_object_refuses_the_document() -> None:
    result = plan(PLUGINS, hook_objects=["broken"])

    assert (result.one("E0705").span, result.outcome.plan) == (None, None)


def test_a_later_plan_has_the_hook_objects_of_the_process() -> None:
    first = plan(PLUGINS)
    later = plan(PLUGINS, hooks=first.plan.hooks, hook_objects=["broken"])

    assert later.plan.hooks is first.plan.hooks
