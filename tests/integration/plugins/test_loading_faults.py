"""Whose fault a plugin that cannot be loaded is: behaviours 17 to 23."""

from __future__ import annotations

import json

import pytest


def test_behaviour_17_missing_dependency_names_the_distribution(fixture_project, config_with, run_cli, validate):
    path = [fixture_project("missing-dependency")]
    config = config_with("missing.dependency")

    verdict = validate(config, path=path)
    error = verdict.the_only_error()
    text = run_cli("validate", config, path=path).stderr

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0305", "missing.dependency")
    assert "missing-dependency 2.1 needs the module 'thermodynamics_of_tokens', which is not installed" in error["message"]
    assert "missing_dependency.py:3 in <module>" in text
    assert "importlib" not in text
    assert "Traceback" not in text


def test_failing_import_shows_plugin_frames_only(fixture_project, config_with, validate):
    root = fixture_project("broken-import")

    error = validate(config_with("broken.import"), path=[root]).the_only_error()

    assert error["message"] == "'broken.import' cannot be imported: broken-import 0.3 raised RuntimeError: no table named weights.csv"
    assert error["notes"] == [
        (
            "raised at, innermost last:\n"
            f'{root}/broken_import/plugin.py:5 in <module>\n    TABLE = load_table("weights.csv")\n'
            f'{root}/broken_import/table.py:8 in load_table\n    raise RuntimeError(f"no table named {{name}}")'
        )
    ]


def test_behaviour_18_wrong_entry_point_is_no_failing_module(fixture_project, config_with, validate):
    verdict = validate(config_with("misfit.no-module"), path=[fixture_project("misfits")])
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"]) == (4, "E0303")
    assert error["message"] == "the entry point of 'misfit.no-module' in misfits 1.0 is wrong: there is no module 'misfits_of_old'"


@pytest.mark.parametrize(
    ("plugin_type", "code", "says"),
    [
        ("misfit.no-attribute", "E0319", "module 'misfits' has no 'Forgotten'"),
        ("misfit.not-a-class", "E0309", "leads to an object of type function, not to a plugin class"),
        ("misfit.not-a-plugin", "E0309", "leads to the class NotAPlugin, not to a plugin class"),
        ("misfit.no-kind", "E0310", "the plugin class NoKind in misfits 1.0 is of no kind"),
        ("misfit.abstract", "E0311", "Abstract in misfits 1.0 does not implement `score`"),
        ("misfit.no-keys", "E0318", "`consumes` of 'misfit.no-keys' in misfits 1.0 is not a tuple of data keys"),
        ("misfit.misspelt", "E0318", "`consume` of 'misfit.misspelt' in misfits 1.0 is read by no part of endpick"),
        ("misfit.misspelt-method", "E0313", "did you mean 'first_chunk'?"),
        (
            "misfit.bad-signature",
            "E0313",
            "BadSignature in misfits 1.0 is called with (request, endpoints, state)",
        ),
        ("misfit.async", "E0313", "`score` of the plugin class Async in misfits 1.0 must not be `async def`"),
        ("misfit.not-async", "E0313", "`poll` of the plugin class NotAsync in misfits 1.0 must be `async def`"),
    ],
)
def test_behaviour_19_each_way_to_be_no_plugin_has_its_code(fixture_project, config_with, validate, plugin_type, code, says):
    verdict = validate(config_with(plugin_type), path=[fixture_project("misfits")])
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, code, plugin_type)
    assert says in error["message"]
    assert "misfits" in error["help"]


def test_behaviour_20_former_name_alone_is_refused(fixture_project, config_with, validate):
    verdict = validate(config_with("misfit.formerly"), path=[fixture_project("misfits")])
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0312", "misfit.formerly")
    assert "'misfit.formerly' is a former name" in error["message"]
    assert "misfits 1.0 has no entry point with the current name" in error["message"]


def test_behaviour_21_exit_at_import_is_a_fault(fixture_project, config_with, validate):
    verdict = validate(config_with("exits.politely", "no.such-type"), path=[fixture_project("exits")])

    assert verdict.exit_code == 4
    assert verdict.codes == ["E0305", "E0301"]
    assert verdict.errors[0]["message"].endswith("exits 1.0 raised SystemExit: 0")


def test_behaviour_21_an_interrupt_still_interrupts(fixture_project, config_with, run_cli):
    result = run_cli("validate", config_with("exits.interrupted"), path=[fixture_project("exits")])

    assert result.exit_code not in (0, 3, 4)
    assert "E0305" not in result.stderr


def test_behaviour_22_output_at_import_is_captured(fixture_project, config_with, run_cli, validate):
    path = [fixture_project("chatty")]

    verdict = validate(config_with("chatty"), path=path)
    printed, warned = verdict.diagnostics
    listed = run_cli("list", "--load", "--format", "json", path=path)

    assert verdict.exit_code == 0
    assert [printed["code"], warned["code"]] == ["W0306", "W0307"]
    assert printed["plugin"]["distribution"] == "chatty"
    assert "hello from chatty" in printed["notes"][0]
    assert "a word to stderr" in printed["notes"][0]
    assert "FutureWarning: chatty is out of date" in warned["notes"][0]
    assert json.loads(listed.stdout)["plugins"]
    assert "hello" not in listed.stderr


@pytest.mark.parametrize(
    ("hook_object", "code", "message", "help_line"),
    [
        ("hooks.misspelt", "E0701", "implements `endpick_strted`, which is no hook", "did you mean 'endpick_started'?"),
        ("hooks.arguments", "E0702", "`endpick_started` of the hook object 'hooks.arguments' from watchers 1.0 asks", "`host`"),
        ("hooks.wrapper", "E0702", "is a wrapper without `yield`", "write it as a generator"),
        ("hooks.asynchronous", "E0702", "is `async def`, but endpick does not await it", "write it as a plain `def`"),
        ("hooks.none", "E0705", "it implements no hook", "add 'hooks.none' to pluginPolicy.denyTypes"),
        ("hooks.unconstructible", "E0705", "its constructor raised TypeError", "uninstall watchers"),
        ("hooks.missing", "E0705", "there is no module 'hook_objects.missing'", "uninstall watchers"),
    ],
)
def test_behaviour_23_wrong_hooks_are_errors(installed_hooks, config_with, validate, hook_object, code, message, help_line):
    verdict = validate(config_with("queue-scorer"), path=installed_hooks(hook_object))
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"], error["plugin"]["type"]) == (4, code, hook_object)
    assert message in error["message"]
    assert help_line in error["help"]


@pytest.mark.parametrize(
    ("policy", "codes"),
    [
        ("denyTypes: ['hooks.m*']", []),
        ("allowDistributions: [acme]", ["E0307"]),
        ("allowDistributions: [watchers]", ["E0705"]),
    ],
)
def test_a_policy_decides_about_hook_objects(installed_hooks, config_with, validate, policy, codes):
    config = config_with("queue-scorer", tail=f"pluginPolicy: {{{policy}}}\n")

    assert validate(config, path=installed_hooks("hooks.missing")).codes == codes


def test_a_static_check_loads_no_hook_object(installed_hooks, config_with, validate):
    assert validate(config_with("queue-scorer"), "--static", path=installed_hooks("hooks.missing")).errors == []


def test_hook_objects_are_locked(installed_hooks, config_with, run_cli, tmp_path):
    path, lock = installed_hooks("hooks.rules"), tmp_path / "lock.json"
    lock.write_text('{"format": 3, "distributions": []}')

    result = run_cli("serve", config_with("queue-scorer"), "--locked", "--lock-file", lock, path=path)

    assert result.exit_code == 4
    assert "E0308" in result.stderr
    assert "watchers 1.0 is not in the lock file" in result.stderr


def test_a_hook_object_judges_the_configuration_with_positions(installed_hooks, config_with, validate):
    config = config_with("queue-scorer", "name: q\ntype: queue-scorer")

    verdict = validate(config, path=installed_hooks("hooks.rules"))
    error = verdict.the_only_error()
    (warning,) = [found for found in verdict.diagnostics if found["code"] == "W0503"]

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (3, "E0511", "queue-scorer")
    assert error["help"] == "add `name:`"
    assert error["notes"] == ["said by the hook object 'hooks.rules' from watchers 1.0"]
    assert (warning["message"], verdict.pointed_at(warning)) == ("the name on line 5 is short", "q")
