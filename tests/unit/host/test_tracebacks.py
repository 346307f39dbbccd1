"""What is formatted of an exception: never more than a person could read, whatever it is made of."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import sys

import pytest

from endpick.host import tracebacks
from endpick.host.failures import message_of
from endpick.host.importing import place, trace_notes
from endpick.host.tracebacks import FIRST_FRAMES, LAST_FRAMES, MOST_PROBLEMS, for_log, traceback_text
from endpick.serve.logs import configure_logging


def raised(problem: BaseException) -> BaseException:
    try:
        raise problem
    except BaseException as caught:
        return caught


def chain(length: int, link: str) -> BaseException:
    problem: BaseException = ValueError(0)
    for number in range(1, length):
        outer = ValueError(number)
        setattr(outer, link, problem)
        problem = outer
    return problem


@pytest.mark.parametrize("link", ["__cause__", "__context__"])
def test_of_a_chain_without_measure_the_last_exceptions_are_shown(link):
    lines = traceback_text(chain(20_000, link)).splitlines()

    shown = [line for line in lines if line.startswith("ValueError")]
    assert shown == [f"ValueError: {number}" for number in range(20_000 - MOST_PROBLEMS, 20_000)]
    assert lines[0] == "(what led to this is left out)"


def test_a_cause_is_told_from_a_context_and_a_circle_ends():
    first, second, third = KeyError("k"), ValueError("v"), OSError("o")
    third.__cause__, second.__context__, first.__context__ = second, first, third

    text = traceback_text(third)

    assert [line for line in text.splitlines() if line] == [
        "(what led to this is left out)",
        "KeyError: 'k'",
        "During handling of the above exception, another exception occurred:",
        "ValueError: v",
        "The above exception was the direct cause of the following exception:",
        "OSError: o",
    ]


def test_a_hidden_context_is_not_shown():
    problem = ValueError("v")
    problem.__context__, problem.__suppress_context__ = KeyError("k"), True

    assert traceback_text(problem) == "ValueError: v"


def test_of_a_group_without_measure_some_members_are_shown():
    text = traceback_text(ExceptionGroup("many", [ValueError(number) for number in range(20_000)]))

    assert text.count("ValueError") == MOST_PROBLEMS - 1
    assert text.endswith(f"  | ({20_000 - MOST_PROBLEMS + 1} more exceptions)")


def test_of_a_deep_recursion_the_first_and_the_last_frames_are_shown():
    def fall(depth: int) -> None:
        if not depth:
            raise ValueError("ground")
        fall(depth - 1)

    try:
        fall(500)
    except ValueError as caught:
        text = traceback_text(caught)
        notes = trace_notes(caught)

    assert text.count("  File ") == FIRST_FRAMES + LAST_FRAMES
    assert f"  ({502 - FIRST_FRAMES - LAST_FRAMES} more frames)" in text
    assert 'raise ValueError("ground")' in text
    assert notes[0].endswith('raise ValueError("ground")')


def test_a_pipe_that_code_says_it_was_compiled_from_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "pipe.py")
    try:
        exec(compile("raise ValueError('x')", str(tmp_path / "pipe.py"), "exec"), {})
    except ValueError as caught:
        problem = caught

    assert f'File "{tmp_path}/pipe.py", line 1' in traceback_text(problem)
    assert place(problem).startswith(__file__) or str(tmp_path) in place(problem)
    assert "pipe.py:1" in trace_notes(problem)[0]


def test_a_file_longer_than_is_read_has_no_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(tracebacks, "_MOST_SOURCE_BYTES", 10)
    assert "raise problem" not in traceback_text(raised(ValueError("x")))


def unreadable() -> BaseException:
    """Made here, because pytest asks what it finds in a module for its attributes."""

    class Hostile(type):
        def __getattribute__(cls, name):
            raise SystemExit(name)

    class UnreadableError(Exception, metaclass=Hostile):
        def __getattribute__(self, name):
            raise SystemExit(name)

    return UnreadableError("quiet")


def test_neither_the_exception_nor_its_class_is_asked():
    stream = io.StringIO()
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    configure_logging("info", "text", stream)
    try:
        logging.getLogger("x").error("told", exc_info=for_log(unreadable()))
    finally:
        logging.getLogger().handlers[:] = handlers
        logging.getLogger().setLevel(level)

    assert "\n  UnreadableError: " in stream.getvalue()


class Loud(str):
    def __format__(self, spec):
        raise SystemExit

    def split(self, *_arguments):
        raise SystemExit


class LoudError(Exception):
    def __str__(self):
        return Loud("plain")


def test_a_message_of_a_class_of_its_own_is_plain_text():
    assert type(message_of(LoudError())) is str
    assert message_of(LoudError()) == "plain"


def test_of_lists_within_lists_no_message_is_made():
    within = [0] * 100
    for _ in range(6):
        within = [within] * 100

    assert message_of(ValueError("bad", within)) == "(its message is too long to be shown)"
    assert message_of(KeyError({"a": [1, 2]})) == "{'a': [1, 2]}"


def test_notes_are_shown_within_bounds():
    problem = ValueError("x")
    problem.__notes__ = ["n" * 10_000, 5, *["again"] * 10_000]

    lines = traceback_text(problem).splitlines()

    assert sys.getsizeof("".join(lines)) < 3000
    assert lines[1] == "n" * 1000
    assert lines.count("again") == tracebacks.MOST_NOTES - 2


@pytest.mark.asyncio
async def test_an_exception_that_is_asked_what_it_says_finds_no_task_that_it_could_cancel():
    class NosyError(Exception):
        def __str__(self):
            return str(asyncio.current_task())

    assert message_of(NosyError()) == "None"
    assert for_log(NosyError()) is not None
    assert asyncio.current_task() is not None
