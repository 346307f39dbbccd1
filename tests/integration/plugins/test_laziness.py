"""Nothing is imported that the configuration does not name or the operator forbids: behaviours 12 to 16."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

HEAVY = ("grpc", "pydantic", "jsonschema", "numpy")


def test_behaviour_12_unused_broken_plugin_is_not_imported(fixture_project, config_with, validate, tmp_path):
    path = [fixture_project("broken-import"), fixture_project("sentinel"), fixture_project("good-scorers")]
    sentinel = tmp_path / "imported"

    verdict = validate(config_with("acme.zone"), path=path, environment={"SENTINEL_FILE": str(sentinel)})

    assert verdict.exit_code == 0
    assert not sentinel.exists()


def test_a_named_plugin_is_imported(fixture_project, config_with, validate, tmp_path):
    sentinel = tmp_path / "imported"

    assert (
        validate(config_with("sentinel"), path=[fixture_project("sentinel")], environment={"SENTINEL_FILE": str(sentinel)}).exit_code == 0
    )
    assert sentinel.exists(), "otherwise the other tests of this module prove nothing"


@pytest.mark.parametrize("denied", ["sentinel", "sent*"])
def test_behaviour_13_denied_type_is_not_imported(fixture_project, config_with, validate, tmp_path, denied):
    sentinel = tmp_path / "imported"
    config = config_with("sentinel", tail=f"pluginPolicy:\n  denyTypes: ['{denied}']\n")

    verdict = validate(config, path=[fixture_project("sentinel")], environment={"SENTINEL_FILE": str(sentinel)})
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0307", "sentinel")
    assert f"remove '{denied}' from pluginPolicy.denyTypes" in error["help"]
    assert not sentinel.exists()


def test_behaviour_14_disallowed_distribution_is_not_imported(fixture_project, config_with, validate, tmp_path):
    sentinel = tmp_path / "imported"
    path = [fixture_project("sentinel"), fixture_project("good-scorers")]
    tail = "pluginPolicy:\n  allowDistributions:\n    - Good_Scorers\n"

    verdict = validate(
        config_with("sentinel", "acme.zone", "queue-scorer", tail=tail), path=path, environment={"SENTINEL_FILE": str(sentinel)}
    )
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0307", "sentinel")
    assert error["message"] == "the distribution sentinel 1.0 is not allowed by pluginPolicy"
    assert error["help"] == "add the line `- sentinel` to pluginPolicy.allowDistributions"
    assert not sentinel.exists()


def test_an_empty_allow_list_leaves_endpick_itself(config_with, validate):
    assert validate(config_with("queue-scorer", tail="pluginPolicy:\n  allowDistributions: []\n")).exit_code == 0


def test_behaviour_15_static_check_imports_no_third_party(fixture_project, config_with, validate, tmp_path):
    sentinel = tmp_path / "imported"
    config = config_with("sentinel", "type: queue-scorer\nparameters: {treshold: 3}", "type: load-aware-scorer\nparameters: {treshold: 3}")

    verdict = validate(config, "--static", path=[fixture_project("sentinel")], environment={"SENTINEL_FILE": str(sentinel)})

    assert verdict.exit_code == 3
    assert verdict.codes == ["E0402", "E0402"]
    assert verdict.pointed_at(verdict.errors[1]) == "treshold"
    assert verdict.errors[1]["help"] == "did you mean 'threshold'?"
    assert not sentinel.exists()


@pytest.mark.parametrize("verb", [["--help"], ["list"], ["list", "--format", "json"]])
def test_behaviour_16_help_and_list_import_nothing_heavy(verb):
    program = (
        "import sys\n"
        "from endpick.cli.main import main\n"
        f"try:\n    main({verb!r})\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(*[name for name in {HEAVY!r} if name in sys.modules], sep=',', file=sys.stderr)"
    )

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert result.stdout
    assert result.stderr == "\n"
