"""File discovery: how the file is read at start, and how its changes are followed."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pydantic import ValidationError

from endpick.api import ConfigurationError, PluginContext
from endpick.data.table import EndpointTable
from endpick_builtin import listed_discovery as module
from endpick_builtin.listed_discovery import FileDiscovery, FileDiscoveryParameters
from unit.builtin.endpoint_files import EXPECTED, GOOD, entry, listing, shown


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "endpoints.yaml"


@pytest.fixture
def fast(monkeypatch) -> None:
    """Look at the file often, so that tests need not wait."""
    monkeypatch.setattr(module, "LOOK_INTERVAL_SECONDS", 0.005)


def discovery(path: Path | str, *, watch: bool = False, **more: object) -> FileDiscovery:
    parameters = FileDiscoveryParameters.model_validate({"path": str(path), "watchFile": watch, **more})
    return FileDiscovery("files", parameters, PluginContext(logger=logging.getLogger("tests.discovery")))


@asynccontextmanager
async def watching(path: Path):
    """The table that a watching discovery fills, once it is ready."""
    table = EndpointTable(lambda: 0.0)
    task = asyncio.create_task(discovery(path, watch=True).run(table))
    try:
        await asyncio.wait_for(table.is_ready.wait(), 5)
        yield table
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    """Wait until a condition holds."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for happens in the plugin, which signals nothing
            await asyncio.sleep(0.002)

    try:
        await asyncio.wait_for(wait(), 10)
    except TimeoutError:
        pytest.fail(otherwise())


async def becomes(table: EndpointTable, names: list[str]) -> None:
    """Wait until the pool has these members."""

    def members() -> list[str]:
        return [endpoint.name.removeprefix("default/") for endpoint in table.view()]

    await eventually(lambda: members() == names, lambda: f"the pool is {members()}, not {names}")


async def logged(caplog, message: str) -> None:
    """Wait until a message is logged."""
    await eventually(
        lambda: any(message in record.getMessage() for record in caplog.records),
        lambda: f"'{message}' is not among {[record.getMessage() for record in caplog.records]}",
    )


def counting(monkeypatch, name: str) -> list[Path]:
    """Let calls of a function of the module be counted: the list grows by one path per call."""
    calls: list[Path] = []
    real = getattr(module, name)

    def counted(path: Path, *more: object):
        calls.append(path)
        return real(path, *more)

    monkeypatch.setattr(module, name, counted)
    return calls


@pytest.mark.asyncio
async def test_without_watching_the_file_is_read_once(path):
    path.write_text(GOOD)
    table = EndpointTable(lambda: 0.0)
    await discovery(path).run(table)
    assert shown(table.view()) == EXPECTED
    assert table.is_ready.is_set()


@pytest.mark.asyncio
async def test_a_relative_path_starts_at_the_working_directory(path, monkeypatch):
    path.write_text(GOOD)
    monkeypatch.chdir(path.parent)
    table = EndpointTable(lambda: 0.0)
    await discovery(path.name).run(table)
    assert len(table.view()) == 2


@pytest.mark.asyncio
async def test_at_start_every_mistake_is_listed_and_nothing_is_applied(path):
    path.write_text(listing(entry("good"), entry("bad", port="0"), entry("worse", address="nowhere", port="x")))
    table = EndpointTable(lambda: 0.0)
    with pytest.raises(ConfigurationError) as failure:
        await discovery(path).run(table)
    assert str(failure.value).splitlines() == [
        f"endpoint file {path} has 3 mistakes:",
        "  line 3: `port` of 'default/bad' must be \"1\" to \"65535\", not '0'",
        "  line 4: `address` of 'default/worse' must be an IP address such as 10.0.0.7, not 'nowhere'",
        "  line 4: `port` of 'default/worse' must be \"1\" to \"65535\", not 'x'",
    ]
    assert not table.is_ready.is_set()
    assert len(table.view()) == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("trouble", ["missing", "a folder"])
async def test_a_file_that_cannot_be_read_at_start_ends_start_up(path, trouble):
    if trouble == "a folder":
        path.mkdir()
    reason = {"missing": "No such file", "a folder": "Is a directory"}[trouble]
    with pytest.raises(ConfigurationError, match=rf"endpoint file .*endpoints\.yaml cannot be read: .*{reason}"):
        await discovery(path, watch=True).run(EndpointTable(lambda: 0.0))


@pytest.mark.asyncio
async def test_a_file_of_exactly_one_mebibyte_is_read(path):
    path.write_text(GOOD + "#" * (2**20 - len(GOOD)))
    table = EndpointTable(lambda: 0.0)
    await discovery(path).run(table)
    assert len(table.view()) == 2


def write_in_place(path: Path, text: str) -> None:
    path.write_text(text)


def rename_over(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def delete_and_write(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def rename_over_with_old_time(path: Path, text: str) -> None:
    before = path.stat()
    rename_over(path, text)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.asyncio
@pytest.mark.parametrize("change", [write_in_place, rename_over, delete_and_write, rename_over_with_old_time])
async def test_however_the_file_changes_it_is_followed(path, fast, change: Callable[[Path, str], None]):
    path.write_text(listing(entry("a"), entry("b")))
    os.utime(path, (0, 0))
    async with watching(path) as table:
        await becomes(table, ["a", "b"])
        change(path, listing(entry("b"), entry("c")))
        await becomes(table, ["b", "c"])
        change(path, "endpoints: []\n")
        await becomes(table, [])


@pytest.mark.asyncio
async def test_swapped_link_of_a_config_map_is_followed(tmp_path, fast):
    for version, names in (("v1", ["a"]), ("v2", ["a", "b"])):
        (tmp_path / version).mkdir()
        (tmp_path / version / "endpoints.yaml").write_text(listing(*[entry(name) for name in names]))
    (tmp_path / "..data").symlink_to("v1")
    path = tmp_path / "endpoints.yaml"
    path.symlink_to("..data/endpoints.yaml")
    async with watching(path) as table:
        await becomes(table, ["a"])
        (tmp_path / "..data_tmp").symlink_to("v2")
        (tmp_path / "..data_tmp").replace(tmp_path / "..data")
        await becomes(table, ["a", "b"])


@pytest.mark.asyncio
async def test_a_change_within_the_same_time_stamp_is_still_seen(path, fast):
    path.write_text(listing(entry("a")))
    async with watching(path) as table:
        before = path.stat()
        path.write_text(listing(entry("b")))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        await becomes(table, ["b"])


@pytest.mark.asyncio
@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_change_within_one_time_stamp_is_seen(path, fast, monkeypatch, jump):
    path.write_text(listing(entry("a")))
    actual = time.time
    monkeypatch.setattr(time, "time", lambda: actual() + jump)
    async with watching(path) as table:
        before = path.stat()
        path.write_text(listing(entry("b")))
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        await becomes(table, ["b"])


@pytest.mark.asyncio
async def test_wrong_entries_after_start_are_logged(path, fast, caplog):
    path.write_text(listing(entry("a", "10.0.0.1"), entry("b")))
    async with watching(path) as table:
        path.write_text(listing(entry("a", "nowhere"), entry("new", port="0"), entry("c")))
        await becomes(table, ["a", "c"])
        assert table.find("default/a").host == "10.0.0.1", "whose entry has become wrong stays as it was"
    messages = [record.getMessage() for record in caplog.records]
    assert [message.removeprefix(f"endpoint file {path}, ")[:40] for message in messages] == [
        "line 2: `address` of 'default/a' must be",
        "line 3: `port` of 'default/new' must be ",
    ]


@pytest.mark.asyncio
async def test_of_a_thousand_wrong_entries_some_are_logged(path, fast, caplog):
    path.write_text(listing(entry("a")))
    async with watching(path):
        path.write_text(listing(*(entry(f"bad-{number}", port="0") for number in range(1000))))
        await logged(caplog, "and 980 lines more")
    assert len(caplog.records) == 21


@pytest.mark.asyncio
async def test_a_file_that_stops_making_sense_changes_nothing(path, fast, caplog):
    path.write_text(listing(entry("a")))
    async with watching(path) as table:
        path.write_text("endpoints: {\n")
        await logged(caplog, "not valid YAML")
        assert [endpoint.name for endpoint in table.view()] == ["default/a"]
        path.write_text(listing(entry("b")))
        await becomes(table, ["b"])


@pytest.mark.asyncio
async def test_a_missing_file_keeps_the_pool_and_is_logged_once(path, fast, caplog):
    path.write_text(listing(entry("a")))
    async with watching(path) as table:
        path.unlink()
        await eventually(lambda: bool(caplog.records), lambda: "the missing file is not logged")
        await asyncio.sleep(0.1)
        assert [endpoint.name for endpoint in table.view()] == ["default/a"]
        assert ["endpoints stay as they are" in record.getMessage() for record in caplog.records] == [True]
        path.with_name("next").write_text(listing(entry("b")))
        path.with_name("next").replace(path)
        await becomes(table, ["b"])


@pytest.mark.asyncio
async def test_rereading_an_unchanged_file_is_no_membership_change(path, fast):
    path.write_text(GOOD)
    async with watching(path) as table:
        before = table.generation
        path.write_text(GOOD + "# a comment\n" + "- name: c\n  address: 10.0.0.3\n  port: '1'\n")
        await becomes(table, ["a", "prod/b", "c"])
        assert table.generation is not before
        assert table.find("default/a") is before.endpoints[0]


@pytest.mark.parametrize("parameters", [{}, {"path": ""}, {"path": "x", "watch": True}, {"path": "x", "watchFile": "often"}])
def test_parameters_that_cannot_work_are_refused(parameters):
    with pytest.raises(ValidationError):
        FileDiscoveryParameters.model_validate(parameters)
