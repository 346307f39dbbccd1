"""The demo end to end: real Envoy, real simulators, a stand-in for the picker."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from endpick.demo.processes import ChildFailed
from endpick.demo.runner import DemoSettings, run_demo
from endpick.demo.table import LiveTable
from endpick.demo.trial import Trial, run_trial
from endpick.demo.workload import WorkloadSettings, make_workload
from endpick.diagnostics import ExitCode

DEMO_PROCESS = Path(__file__).parent / "demo_process.py"
WORKLOAD = make_workload(WorkloadSettings(span_seconds=1.0, requests_per_second=10, turns=2), seed=3)

pytestmark = pytest.mark.timeout(90)


async def until(condition: Callable[[], bool]) -> None:
    """Poll, bounded by the timeout of the test."""
    while not condition():  # noqa: ASYNC110 - other processes give no event to wait for
        await asyncio.sleep(0.02)


def is_empty(folder: Path) -> bool:
    return not any(folder.iterdir())


class Terminal(io.StringIO):
    """A stream on which the live table draws at once, as soon as the load begins."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def demo(envoy: Path, picker: tuple[str, ...], tmp_path: Path) -> Callable[[], Awaitable[asyncio.subprocess.Process]]:
    def start() -> Awaitable[asyncio.subprocess.Process]:
        return asyncio.create_subprocess_exec(
            sys.executable,
            *(DEMO_PROCESS, envoy, picker[1], "120"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )

    return start


@pytest.fixture
def trial(envoy: Path, picker: tuple[str, ...]) -> Trial:
    return Trial("prefix-aware", "prefix-aware.yaml", 2, envoy, WORKLOAD, 30.0, picker)


@pytest.mark.asyncio
async def test_the_demo_answers_every_request_twice_and_leaves_no_process(envoy, picker, processes):
    before = processes.children_of(os.getpid())
    output = io.StringIO()
    assert await run_demo(DemoSettings(envoy, 4.0, requests_per_second=10, picker=picker), output)
    text = output.getvalue()
    assert text.startswith("10 requests of 2 chats, through Envoy to 4 simulated model servers, twice")
    figures = [line.split() for line in text.splitlines() if line.startswith(("prefix-aware   ", "random-picker   "))]
    assert [line[:3] for line in figures] == [["prefix-aware", "10", "0"], ["random-picker", "10", "0"]]
    assert processes.children_of(os.getpid()) == before


@pytest.mark.asyncio
async def test_a_tenant_that_stays_on_one_server_finds_its_prompt_cached(trial: Trial, tmp_path: Path):
    outcomes = await run_trial(trial, tmp_path, LiveTable(io.StringIO()))
    assert [outcome.error for outcome in outcomes] == [None] * len(outcomes)
    servers: dict[str, set[str | None]] = {}
    for outcome in outcomes:
        servers.setdefault(outcome.chat, set()).add(outcome.served_by)
    assert all(len(names) == 1 for names in servers.values())
    later_turns = [outcome for index, outcome in enumerate(outcomes) if outcome.chat in {o.chat for o in outcomes[:index]}]
    assert later_turns
    assert all(outcome.cached_tokens > 0.9 * outcome.prompt_tokens - 100 for outcome in later_turns)


@pytest.mark.asyncio
async def test_a_picker_that_does_not_start_is_reported_with_what_it_printed(trial: Trial, tmp_path: Path, processes):
    before = processes.children_of(os.getpid())
    broken = replace(trial, picker=(sys.executable, "-c", "raise SystemExit('the config is wrong')"))
    with pytest.raises(ChildFailed, match=r"endpick ended with status 1 before it was ready\n  \| the config is wrong"):
        await run_trial(broken, tmp_path, LiveTable(io.StringIO()))
    assert processes.children_of(os.getpid()) == before


@pytest.mark.asyncio
async def test_a_picker_that_dies_during_the_load_ends_the_trial(trial: Trial, tmp_path: Path, processes):
    before = processes.children_of(os.getpid())
    long = make_workload(WorkloadSettings(span_seconds=60.0, requests_per_second=1), seed=3)
    screen = Terminal()
    run = asyncio.create_task(run_trial(replace(trial, workload=long), tmp_path, LiveTable(screen)))
    await until(lambda: bool(screen.getvalue()))
    started = processes.children_of(os.getpid()) - before
    (picker,) = [pid for pid in started if "stub_picker" in processes.command(pid)]
    os.kill(picker, signal.SIGKILL)
    with pytest.raises(ChildFailed, match="endpick ended unexpectedly with status -9"):
        await run
    assert processes.children_of(os.getpid()) == before


@pytest.mark.asyncio
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("children", [1, 6])
async def test_an_interrupted_demo_stops_everything_it_started(demo, processes, tmp_path: Path, how: signal.Signals, children: int):
    process = await demo()
    await until(lambda: len(processes.running_in(tmp_path)) >= children)
    process.send_signal(how)
    process.send_signal(how)
    _, errors = await process.communicate()
    assert process.returncode == ExitCode.INTERRUPTED, errors.decode()
    assert b"Traceback" not in errors
    assert processes.running_in(tmp_path) == set()
    assert is_empty(tmp_path)


@pytest.mark.asyncio
async def test_a_killed_demo_takes_everything_with_it(demo, processes, tmp_path: Path):
    process = await demo()
    await until(lambda: len(processes.running_in(tmp_path)) == 6)
    process.kill()
    await process.communicate()
    await until(lambda: not processes.running_in(tmp_path))


@pytest.mark.asyncio
async def test_without_envoy_the_command_says_how_to_get_it():
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "endpick", "demo"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "ENDPICK_ENVOY": "/nowhere/envoy"},
    )
    output, errors = await process.communicate()
    assert process.returncode == ExitCode.FAILED
    assert (output, errors) == (b"", b"error: $ENDPICK_ENVOY names /nowhere/envoy, which is not an executable file\n")
