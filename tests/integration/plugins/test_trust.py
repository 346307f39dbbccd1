"""What `endpick doctor` says that trust rests on."""

from __future__ import annotations

import json
import os

import pytest

from conftest import SOURCES

ENTRY_POINTS = {"acme.a": "trusted:A"}


@pytest.fixture
def trust(run_cli):
    """`trust(…)`: the part about trust in the JSON of `endpick doctor`."""

    def ask(**options):
        return json.loads(run_cli("doctor", "--format", "json", **options).stdout)["trust"]

    return ask


def test_the_state_of_the_lock_file_is_told(make_distribution, run_cli, trust, tmp_path):
    root = make_distribution("trusted", ENTRY_POINTS)
    states = [trust(path=[root])["lock"]]
    run_cli("lock", path=[root])
    states.append(trust(path=[root])["lock"])
    (root / "trusted.py").write_text("# changed\n")
    states.append(trust(path=[root])["lock"])
    text = run_cli("doctor", path=[root]).stdout
    (tmp_path / "endpick.lock.json").write_text("{")
    states.append(trust(path=[root])["lock"])

    assert states == ["missing", "matches", "differs", "unusable"]
    assert "\nlock: endpick.lock.json differs from what is installed; see `endpick lock --check`\n" in text
    assert "warning[W0310]: files of trusted 1.0 were changed after it was installed: trusted.py" in text


def test_what_comes_first_on_the_path_is_told(trust, run_cli, tmp_path):
    (tmp_path / "first").mkdir()
    told = trust(path=[tmp_path / "first"], environment={"PYTHONSAFEPATH": ""})
    safe = trust(environment={"PYTHONSAFEPATH": "1", "PYTHONPATH": f":{os.pathsep.join(map(str, SOURCES))}"})

    assert told["pythonPath"][0] == str(tmp_path / "first")
    assert told["safePath"] is False
    assert safe["safePath"] is True
    assert safe["pythonPath"] == [str(tmp_path), *map(str, SOURCES)], "an empty entry means the working directory"
    assert f"PYTHONPATH puts {tmp_path / 'first'} first" in run_cli("doctor", path=[tmp_path / "first"]).stdout


def test_lock_reports_changed_files_when_written(make_distribution, run_cli, tmp_path):
    root = make_distribution("trusted", ENTRY_POINTS)
    (root / "trusted.py").write_text("# changed\n")

    locked = run_cli("lock", path=[root])

    assert locked.exit_code == 0
    assert "error[E0308]: files of trusted 1.0 were changed after it was installed: trusted.py" in locked.stderr
    assert (tmp_path / "endpick.lock.json").exists()
