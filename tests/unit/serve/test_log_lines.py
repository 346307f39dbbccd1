"""Log lines never wait for what reads them."""

from __future__ import annotations

import json
import logging
import os
import re
import threading

import pytest

from endpick.serve import log_lines
from endpick.serve.log_lines import LineHandler, LostLines
from endpick.serve.logs import JSONFormatter

TOLD = re.compile("([0-9]+) log lines were dropped: what reads the log is too slow, or has no room")


@pytest.fixture
def pipe():
    reader, writer = os.pipe()
    yield reader, writer
    os.close(writer)


def log(handler: LineHandler, text: str) -> None:
    handler.emit(logging.LogRecord("tests", logging.INFO, __file__, 1, text, (), None))


def fill(writer: int) -> int:
    os.set_blocking(writer, False)
    count = 0
    try:
        while True:
            count += os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
        return count


def all_after(reader: int, filled: int, handler: LineHandler) -> list[bytes]:
    """Every line behind what fills the pipe, and one more, with which the thread that writes has to be done.

    Lines that were dropped are told in one line or in two: the thread may take up the first line between them.
    """
    with os.fdopen(reader, "rb") as log_file:
        log_file.read(filled)
        handler.flush()
        log(handler, "the last")
        os.set_blocking(reader, False)
        return log_file.read().splitlines()


def test_lines_wait_while_nothing_reads_and_come_in_order(pipe):
    reader, writer = pipe
    lost = LostLines()
    handler = LineHandler(writer, lost)
    log(handler, "first")
    filled = fill(writer)
    for number in range(10):
        log(handler, f"later {number}")
    assert lost.snapshot() == {"delayed": 10, "dropped": 0}

    with os.fdopen(reader, "rb") as log_file:
        lines = [log_file.readline()]
        assert log_file.read(filled) == b"." * filled
        lines += [log_file.readline() for _ in range(10)]
        handler.flush()
    assert lines == [b"first\n", *(b"later %d\n" % number for number in range(10))]


def test_too_many_are_dropped_counted_and_told(pipe, monkeypatch):
    monkeypatch.setattr(log_lines, "MOST_WAITING", 3)
    reader, writer = pipe
    lost = LostLines()
    handler = LineHandler(writer, lost)
    filled = fill(writer)
    for number in range(5):
        log(handler, str(number))
    assert lost.snapshot() == {"delayed": 3, "dropped": 2}
    lines = all_after(reader, filled, handler)
    told = [TOLD.fullmatch(line.decode()) for line in lines]
    assert sum(int(found[1]) for found in told if found) == 2
    assert [line for line, found in zip(lines, told, strict=True) if not found] == [b"0", b"1", b"2", b"the last"]


@pytest.mark.parametrize(("lengths", "waiting"), [((500, 1), 1), ((24, 24, 24, 24, 24), 4)])
def test_of_long_lines_fewer_wait_and_one_of_any_length_does(pipe, monkeypatch, lengths, waiting):
    monkeypatch.setattr(log_lines, "MOST_WAITING_BYTES", 100)
    reader, writer = pipe
    lost = LostLines()
    handler = LineHandler(writer, lost)
    filled = fill(writer)
    for length in lengths:
        log(handler, "x" * length)
    assert lost.snapshot() == {"delayed": waiting, "dropped": 1}
    lines = all_after(reader, filled, handler)
    assert [len(line) for line in lines if line.startswith(b"x")] == list(lengths[:waiting])
    assert handler._waiting_bytes == 0, "what has been written counts no more"


class Asked:
    """Says how often a text was made of it."""

    def __init__(self):
        self.times = 0

    def __str__(self):
        self.times += 1
        return "x"


def test_of_a_line_without_room_no_text_is_made_until_one_was_written(pipe, monkeypatch):
    monkeypatch.setattr(log_lines, "MOST_WAITING", 1)
    reader, writer = pipe
    lost = LostLines()
    handler = LineHandler(writer, lost)
    filled = fill(writer)
    asked = Asked()
    for _ in range(5):
        handler.emit(logging.makeLogRecord({"msg": "%s", "args": (asked,)}))
    assert (lost.dropped, asked.times) == (4, 2), "the one that waits, and the one that found no room"
    assert b"x" in all_after(reader, filled, handler)
    handler.emit(logging.makeLogRecord({"msg": "%s", "args": (asked,)}))
    assert asked.times == 3


def test_that_lines_were_dropped_is_told_in_the_format_of_the_others(pipe, monkeypatch):
    monkeypatch.setattr(log_lines, "MOST_WAITING", 1)
    reader, writer = pipe
    handler = LineHandler(writer, LostLines())
    handler.setFormatter(JSONFormatter())
    filled = fill(writer)
    for number in range(3):
        log(handler, str(number))
    events = [json.loads(line)["event"] for line in all_after(reader, filled, handler)]
    told = [TOLD.fullmatch(event) for event in events]
    assert sum(int(found[1]) for found in told if found) == 2
    assert [event for event, found in zip(events, told, strict=True) if not found] == ["0", "the last"]


def test_a_long_line_is_whole(pipe):
    reader, writer = pipe
    handler = LineHandler(writer, LostLines())
    log(handler, "x" * 300_000)
    with os.fdopen(reader, "rb") as log_file:
        assert log_file.readline() == b"x" * 300_000 + b"\n"
        handler.flush()


def test_no_room_and_no_reader_cost_lines_and_nothing_else(pipe):
    reader, writer = pipe
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    for descriptor in (writer, full):
        lost = LostLines()
        log(LineHandler(descriptor, lost), "x")
        assert lost.dropped == 1
    os.close(full)


class NamelessKind(type):
    """Of exceptions that raise another one when they are asked what they are called."""

    def __getattribute__(cls, name):
        raise NamelessKind("Nameless", (BaseException,), {})


def test_an_exception_that_cannot_be_shown_and_another_in_showing_it_cost_one_line(pipe):
    reader, writer = pipe
    problem = NamelessKind("Problem", (Exception,), {})()
    record = logging.makeLogRecord({"name": "acme", "exc_info": (type(problem), problem, None), "pathname": "a.py", "lineno": 7})
    LineHandler(writer).handle(record)
    assert os.read(reader, 1000) == b"a line of acme cannot be shown: Nameless at a.py:7\n"


def test_what_stands_for_a_line_that_cannot_be_shown_has_the_format_of_the_others(pipe):
    reader, writer = pipe
    handler = LineHandler(writer)
    handler.setFormatter(JSONFormatter())
    for name in ("a\nb", NamelessKind):
        handler.handle(logging.makeLogRecord({"name": name, "created": "never", "levelname": "INFO", "levelno": 20}))
        line = os.read(reader, 1000)
        assert line.count(b"\n") == 1
        assert json.loads(line)["event"] == f"a line of {name if type(name) is str else '?'} cannot be shown: TypeError at :0"


def test_where_no_thread_can_be_started_a_line_waits_for_one_and_is_not_lost(pipe, monkeypatch):
    reader, writer = pipe
    lost = LostLines()
    handler = LineHandler(writer, lost)
    filled = fill(writer)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        log(handler, "first")
    log(handler, "second")
    with os.fdopen(reader, "rb") as log_file:
        assert log_file.read(filled) == b"." * filled
        assert [log_file.readline(), log_file.readline()] == [b"first\n", b"second\n"]
        handler.flush()
    assert lost.snapshot() == {"delayed": 2, "dropped": 0}
