"""Child processes: ready, failed, stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from endpick_lab.demo import processes as module
from endpick_lab.demo.processes import Child, ChildFailed, Children

SLEEP = (sys.executable, "-c", "print('up', flush=True); import time; time.sleep(60)")
STUBBORN = (
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
)


def printed(child: Child, text: str):
    async def probe() -> bool | None:
        return text in child.output() or None

    return probe


@pytest.mark.asyncio
async def test_children_are_stopped_when_the_block_is_left(tmp_path: Path):
    async with Children(tmp_path) as children:
        child = await children.start("sleeper", SLEEP)
        await child.wait_until_ready(printed(child, "up"), 20)
        assert child.process.returncode is None
    assert child.process.returncode == -15


@pytest.mark.asyncio
async def test_children_are_stopped_when_the_block_raises(tmp_path: Path):
    started: list[Child] = []

    async def start_and_fail() -> None:
        async with Children(tmp_path) as children:
            started.append(await children.start("sleeper", SLEEP))
            raise LookupError

    with pytest.raises(LookupError):
        await start_and_fail()
    assert [child.process.returncode for child in started] == [-15]


@pytest.mark.asyncio
async def test_a_child_that_will_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "STOP_SECONDS", 0.1)
    async with Children(tmp_path) as children:
        child = await children.start("stubborn", STUBBORN)
        await child.wait_until_ready(printed(child, "up"), 20)
    assert child.process.returncode == -9


@pytest.mark.asyncio
async def test_child_that_ends_early_is_an_error_with_its_log(tmp_path: Path):
    script = "print(*range(100), sep='\\n'); raise SystemExit(3)"
    async with Children(tmp_path) as children:
        child = await children.start("brief", (sys.executable, "-c", script))
        with pytest.raises(ChildFailed) as raised:
            await child.wait_until_ready(printed(child, "never"), 20)
    lines = str(raised.value).splitlines()
    assert lines[0] == "brief ended with status 3 before it was ready"
    assert lines[1:] == [f"  | {number}" for number in range(85, 100)]


@pytest.mark.asyncio
async def test_a_child_that_is_never_ready_is_an_error(tmp_path: Path):
    async with Children(tmp_path) as children:
        child = await children.start("slow", SLEEP)
        with pytest.raises(ChildFailed, match="slow was not ready within 0 s"):
            await child.wait_until_ready(printed(child, "never"), 0.05)


@pytest.mark.asyncio
async def test_watching_reports_the_first_child_that_ends(tmp_path: Path):
    async with Children(tmp_path) as children:
        await children.start("steady", SLEEP)
        await children.start("brief", (sys.executable, "-c", "raise SystemExit('ouch')"))
        with pytest.raises(ChildFailed, match=r"brief ended unexpectedly with status 1\n  \| ouch"):
            await children.watch()


@pytest.mark.asyncio
async def test_a_program_that_does_not_exist_is_an_os_error(tmp_path: Path):
    async with Children(tmp_path) as children:
        with pytest.raises(FileNotFoundError):
            await children.start("ghost", (tmp_path / "ghost",))
