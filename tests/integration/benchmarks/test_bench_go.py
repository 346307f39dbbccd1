"""The comparison with a picker in Go, with endpick in its place: both sides are measured, and what is missing is said."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
STAND_IN = f"""\
#!{sys.executable}
# Takes the flags of a picker in Go, and drops those that endpick does not have.
import sys

from endpick.cli.main import main

GO_ONLY = ("--metrics-endpoint-auth", "--tracing", "--enable-pprof", "--pool-namespace", "-v", "--zap-devel")
main(["serve", *(one for one in sys.argv[1:] if one.split("=")[0] not in GO_ONLY)])
"""
ROW = re.compile(r"^\| 1 KB \| 2 \| (\d+\.\d+) \| (\d+), (\d+) \| (\d+\.\d+), (\d+\.\d+) \| 0, 0 \|$", re.MULTILINE)


def bench(*arguments: str, module: str = "benchmarks.go") -> subprocess.CompletedProcess[str]:
    """Without the compiled endpick, which is not there on every machine."""
    environment = os.environ | {"ENDPICK_COMPILED_VENV": "/nowhere"}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=90, check=False)


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset, of util-linux")
def test_both_sides_are_driven_and_the_table_has_the_ratio_first(tmp_path):
    stand_in = tmp_path / "epp"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    small = ("--rounds=1", "--seconds=0.3", "--endpoints=2", "--only=1 KB", "--connections=2", "--streams=2")

    done = bench(f"--epp={stand_in}", *small, "--picker-core=0", "--load-core=0")

    assert done.returncode == 0, done.stderr + done.stdout
    assert "| load | endpoints | Go : interpreted | CPU µs: Go, interpreted |" in done.stdout
    row = ROW.search(done.stdout)
    assert row is not None, done.stdout
    assert all(float(figure) > 0 for figure in row.groups())


def test_a_picker_that_does_not_start_ends_it_with_its_own_words(tmp_path):
    broken = tmp_path / "epp"
    broken.write_text("#!/bin/sh\necho it has no such flag >&2\nexit 3\n")
    broken.chmod(0o755)

    done = bench(f"--epp={broken}", "--rounds=1", "--seconds=0.1", "--endpoints=2", "--picker-core=0", "--load-core=0")

    assert done.returncode == 1
    assert "Go: the picker ended with status 3 before it decided" in done.stderr
    assert "it has no such flag" in done.stderr


def test_without_a_picker_in_go_it_says_how_to_give_one():
    done = bench()

    assert (done.returncode, done.stdout.count("make bench-go GO_EPP=")) == (0, 1)


@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset, of util-linux")
def test_queues_of_both_sides_are_overloaded_and_every_tenant_is_accounted_for(tmp_path):
    stand_in = tmp_path / "epp"
    stand_in.write_text(STAND_IN)
    stand_in.chmod(0o755)
    small = ("--rounds=1", "--seconds=1.5", "--warm-seconds=0.5", "--endpoints=2", "--places=2", "--service-seconds=0.05", "--only=in turn")

    done = bench(f"--epp={stand_in}", *small, "--most-waiting=10", "--picker-core=0", "--load-core=0", module="benchmarks.go.overload")

    assert done.returncode == 0, done.stderr + done.stdout
    rows = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| in turn")]
    assert [(row[0], row[1]) for row in rows] == [
        (f"| {queues}", picker) for queues in ("in turn, requests counted", "in turn, load as reported") for picker in ("Go", "interpreted")
    ]
    for row in rows:
        shares = [float(share) for share in row[4].split(", ")]
        assert sum(shares) == pytest.approx(1.0, abs=0.002)
        assert all(shares)
    assert "rejected-saturated" in rows[1][-1], "half as much again as the servers can answer was asked for"


def test_without_a_picker_in_go_the_comparison_of_queues_says_so():
    done = bench(module="benchmarks.go.overload")
    assert done.returncode == 0
    assert "no Go endpoint picker is given" in done.stdout
