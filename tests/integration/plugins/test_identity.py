"""Who offers which type: behaviours 1 to 11 of a first-class plugin host, on real distributions."""

from __future__ import annotations

import json
import shutil

import pytest

pytestmark = pytest.mark.long

LATENCY = "acme.latency"


def test_behaviour_01_a_clash_is_an_error_in_any_path_order(fixture_project, config_with, run_cli):
    good, evil = fixture_project("good-scorers"), fixture_project("evil-scorers")
    config = config_with(LATENCY)

    outcomes = [run_cli("validate", config, path=order) for order in ([good, evil], [evil, good])]

    assert [outcome.exit_code for outcome in outcomes] == [4, 4]
    assert outcomes[0].stderr == outcomes[1].stderr
    assert "error[E0304]: 2 distributions offer the type 'acme.latency'" in outcomes[0].stderr
    assert f"good-scorers 1.0 offers good_scorers:Latency at {good}/good_scorers-1.0.dist-info" in outcomes[0].stderr
    assert f"evil-scorers 6.6.6 offers evil_scorers:Latency at {evil}/evil_scorers-6.6.6.dist-info" in outcomes[0].stderr
    assert "`from: evil-scorers` or `from: good-scorers`" in outcomes[0].stderr


def test_behaviour_02_a_clash_that_nobody_uses_is_only_marked(fixture_project, config_with, validate, run_cli):
    path = [fixture_project("good-scorers"), fixture_project("evil-scorers")]

    assert validate(config_with("acme.zone"), path=path).exit_code == 0
    listed = json.loads(run_cli("list", "--format", "json", path=path).stdout)["plugins"]
    assert {(one["distribution"], one["status"]) for one in listed if one["type"] == LATENCY} == {
        ("good-scorers", "conflict"),
        ("evil-scorers", "conflict"),
    }
    assert {one["status"] for one in listed if one["type"] in ("aaa.first", "zzz.last", "acme.zone")} == {"ok"}
    assert "warning[W0305]: 2 distributions offer the type 'acme.latency'" in run_cli("doctor", path=path).stdout


def test_behaviour_03_from_settles_a_clash(make_distribution, config_with, validate, tmp_path):
    good = make_distribution("good", {"x.first": "good_one:First", LATENCY: "good_one:Latency"})
    bad = make_distribution("bad", {LATENCY: "bad_one:Latency"}, modules={"bad_one": "open('imported', 'w').close()\n"})

    verdict = validate(config_with(f"type: {LATENCY}\nfrom: Good"), path=[bad, good])

    assert verdict.exit_code == 0
    assert verdict.errors == []
    assert not (tmp_path / "imported").exists()


def test_from_without_that_type_is_an_error_at_from(fixture_project, config_with, validate):
    verdict = validate(config_with(f"type: {LATENCY}\nfrom: good-scorer"), path=[fixture_project("good-scorers")])

    error = verdict.the_only_error()
    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0316", "good-scorer")
    assert error["help"] == "did you mean 'good-scorers'?"


def test_behaviour_04_one_distribution_on_two_paths_appears_once(fixture_project, run_cli, tmp_path):
    original = fixture_project("good-scorers")
    linked = tmp_path / "lib64"
    linked.symlink_to(original)

    listed = json.loads(run_cli("list", "--format", "json", path=[original, linked]).stdout)["plugins"]
    doctor = run_cli("doctor", "--strict", path=[original, linked], environment={"COLUMNS": "500"})

    (latency,) = [one for one in listed if one["type"] == LATENCY]
    assert latency["status"] == "ok"
    assert doctor.exit_code == 0, "the same directory under two names is no mistake"
    assert f"{original}/good_scorers-1.0.dist-info" in doctor.stdout
    assert f"{linked}/good_scorers-1.0.dist-info" in doctor.stdout


def test_behaviour_04_egg_info_beside_dist_info_appears_once(make_distribution, run_cli):
    entry_points = {LATENCY: "eggy:Latency"}
    root = make_distribution("eggy", entry_points)
    make_distribution("eggy", entry_points, root=root, egg_info=True)

    listed = json.loads(run_cli("list", "--format", "json", path=[root]).stdout)["plugins"]
    doctor = run_cli("doctor", "--strict", path=[root])

    assert len([one for one in listed if one["type"] == LATENCY]) == 1
    assert doctor.exit_code == 4
    assert "warning[W0302]: eggy has metadata in two places" in doctor.stdout
    assert f"{root}/eggy.egg-info" in doctor.stdout
    assert f"{root}/eggy-1.0.dist-info" in doctor.stdout


def test_behaviour_05_stale_metadata_is_shown_with_both_versions(make_distribution, run_cli, tmp_path):
    stale = make_distribution("twice", {LATENCY: "twice:Latency"}, modules={})
    current = make_distribution("twice", {LATENCY: "twice:Latency", "acme.new": "twice:New"}, version="2.0")

    doctor = run_cli("doctor", path=[stale, current])

    assert doctor.exit_code == 0
    assert run_cli("doctor", "--strict", path=[stale, current]).exit_code == 4
    assert "twice 1.0 shadows twice 2.0" in doctor.stdout
    assert f"twice 1.0 at {stale}/twice-1.0.dist-info is used" in doctor.stdout
    assert f"twice 2.0 at {current}/twice-2.0.dist-info is ignored" in doctor.stdout
    assert f"Python imports 'twice' from {current}/twice.py" in doctor.stdout


def test_a_type_of_shadowed_metadata_is_missing_with_the_reason(make_distribution, config_with, validate):
    stale = make_distribution("twice", {LATENCY: "twice:Latency"}, modules={})
    current = make_distribution("twice", {"acme.new": "twice:New"}, version="2.0")

    error = validate(config_with("acme.new"), path=[stale, current]).the_only_error()

    assert error["code"] == "E0301"
    assert f"twice 2.0 at {current}/twice-2.0.dist-info offers it" in error["notes"][0]
    assert f"{stale}/twice-1.0.dist-info comes first" in error["notes"][0]


def test_behaviour_06_an_empty_leftover_hides_nothing(fixture_project, config_with, validate, run_cli, tmp_path):
    leftover = tmp_path / "leftover" / "good_scorers-0.9.dist-info"
    leftover.mkdir(parents=True)
    path = [leftover.parent, fixture_project("good-scorers")]

    assert validate(config_with(LATENCY), path=path).exit_code == 0
    doctor = run_cli("doctor", "--strict", path=path)
    assert doctor.exit_code == 4
    assert f"an empty metadata directory was left behind at {leftover}" in doctor.stdout


def test_behaviour_07_editable_install_is_listed_with_its_source(fixture_project, run_cli, tmp_path):
    site = tmp_path / "site"
    shutil.copytree(fixture_project("good-scorers"), site)
    origin = {"url": "file:///home/me/good%20scorers", "dir_info": {"editable": True}}
    (site / "good_scorers-1.0.dist-info" / "direct_url.json").write_text(json.dumps(origin))

    text = run_cli("list", path=[site]).stdout
    (latency,) = [one for one in json.loads(run_cli("list", "--format", "json", path=[site]).stdout)["plugins"] if one["type"] == LATENCY]

    assert "good-scorers 1.0, editable: /home/me/good scorers\n" in text
    assert latency["editable"] is True
    assert latency["sourcePath"] == "/home/me/good scorers"


def test_behaviour_08_listing_imports_no_plugin(make_distribution, run_cli, tmp_path):
    site = tmp_path / "site"
    trap = "raise AssertionError('imported')\n"
    for number in range(30):
        make_distribution(f"ours-{number}", {f"ours.n{number}": f"ours_{number}:Plugin"}, modules={f"ours_{number}": trap}, root=site)
    for number in range(170):
        make_distribution(f"theirs-{number}", {"run": "theirs:main"}, group="console_scripts", modules={}, root=site)

    listed = json.loads(run_cli("list", "--format", "json", path=[site]).stdout)["plugins"]

    assert sorted(one["type"] for one in listed if one["type"].startswith("ours.")) == sorted(f"ours.n{number}" for number in range(30))


def test_behaviour_09_the_list_is_stable_on_a_shuffled_path(fixture_project, run_cli):
    path = [fixture_project(name) for name in ("good-scorers", "evil-scorers", "misfits", "future-api")]

    first = run_cli("list", "--format", "json", path=path).stdout
    second = run_cli("list", "--format", "json", path=path[::-1]).stdout

    assert first == second
    assert json.loads(first)["plugins"] == sorted(
        json.loads(first)["plugins"], key=lambda one: (one["type"], one["api"], one["distribution"])
    )


@pytest.mark.parametrize("name", ["Misfit_Name"])
def test_behaviour_10_a_name_outside_the_grammar_is_flagged(fixture_project, config_with, validate, run_cli, name):
    path = [fixture_project("misfits")]

    verdict = validate(config_with(name), path=path)
    error = verdict.the_only_error()

    assert (verdict.exit_code, error["code"], verdict.pointed_at(error)) == (4, "E0302", name)
    assert any(line.split() == [name, "invalid", "name"] for line in run_cli("list", path=path).stdout.splitlines())
    assert f"error[E0302]: '{name}' is not a valid plugin type" in run_cli("doctor", path=path).stdout


def test_behaviour_11_a_builtin_type_is_never_taken_over(fixture_project, config_with, validate):
    path = [fixture_project("shadowing")]

    error = validate(config_with("queue-scorer"), path=path).the_only_error()

    assert error["code"] == "E0315"
    assert "the built-in type 'queue-scorer' is also offered by shadowing" in error["message"]
    for choice in ("endpick", "shadowing"):
        assert validate(config_with(f"type: queue-scorer\nfrom: {choice}"), path=path).exit_code == 0
