"""The threads of a serving process are there before it serves: later there may be none to be had."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from endpick.serve import main
from endpick.serve.threads import started_threads


def asking(module: str, executor: ThreadPoolExecutor, call: Callable[[], object], times: int = 1) -> list[Future[object]]:
    """What comes of having a thread do this so many times, as code of this module asks for it."""
    asks = types.ModuleType(module)
    exec("def ask(executor, call, times):\n    return [executor.submit(call) for _ in range(times)]", vars(asks))
    return asks.ask(executor, call, times)


def test_work_needs_no_thread_that_is_not_there_yet(monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with started_threads() as executor:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        waiting = threading.Event()
        done = asking("endpick.serve", executor, waiting.wait, 100)
        waiting.set()
        assert all(each.result(10) for each in done)


def test_a_package_for_which_there_are_no_threads_is_served_by_endpicks(monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with started_threads() as executor:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        assert [each.result(10) for each in asking("other", executor, lambda: 7, 50)] == [7] * 50


def test_a_system_without_threads_is_no_reason_not_to_start(monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        executor = started_threads()
    with executor:
        assert executor.submit(lambda: "later").result(10) == "later"


def test_a_precaution_for_which_there_is_no_thread_is_left_out(monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(main, "collect_rarely", lambda: None)
    done = []
    main._later(0.0, lambda: done.append("later"))
    main._started(main.Ports(1, 2, 3))
    assert done == []


def test_a_package_that_keeps_its_threads_busy_keeps_no_other_waiting():
    may_end = threading.Event()
    with started_threads() as executor:
        try:
            asking("hogging", executor, lambda: may_end.wait(20), 200)
            for package in ("endpick_builtin.discovery", "endpick.serve", "other"):
                assert [each.result(10) for each in asking(package, executor, lambda: 7)] == [7]
        finally:
            may_end.set()


def test_of_many_packages_some_have_threads_of_their_own_and_all_are_served():
    with started_threads() as executor:
        assert [asking(f"package{number}.part", executor, lambda: 7)[0].result(10) for number in range(100)] == [7] * 100
        packages = {
            thread.name.rpartition("_")[0] for thread in threading.enumerate() if thread.name.startswith(("endpick-package", "endpick-_"))
        }
        assert len(packages) == 33  # of which one is for all others
