"""What the kit and `endpick test` say of plugins that are installed wrongly, on real distributions."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from endpick import __version__
from endpick.cli.main import main

GOOD = '''
import numpy as np

from endpick.api import Scorer


class Fair(Scorer):
    """Every endpoint is equal."""

    def score(self, request, endpoints, state):
        return np.ones(len(endpoints))
'''
SPOILT = GOOD.replace("np.ones(len(endpoints))", "np.full(len(endpoints), 7.0)")


@pytest.fixture
def acme(make_distribution):
    """`acme({"acme.fair": "acme_fair:Fair"})`: a distribution with one good scorer and these entry points."""

    def make(entry_points, *, name="acme-fair", module="acme_fair", source=GOOD, requires=("endpick>=0.1",), **more):
        return make_distribution(name, entry_points, modules={module: source}, requires=requires, **more)

    return make


def test_a_good_plugin_passes_with_exit_code_0(acme, run_cli):
    result = run_cli("test", "acme.fair", path=[acme({"acme.fair": "acme_fair:Fair"})])

    assert (result.exit_code, result.stderr) == (0, "")
    assert re.fullmatch(r"acme\.fair \(acme-fair 1\.0\): \d+ passed\n", result.stdout)


def test_fault_shows_rule_class_help_and_exit_code_4(acme, run_cli):
    result = run_cli("test", "acme.fair", path=[acme({"acme.fair": "acme_fair:Fair"}, source=SPOILT)])

    assert result.exit_code == 4
    assert "acme.fair (acme-fair 1.0): " in result.stdout
    assert "acme.fair: `score` answers 7 when every endpoint has reported" in result.stdout
    assert "help: scale scores to 0..1; weights belong into the profile" in result.stdout
    assert "[scorer_stays_in_range]" in result.stdout
    assert "class: acme_fair:Fair" in result.stdout
    assert "Traceback" not in result.stdout + result.stderr


def test_json_tells_each_check_and_the_versions(acme, run_cli):
    result = run_cli("test", "--dist", "acme-fair", "--format", "json", path=[acme({"acme.fair": "acme_fair:Fair"}, source=SPOILT)])

    document = json.loads(result.stdout)
    (plugin,) = document["plugins"]
    failed = [check for check in plugin["checks"] if check["status"] == "failed"]
    assert result.exit_code == 4
    assert document["pluginApi"] == 1
    assert (plugin["type"], plugin["distribution"], plugin["version"], plugin["class"]) == (
        "acme.fair",
        "acme-fair",
        "1.0",
        "acme_fair:Fair",
    )
    assert [check["id"] for check in failed] == ["scorer_stays_in_range"]
    assert failed[0]["findings"][0].keys() == {"message", "help"}
    assert plugin["conforms"] is False


def test_a_plugin_that_is_not_installed_is_named(acme, run_cli):
    result = run_cli("test", "acme.fiar", path=[acme({"acme.fair": "acme_fair:Fair"})])

    assert result.exit_code == 4
    assert "no installed plugin offers the type 'acme.fiar'" in result.stderr
    assert "did you mean 'acme.fair'?" in result.stderr


def test_a_distribution_that_is_not_installed_is_named(run_cli):
    result = run_cli("test", "--dist", "acme-nowhere")

    assert result.exit_code == 4
    assert "no distribution 'acme-nowhere' is installed" in result.stderr


def test_distribution_without_entry_point_gets_help(acme, run_cli):
    directory = acme({"acme.fair": "acme_fair:Fair"}, group="acme.plugins")

    result = run_cli("test", "--dist", "acme-fair", path=[directory])

    assert result.exit_code == 4
    assert "acme-fair 1.0 is installed and has no entry points in the group 'endpick.plugins.v1'" in result.stderr
    assert '[project.entry-points."endpick.plugins.v1"]' in result.stderr
    assert str(directory) in result.stderr
    assert "note: it has entry points in acme.plugins\n" in result.stderr


def test_an_entry_point_that_leads_nowhere_is_quoted(acme, run_cli):
    result = run_cli("test", "acme.fair", path=[acme({"acme.fair": "acme_fair:Faire"})])

    assert result.exit_code == 4
    assert "the entry point of 'acme.fair' in acme-fair 1.0 is wrong: module 'acme_fair' has no 'Faire'" in result.stderr


def test_an_entry_point_with_a_dot_for_the_colon_is_told_so(acme, run_cli):
    result = run_cli("test", "acme.fair", path=[acme({"acme.fair": "acme_fair.Fair"})])

    assert result.exit_code == 4
    assert "is wrong: there is no module 'acme_fair.Fair'; a colon stands between module and class" in result.stderr


def test_an_entry_point_under_a_former_name_alone_is_named(acme, run_cli):
    source = GOOD.replace("    def score", '    aliases = ("acme.formerly",)\n\n    def score')

    result = run_cli("test", "acme.formerly", path=[acme({"acme.formerly": "acme_fair:Fair"}, source=source)])

    assert result.exit_code == 4
    assert "error[E0312]: 'acme.formerly' is a former name" in result.stderr


def test_a_plugin_for_another_endpick_is_refused(acme, run_cli):
    result = run_cli("test", "acme.fair", path=[acme({"acme.fair": "acme_fair:Fair"}, requires=["endpick>=99"])])

    assert result.exit_code == 4
    assert "error[E0306]: 'acme.fair' from acme-fair 1.0 needs endpick>=99" in result.stderr


@pytest.mark.parametrize("requires", [[], ["numpy>=2"], ["endpick"], ["endpick<1"]])
def test_distribution_without_endpick_requirement_gets_help(acme, run_cli, requires):
    result = run_cli("test", "acme.fair", path=[acme({"acme.fair": "acme_fair:Fair"}, requires=requires)])

    assert result.exit_code == 4
    assert "acme-fair does not say which endpick it needs" in result.stdout
    assert f'add "endpick>={__version__}" to its `dependencies`' in result.stdout


def test_a_type_installed_twice_names_both_distributions(acme, run_cli):
    first = acme({"acme.fair": "acme_fair:Fair"})
    second = acme({"acme.fair": "other_fair:Fair"}, name="other-fair", module="other_fair")

    for path in ([first, second], [second, first]):
        result = run_cli("test", "acme.fair", path=path)
        assert result.exit_code == 4
        assert "2 distributions offer the type 'acme.fair'" in result.stderr
        assert "acme-fair 1.0 offers acme_fair:Fair" in result.stderr
        assert "other-fair 1.0 offers other_fair:Fair" in result.stderr


def test_a_module_that_fails_to_import_is_no_traceback_of_ours(acme, run_cli):
    result = run_cli("test", "acme.fair", path=[acme({"acme.fair": "acme_fair:Fair"}, source="import nowhere_to_be_found\n")])

    assert result.exit_code == 4
    assert "needs the module 'nowhere_to_be_found', which is not installed" in result.stderr
    assert "Traceback" not in result.stderr


def test_third_party_plugins_are_tested_by_default(acme, run_cli):
    good = acme({"acme.fair": "acme_fair:Fair"})

    result = run_cli("test", path=[good])

    assert result.exit_code == 0
    assert "acme.fair (acme-fair 1.0)" in result.stdout
    assert "queue-scorer" not in result.stdout


def test_the_kit_works_where_pytest_is_not_installed(acme, run_cli, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pytest'] = None\n")

    result = run_cli("test", "acme.fair", path=[tmp_path, acme({"acme.fair": "acme_fair:Fair"})])
    tried = run_cli("try", "--help", path=[tmp_path])

    assert (result.exit_code, result.stderr) == (0, "")
    assert (tried.exit_code, tried.stderr) == (0, "")


def test_environment_without_plugins_is_an_error(isolated_plugins):
    result = CliRunner().invoke(main, ["test"])

    assert (result.exit_code, result.stdout) == (4, "")
    assert "error[E0301]: no plugin is installed except endpick's own" in result.stderr
    assert "help: install your project into the environment of this endpick: python -m pip install --editable ." in result.stderr


@pytest.mark.parametrize("place", ["src/acme_fair.py", "acme_fair:Fair"])
def test_a_place_in_the_code_is_not_taken_for_a_type(run_cli, place):
    result = run_cli("test", place)

    assert result.exit_code == 2
    assert f"'{place}' is a place in the code; give the plugin type, as `endpick list` shows it" in " ".join(result.stderr.split())


def test_other_plugins_are_tested_although_one_cannot_be_loaded(acme, run_cli):
    good = acme({"acme.fair": "acme_fair:Fair"})
    bad = acme({"acme.gone": "gone:Gone"}, name="acme-gone", module="elsewhere")

    result = run_cli("test", path=[good, bad])

    assert result.exit_code == 4
    assert "acme.fair (acme-fair 1.0): " in result.stdout
    assert "the entry point of 'acme.gone' in acme-gone 1.0 is wrong" in result.stderr


def test_json_has_what_could_be_tested_and_what_could_not(acme, run_cli):
    good = acme({"acme.fair": "acme_fair:Fair"})
    bad = acme({"acme.gone": "gone:Gone"}, name="acme-gone", module="elsewhere")

    result = run_cli("test", "--format", "json", path=[good, bad])

    plugins = {plugin["type"]: plugin for plugin in json.loads(result.stdout)["plugins"]}
    assert result.exit_code == 4
    assert {name: plugin["conforms"] for name, plugin in plugins.items()} == {"acme.fair": True, "acme.gone": False}
    assert [check["id"] for check in plugins["acme.gone"]["checks"]] == ["loads"]
    assert "there is no module 'gone' [E0303]" in plugins["acme.gone"]["checks"][0]["findings"][0]["message"]
