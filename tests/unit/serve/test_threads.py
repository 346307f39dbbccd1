"""The threads of a serving process are there before it serves: later there may be none to be had."""

from __future__ import annotations

import threading

from endpick.serve import main
from endpick.serve.main import started_threads


def test_work_needs_no_thread_that_is_not_there_yet(monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with started_threads() as executor:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        waiting = threading.Event()
        done = [executor.submit(waiting.wait) for _ in range(100)]
        waiting.set()
        assert all(each.result(10) for each in done)


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
