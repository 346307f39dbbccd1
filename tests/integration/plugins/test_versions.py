"""Plugins and hosts of different ages: behaviours 24 to 27."""

from __future__ import annotations

import json
import shutil

import pytest

from endpick import __version__
from endpick.host.discovery import OWN_DISTRIBUTIONS

pytestmark = pytest.mark.long


def test_behaviour_24_plugin_for_later_endpick_is_not_imported(fixture_project, config_with, validate, run_cli):
    path = [fixture_project("later-endpick")]
    verdict = validate(config_with("later.scorer"), path=path)
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0306", "later.scorer"), "its module raises"
    assert error["message"] == f"'later.scorer' from later-endpick 2.1 needs endpick>=99; this is endpick {__version__}"
    assert error["help"] == f"install endpick>=99, or a release of later-endpick for endpick {__version__}"
    assert f"endpick>=99 is needed, endpick {__version__} is installed" in run_cli("doctor", path=path).stdout


def test_behaviour_25_plugin_for_next_major_is_not_imported(fixture_project, config_with, validate, run_cli):
    path = [fixture_project("future-api")]

    error = validate(config_with("future.scorer"), path=path).the_only_error()

    assert "needs plugin API 2" in run_cli("list", path=path).stdout
    assert error["code"] == "E0322"
    assert error["message"] == "'future.scorer' from future-api 1.0 needs plugin API 2; this host provides 1"
    assert run_cli("list", "--load", path=path).exit_code == 0, "its module raises when it is imported"


def test_behaviour_26_plugin_for_older_endpick_loads_silently(make_distribution, config_with, validate):
    path = [make_distribution("older", {"older.scorer": "older:Scorer"}, requires=["endpick>=0.0.1,<1"])]

    assert validate(config_with("older.scorer"), path=path).diagnostics == []


@pytest.mark.parametrize(
    ("plugin_type", "code", "message", "help_line"),
    [
        ("renamed.old", "W0303", "'renamed.old' is a former name of 'renamed.new'", "write `type: renamed.new`"),
        ("renamed.retired", "W0304", "'renamed.retired' from renamed 1.0 is deprecated", "use 'renamed.new' instead"),
        ("renamed.trial", "W0309", "'renamed.trial' from renamed 1.0 is experimental", "expect it to change; pin renamed"),
    ],
)
def test_behaviour_26_deprecation_is_one_warning_at_the_type(fixture_project, config_with, validate, plugin_type, code, message, help_line):
    verdict = validate(config_with(plugin_type), path=[fixture_project("renamed")])
    (warning,) = verdict.diagnostics

    assert verdict.exit_code == 0
    assert (warning["code"], warning["message"], warning["help"]) == (code, message, help_line)
    assert verdict.pointed_at(warning) == plugin_type


def test_behaviour_27_a_changed_wheel_differs_from_its_lock(fixture_project, run_cli, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(fixture_project("good-scorers"), site)
    assert run_cli("lock", path=[site]).exit_code == 0
    assert run_cli("lock", "--check", path=[site]).exit_code == 0

    record = site / "good_scorers-1.0.dist-info" / "RECORD"
    record.write_text(record.read_text().replace("good_scorers.py,sha256=", "good_scorers.py,sha256=x"))
    result = run_cli("lock", "--check", path=[site])

    assert result.exit_code == 4
    assert "error[E0308]: good-scorers has changed since it was locked" in result.stderr
    assert "the version is still 1.0, but other files are installed" in result.stderr


def test_behaviour_27_a_file_changed_after_installation_is_named(fixture_project, run_cli, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(fixture_project("good-scorers"), site)
    run_cli("lock", path=[site])

    with (site / "good_scorers.py").open("a") as module:
        module.write("# improved in place\n")
    result = run_cli("lock", "--check", path=[site])

    assert result.exit_code == 4
    assert "files of good-scorers 1.0 were changed after it was installed: good_scorers.py" in result.stderr


def test_behaviour_27_another_version_is_named_with_both(make_distribution, run_cli, tmp_path):
    entry_points = {"acme.latency": "lockable:Latency"}
    run_cli("lock", path=[make_distribution("lockable", entry_points)])

    result = run_cli("lock", "--check", "--format", "json", path=[make_distribution("lockable", entry_points, version="1.1")])
    (difference,) = json.loads(result.stdout)["diagnostics"]

    assert result.exit_code == 4
    assert difference["notes"] == ["the version was 1.0, now it is 1.1"]


def test_a_locked_distribution_that_is_gone_is_named(fixture_project, run_cli):
    run_cli("lock", path=[fixture_project("sentinel")])

    result = run_cli("lock", "--check")

    assert result.exit_code == 4
    assert "sentinel 1.0 is locked and offers nothing to endpick here" in result.stderr


def test_the_lock_file_is_the_same_bytes_each_time(fixture_project, run_cli, tmp_path):
    path = [fixture_project("good-scorers"), fixture_project("renamed")]
    run_cli("lock", "-o", "one.json", path=path)
    run_cli("lock", "-o", "two.json", path=path[::-1])

    one = (tmp_path / "one.json").read_bytes()
    assert one == (tmp_path / "two.json").read_bytes()
    assert {plugin["distribution"] for plugin in json.loads(one)["distributions"]} == OWN_DISTRIBUTIONS | {"good-scorers", "renamed"}


def test_damaged_lock_file_is_an_error(run_cli, tmp_path):
    (tmp_path / "endpick.lock.json").write_text("[]")

    result = run_cli("lock", "--check")

    assert result.exit_code == 4
    assert "error[E0321]" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_missing_lock_file_is_an_error(run_cli):
    result = run_cli("lock", "--check", "-o", "nowhere.json")

    assert result.exit_code == 4
    assert "error[E0321]: the lock file nowhere.json cannot be read" in result.stderr
