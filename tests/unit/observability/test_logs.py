"""Log lines for people and for machines."""

from __future__ import annotations

import io
import json
import logging

import pytest

from endpick.observability.logs import configure_logging


@pytest.fixture(autouse=True)
def restored_root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def test_json_line_carries_the_fields_of_the_call():
    stream = io.StringIO()
    configure_logging("info", "auto", stream)

    logging.getLogger("endpick.serve").info("ready", extra={"grpc": 9002})

    line = json.loads(stream.getvalue())
    assert (line["level"], line["logger"], line["event"], line["grpc"]) == ("info", "endpick.serve", "ready", 9002)


def test_json_line_stays_one_line_with_an_exception():
    stream = io.StringIO()
    configure_logging("info", "json", stream)

    try:
        raise RuntimeError("no\nway")
    except RuntimeError:
        logging.getLogger("x").exception("failed")

    lines = stream.getvalue().splitlines()
    assert len(lines) == 1
    assert "RuntimeError: no\nway" in json.loads(lines[0])["exception"]


def test_text_line_reads_left_to_right():
    stream = io.StringIO()
    configure_logging("warning", "text", stream)

    logging.getLogger("endpick.serve").info("hidden")
    logging.getLogger("endpick.serve").warning("careful", extra={"port": 1})

    (line,) = stream.getvalue().splitlines()
    assert line.endswith("warning endpick.serve: careful  port=1")
