"""Verbs that hook objects add to the command line."""

from __future__ import annotations

import pytest

HOOKS = "hooks:\n  - name: hooks.rules\n"


def test_a_verb_of_a_named_hook_object_runs(fixture_project, config_with, run_cli):
    config = config_with("queue-scorer", tail=HOOKS)

    result = run_cli("house-rules", path=[fixture_project("hook-objects")], environment={"ENDPICK_CONFIG": str(config)})

    assert (result.exit_code, result.stdout) == (0, "every instance has a name\n")


def test_verb_is_unknown_without_its_hook_object(fixture_project, config_with, run_cli):
    path = [fixture_project("hook-objects")]
    plain = config_with("queue-scorer")

    for environment in ({}, {"ENDPICK_CONFIG": ""}, {"ENDPICK_CONFIG": str(plain)}):
        result = run_cli("house-rules", path=path, environment=environment)
        assert result.exit_code == 2
        assert "no such command 'house-rules'" in result.stderr


@pytest.mark.parametrize(
    ("tail", "exit_code", "says"),
    [("hooks:\n  - name: hooks.misspelt\n", 4, "error[E0701]"), ("hoks: []\n", 3, "error[E0201]")],
)
def test_what_keeps_a_verb_away_is_told(fixture_project, config_with, run_cli, tail, exit_code, says):
    config = config_with("queue-scorer", tail=tail)

    result = run_cli("house-rules", path=[fixture_project("hook-objects")], environment={"ENDPICK_CONFIG": str(config)})

    assert result.exit_code == exit_code
    assert says in result.stderr
