"""Attempts at a picker: what one does to it is seen by who judges it, and what does nothing is no finding."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.attempts.catalogue import Noticed
from benchmarks.attempts.hostile import CLASSES, attempts_of
from tests.integration.benchmarks import harm

ROOT = Path(__file__).parents[3]
WELL = Noticed(
    requests=1000,
    lost=0,
    median_wait_seconds=0.01,
    longest_wait_seconds=0.1,
    probes=20,
    failed_probes=0,
    longest_probe_seconds=0.05,
    longest_turn_seconds=0.02,
    most_resident_mib=100.0,
    most_memory_mib=512.0,
    exit_code=0,
    ended_early=False,
    faults=(),
    told=(),
    made=3,
)
ILL = {
    "requests": 0,
    "lost": 1,
    "median_wait_seconds": 1.5,
    "failed_probes": 1,
    "longest_turn_seconds": 0.11,
    "most_resident_mib": 620.0,
    "exit_code": 1,
    "ended_early": True,
    "faults": ("a traceback",),
    "told": ("a secret",),
    "made": 0,
}


def test_nothing_is_found_where_all_is_well():
    assert WELL.findings(harm.ATTEMPTS[0]) == ()


@pytest.mark.parametrize("name", ILL)
def test_each_figure_that_is_not_as_promised_is_a_finding(name):
    assert len(dataclasses.replace(WELL, **{name: ILL[name]}).findings(harm.ATTEMPTS[0])) == 1


def test_each_attempt_says_what_it_does_and_has_a_name_of_its_own():
    attempts = [each for of in CLASSES for each in attempts_of(f"benchmarks.attempts.{of}")]
    assert all(each.about.endswith(".") for each in attempts), [each.name for each in attempts if not each.about.endswith(".")]
    named = [(each.of, each.name) for each in attempts]
    assert len(set(named)) == len(named)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_what_an_attempt_does_to_a_picker_is_seen():
    command = [sys.executable, "-m", "benchmarks.attempts", "--together", "--seconds=2", "--module=tests.integration.benchmarks.harm"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    rows = {
        row[1]: row
        for row in ([cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines())
        if len(row) == 10
    }
    came = {name: row[-1] for name, row in rows.items()}
    assert came["nothing"] == "nothing", done.stdout + done.stderr
    assert int(rows["nothing"][3]) > 0
    assert "ended by itself" in came["an-end"]
    assert "lost" in came["an-end"]
    assert came["a-line"] == "the log has a line of another kind: 'all is well'"
    assert came["a-word"] == "a secret is in the log"
    assert "were lost" in came["a-refusal"]
    assert "were lost" in came["a-late-refusal"]
    assert done.returncode == 1
