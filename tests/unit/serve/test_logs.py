"""Log lines for people and for machines."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import sys
import threading
import warnings

import pytest
from prometheus_client import CollectorRegistry, Counter

from endpick.serve import logs
from endpick.serve.logs import MAX_CHARACTERS, DroppingQueueHandler, configure_logging, last_line, log_uncaught_errors


@pytest.fixture(autouse=True)
def restored_root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    logging.captureWarnings(capture=False)
    root.handlers[:] = handlers
    root.setLevel(level)


def written(log_format: str, message: str = "said", *arguments: object, level: int = logging.WARNING, **extra: object) -> str:
    """What one record looks like."""
    stream = io.StringIO()
    stop = configure_logging("info", log_format, stream)
    logging.getLogger("acme").log(level, message, *arguments, extra=extra)
    stop()
    return stream.getvalue()


def test_json_line_carries_message_and_fields():
    line = json.loads(written("auto", "ready on %s", "eth0", port=9002))

    assert (line["level"], line["logger"], line["event"], line["port"]) == ("warning", "acme", "ready on eth0", 9002)


def test_text_line_reads_left_to_right():
    assert written("text", "careful", port=1).endswith("warning acme: careful  port=1\n")
    assert written("text", "hidden", level=logging.DEBUG) == ""


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_exceptions_are_logged_with_their_traceback(log_format):
    stream = io.StringIO()
    stop = configure_logging("info", log_format, stream)
    try:
        raise RuntimeError("no\nway")
    except RuntimeError:
        logging.getLogger("x").exception("failed")
    stop()

    if log_format == "json":
        (line,) = stream.getvalue().splitlines()
        assert "RuntimeError: no\nway" in json.loads(line)["exception"]
    else:
        _, *rest = stream.getvalue().splitlines()
        assert "  RuntimeError: no" in rest
        assert all(line.startswith("  ") for line in rest)


FORGED = "bad model\n12:30:01 error   endpick.serve: all keys leaked\x1b[2J\u2028\x85\r\x00\u202e\u200b\ud800"


def test_text_of_clients_begins_no_line_and_controls_no_terminal():
    text = written("text", "refused %s", FORGED, model=FORGED)

    assert text.count("\n") == 1
    assert text.removesuffix("\n").isprintable()
    assert 'model="bad model\\n12:30:01' in text


def test_text_of_clients_stays_within_its_json_line():
    (line,) = written("json", "refused %s", FORGED, model=FORGED).splitlines()

    assert line.isascii()
    assert json.loads(line)["model"] == FORGED


def test_a_field_with_blanks_cannot_pass_for_two():
    text = written("text", "asked", model='a"  priority=9', empty="", plain="10.0.0.1:80")

    assert text.endswith('asked  model="a\\"  priority=9"  empty=""  plain=10.0.0.1:80\n')


def test_reserved_names_of_fields_get_an_underscore():
    line = json.loads(written("json", ts="never", event="ready"))

    assert (line["event"], line["event_"], line["ts_"]) == ("said", "ready", "never")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_long_texts_lose_their_middle(log_format):
    line = written(log_format, "m" * 1_000_000, value="v" * 1_000_000)

    assert len(line) < 3 * MAX_CHARACTERS
    assert line.count("characters") == 2


def test_warnings_of_python_are_logged():
    logging.captureWarnings(False)  # it does nothing the second time, and pytest has its own hook back after each test
    stream = io.StringIO()
    stop = configure_logging("info", "json", stream)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", stacklevel=1)
    stop()
    assert json.loads(stream.getvalue())["logger"] == "py.warnings"


def test_lines_are_dropped_and_counted_when_the_reader_is_slow(monkeypatch):
    monkeypatch.setattr(logs, "MAX_WAITING_RECORDS", 2)
    handler = DroppingQueueHandler()
    logger = logging.getLogger("slow")
    logger.propagate, logger.handlers = False, [handler]
    monkeypatch.setattr(logs, "_log", logger)
    for number in range(5):
        logger.warning("line %d", number)
    assert handler.dropped == 3
    for _ in range(2):
        handler.lines.get_nowait()
    logger.warning("next")
    assert [handler.lines.get_nowait().message for _ in range(2)][1].startswith("3 log lines were dropped")


def test_last_line_has_the_format_of_the_log():
    stop = configure_logging("info", "json", io.StringIO())
    assert json.loads(last_line("gone"))["event"] == "gone"
    stop()


@pytest.mark.asyncio
async def test_errors_nobody_can_catch_are_logged_and_counted(caplog, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", None)
    monkeypatch.setattr(threading, "excepthook", None)
    counter = Counter("errors", "Errors.", ["event"], registry=(registry := CollectorRegistry()))
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    log_uncaught_errors(loop, counter)

    class Finalized:
        def __del__(self):
            raise RuntimeError("del")

    async def forgotten():
        raise RuntimeError("task")

    def threaded():
        raise RuntimeError("thread")

    Finalized()
    thread = threading.Thread(target=threaded)
    thread.start()
    thread.join()
    task = asyncio.ensure_future(forgotten())
    await asyncio.wait([task])
    del task
    loop.set_exception_handler(before)

    counted = {event: registry.get_sample_value("errors_total", {"event": event}) for event in ("finalizer", "thread", "task")}
    assert counted == dict.fromkeys(("finalizer", "thread", "task"), 1)
    assert [text in caplog.text for text in ("RuntimeError: del", "RuntimeError: task", "RuntimeError: thread")] == [True] * 3
