"""`endpick simulate`: its output is complete, repeatable, and says what was wrong."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from endpick.cli.main import main
from endpick.diagnostics import ExitCode
from endpick_lab.figures import SimulateOutput

WORKLOAD = """
duration: 20s
traffic: [{rate: 4, questionTokens: 200, outputTokens: 20, tenants: 2, prefixTokens: 640}]
"""
CONFIG = "apiVersion: llm-d.ai/v1\nkind: EndpointPickerConfig\nplugins: [{type: random-picker}]\n"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "load.yaml").write_text(WORKLOAD)
    (tmp_path / "random.yaml").write_text(CONFIG)
    return tmp_path


def simulate(*arguments: str):
    return CliRunner().invoke(main, ["simulate", *arguments, "--servers", "2", "--kv-blocks", "500"])


def test_two_configurations_and_the_oracle_as_json():
    once = simulate("default", "random.yaml", "oracle", "--trace", "load.yaml", "--slo-ttft", "1s", "--format", "json")
    assert once.exit_code == 0, once.output
    output = SimulateOutput.model_validate(json.loads(once.stdout))
    default, drawn, oracle = output.results
    assert [one["config"] for one in output.results] == ["default", "random.yaml", "oracle"]
    assert default["requests"] == drawn["requests"] == oracle["requests"] > 40
    times = default["ttft_seconds"]
    assert times is not None
    assert times["p50"] <= times["p90"] <= times["p99"]
    assert drawn["regret"] is not None
    assert oracle["regret"] == 0.0
    assert default["slo_attainment"] == 1.0
    again = simulate("default", "--trace", "load.yaml", "--slo-ttft", "1s", "--format", "json")
    assert SimulateOutput.model_validate(json.loads(again.stdout)).results == [{**default, "regret": None}]


def test_tables_fit_the_terminal_and_the_report_has_plots(folder):
    pytest.importorskip("matplotlib", reason="plots need matplotlib: pip install 'endpick[simulate]'")
    result = simulate("default", "--trace", "load.yaml", "--html", "report.html")
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines()[1:])
    assert "TTFT MEAN" in result.stdout
    page = (folder / "report.html").read_text()
    assert page.count("<svg") == 3
    assert "<script" not in page
    assert "http://www.w3.org" in page  # of SVG; nothing is fetched


@pytest.fixture
def long_run(folder):
    """A simulation that would take minutes, and its two workers."""
    (folder / "long.yaml").write_text(WORKLOAD.replace("20s", "20000s"))
    command = [sys.executable, "-m", "endpick", "simulate", "default", "default", "--trace", "long.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as running:
        workers: list[int] = []
        while len(workers) < 2 and running.poll() is None:
            children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
            workers = [int(child) for child in children if b"spawn_main" in (Path("/proc") / child / "cmdline").read_bytes()]
        ends = [os.pidfd_open(worker) for worker in workers]
        yield running, ends
        running.kill()
    for end in ends:
        os.close(end)


@pytest.mark.long
@pytest.mark.timeout(60)
@pytest.mark.parametrize(("number", "says"), [(signal.SIGINT, b"interrupted: nothing is reported\n"), (signal.SIGKILL, b"")])
def test_a_run_that_is_stopped_leaves_no_process(long_run, number, says):
    running, ends = long_run
    running.send_signal(number)
    assert says in running.communicate()[1]
    assert running.returncode == (ExitCode.INTERRUPTED if says else -signal.SIGKILL)
    assert len(ends) == 2
    for end in ends:
        select.select([end], [], [])  # readable once the process has ended


@pytest.mark.long
def test_a_full_disk_is_named():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "endpick", "simulate", "oracle", "--trace", "load.yaml", "--servers", "1"]
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert ended.returncode == ExitCode.FAILED
    assert ended.stderr == b"error: the output cannot be written: the disk is full\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["default"], ExitCode.USAGE, "Missing option '--trace'"),
        (["default", "--trace", "missing.jsonl"], ExitCode.FAILED, "missing.jsonl cannot be read: No such file or directory"),
        (["default", "--trace", "random.yaml"], ExitCode.USAGE, "random.yaml cannot be used: duration: Field required"),
        (["load.yaml", "--trace", "load.yaml"], ExitCode.CONFIG_INVALID, "E0201"),
        (["default", "--trace", "load.yaml", "--until", "soon"], ExitCode.USAGE, "'soon' is not a duration"),
        (["default", "--trace", "load.yaml", "--until", "1ns"], ExitCode.USAGE, "no request arrives in the time that is simulated"),
        (["default", "--trace", "load.yaml", "--rate-scale", "0"], ExitCode.USAGE, "--rate-scale"),
        (["default", "--trace", "load.yaml", "--html", "missing/report.html"], ExitCode.FAILED, "missing/report.html cannot be written"),
    ],
)
def test_mistakes_are_explained(arguments, code, message):
    result = simulate(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
