"""What counts as blocking, and what does not."""

from __future__ import annotations

import asyncio
import importlib
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from pathlib import Path
from time import sleep

import pytest

from endpick.testing import side_effects
from endpick.testing.side_effects import Watch, watched


def deeds(watch: Watch) -> list[str]:
    return [side_effects.action for side_effects in watch.found]


def open_a_file():
    Path(__file__).open().close()


def connect_blocking():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        socket.create_connection(listener.getsockname(), timeout=1).close()


def start_a_process():
    subprocess.run([sys.executable, "-S", "-c", ""], check=True)


@pytest.mark.parametrize(
    ("deed", "expected"),
    [
        (open_a_file, "opens a file"),
        (lambda: time.sleep(0), "sleeps"),
        (lambda: sleep(0), "sleeps"),
        (connect_blocking, "connects a blocking socket"),
        (lambda: socket.getaddrinfo("127.0.0.1", 80), "resolves a host name"),
        (start_a_process, "starts a process"),
    ],
)
def test_blocking_is_noticed_at_the_line_that_does_it(deed, expected):
    watch = Watch()
    with watched(watch):
        deed()

    found = [side_effects for side_effects in watch.found if side_effects.action == expected]
    assert found
    assert all(Path(__file__).name in side_effects.place for side_effects in found)


@pytest.mark.parametrize(
    ("package", "culprit"),
    [
        ("endpick/testing", Path(__file__).name),
        ("a_library", "a_library/module.py"),
    ],
)
def test_installed_packages_are_not_the_standard_library(monkeypatch, package, culprit):
    packages = Path(sysconfig.get_path("stdlib"), "site-packages")
    monkeypatch.setattr(side_effects, "_OURS", str(packages / "endpick" / "testing"))
    frames = []
    names = {"note": lambda: frames.append(sys._getframe(1))}
    exec(compile("def call(): note()", packages / package / "module.py", "exec"), names)

    names["call"]()

    assert side_effects._plugin_frame(frames[0]).f_code.co_filename.endswith(culprit)


def test_nothing_is_noticed_outside_and_after():
    watch = Watch()
    with watched(watch):
        pass
    open_a_file()

    assert deeds(watch) == []


def test_a_nested_watch_does_not_tell_the_outer_one():
    outer, inner = Watch(), Watch()
    with watched(outer), watched(inner):
        open_a_file()

    assert (deeds(outer), deeds(inner)) == ([], ["opens a file"])


def test_threads_may_block():
    watch = Watch()
    with watched(watch):
        thread = threading.Thread(target=open_a_file)
        thread.start()
        thread.join()

    assert deeds(watch) == []


def test_importing_is_not_blocking(tmp_path, monkeypatch):
    (tmp_path / "imported_while_watched.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    watch = Watch()
    with watched(watch):
        importlib.import_module("imported_while_watched")

    assert deeds(watch) == []


def test_asyncio_calls_are_not_blocking():
    async def client() -> None:
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        with watched(watch):
            _, writer = await asyncio.open_connection("localhost", port)
            await asyncio.to_thread(open_a_file)
            await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()

    watch = Watch()
    asyncio.run(client())

    assert deeds(watch) == []


def test_tasks_begun_under_the_watch_are_watched():
    async def begin() -> None:
        with watched(watch):
            task = asyncio.create_task(later())
        await task

    async def later() -> None:
        await asyncio.sleep(0)
        open_a_file()

    watch = Watch()
    asyncio.run(begin())

    assert deeds(watch) == ["opens a file"]
